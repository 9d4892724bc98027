"""Keep totals per customer in a compacted topic, exactly once: the state comes back from the topic after a crash.

$ ottla up &
$ python examples/sink.py
"""

import os

from ottla.client import Consumer, Producer
from ottla.client.consumer import ConsumerRecord
from ottla.sinks.changelog import Changelog

BROKERS = {"bootstrap.servers": os.environ.get("OTTLA_BROKERS", "localhost:9092")}


def add(total: bytes | None, record: ConsumerRecord) -> bytes:
    """The next total of a customer."""
    return b"%d" % (int(total or 0) + int(record.value or 0))


with Producer(BROKERS) as producer:
    for customer, amount in ((b"anna", b"3"), (b"bert", b"5"), (b"anna", b"4")):
        producer.send("payments", amount, key=customer)

with Changelog(BROKERS, "totals") as totals, Consumer(BROKERS | {"auto.offset.reset": "earliest"}) as consumer:
    consumer.assign(consumer.partitions_for_topic("payments"))
    records = consumer.poll(10)
    print(totals.write(records, add), "records counted")
    print(totals.write(records, add), "counted when the same records come again")

with Changelog(BROKERS, "totals") as totals:  # another process, on another day
    totals.restore()
    print(dict(totals.items()))
