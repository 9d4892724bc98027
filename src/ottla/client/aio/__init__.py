"""The clients for asyncio programs.

Zone: real. The same cores as the clients with threads; the protocol is decided there.

The producer has no thread: the loop drives its sender and watches the sender's sockets (`loop_sender`). The consumer,
the admin client and the calls of transactions run the blocking code in one thread per object (`worker`); no call blocks
the loop, and no call creates a thread of its own. Each connection is opened in a short-lived thread, because resolving
names blocks.

    async with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        sent = await producer.send("orders", b"value", key=b"key")
        print((await sent).offset)
"""

from __future__ import annotations

from ottla.client.aio.admin import Admin
from ottla.client.aio.consumer import Consumer
from ottla.client.aio.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
