"""The clients for programs that live in an asyncio loop.

Zone: real. The same cores as the faces with threads, and no decisions of its own.

The producer has no thread: its sender is driven by the loop, which watches the sender's sockets (`loop_sender`). The
consumer, the admin client and the calls of transactions are the blocking ones in one thread per object, to which calls
are handed over (`worker`); never does a call block the loop, and no call makes a thread. Connecting has a short-lived
thread per connection, because resolving names blocks.

    async with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
        sent = await producer.send("orders", b"value", key=b"key")
        print((await sent).offset)
"""

from __future__ import annotations

from ottla.client.aio.admin import Admin
from ottla.client.aio.consumer import Consumer
from ottla.client.aio.producer import Producer

__all__ = ["Admin", "Consumer", "Producer"]
