"""Write records to a topic, and learn where they are.

$ ottla up &
$ python examples/produce.py
"""

import os

from ottla.client import Producer

BROKERS = os.environ.get("OTTLA_BROKERS", "localhost:9092")

with Producer({"bootstrap.servers": BROKERS}) as producer:
    producer.send("orders", b"tea", key=b"anna", headers={"shop": b"7"})
    sent = producer.send("orders", b"coffee", key=b"bert")
    record = sent.result(10)  # waits until all in-sync replicas have it
    print(record.topic, record.partition, record.offset)
