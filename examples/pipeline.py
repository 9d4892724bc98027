"""A pipeline on PySpark, exactly once: read a topic, transform each record in Python, write another topic.

$ pip install 'ottla[spark]'; ottla up &
$ python examples/produce.py && python examples/pipeline.py
"""

import os
import tempfile

from ottla.client import Consumer
from pyspark_ottla import Pipeline, Record, map_rows

BROKERS = os.environ.get("OTTLA_BROKERS", "localhost:9092")
shop = Pipeline("shop", bootstrap=BROKERS)


@shop.step("orders", to="shouted", retries=["30s", "5m"])
@map_rows
def shout(record: Record) -> bytes:
    """The next value of a record; key and headers stay."""
    return (record.value or b"").upper()


with tempfile.TemporaryDirectory() as checkpoint:  # a real one is kept
    shop.run(checkpoint)  # what is there, then it ends; trigger="5s" runs on

reader = {"group.id": "guests", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
with Consumer({"bootstrap.servers": BROKERS} | reader) as consumer:
    consumer.subscribe(["shouted"])
    print([record.value for record in consumer.poll(10)])
