"""The same clients for asyncio.

$ ottla up &
$ python examples/async_clients.py
"""

import asyncio
import os

from ottla.client.aio import Consumer, Producer

BROKERS = {"bootstrap.servers": os.environ.get("OTTLA_BROKERS", "localhost:9092")}


async def main() -> None:
    """Write three letters at once, and read them."""
    async with Producer(BROKERS) as producer:
        futures = [await producer.send("letters", letter.encode()) for letter in "abc"]
        print([sent.offset for sent in await asyncio.gather(*futures)])
    async with Consumer(BROKERS | {"group.id": "readers", "auto.offset.reset": "earliest"}) as consumer:
        await consumer.subscribe(["letters"])
        async for record in consumer:
            print(record.value)
            if record.value == b"c":
                break


asyncio.run(main())
