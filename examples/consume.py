"""Read a topic as a member of a consumer group; a second run reads on where the first one ended.

$ python examples/produce.py && python examples/consume.py
"""

import os

from ottla.client import Consumer

BROKERS = os.environ.get("OTTLA_BROKERS", "localhost:9092")

settings = {"bootstrap.servers": BROKERS, "group.id": "billing", "auto.offset.reset": "earliest"}
with Consumer(settings) as consumer:
    consumer.subscribe(["orders"])
    for record in consumer:
        print(record.offset, record.key, record.value)
        if record.value == b"coffee":
            break
