"""Read, transform and write, exactly once: results and positions are committed together or not at all.

$ python examples/produce.py && python examples/transaction.py
"""

import os

from ottla.client import Consumer, Producer

BROKERS = {"bootstrap.servers": os.environ.get("OTTLA_BROKERS", "localhost:9092")}
SOURCE = {"group.id": "kitchen", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}

with Consumer(BROKERS | SOURCE) as consumer, Producer(BROKERS | {"transactional.id": "kitchen-1"}) as producer:
    consumer.subscribe(["orders"])
    producer.init_transactions()  # fences a former instance, and aborts what it left open
    records = consumer.poll(10)
    with producer.transaction():  # commits at its end, aborts on an error
        for record in records:
            producer.send("made", (record.value or b"").upper(), key=record.key)
        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())

# Readers that must not see what was aborted set isolation.level.
reader = {"group.id": "guests", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
with Consumer(BROKERS | reader) as consumer:
    consumer.subscribe(["made"])
    print([record.value for record in consumer.poll(10)])
