"""Write and read Arrow tables, without a step of Python per record. Needs pyarrow.

$ ottla up &
$ python examples/arrow_tables.py
"""

import os

import pyarrow as pa

from ottla.client import Consumer, Producer, TopicPartition

BROKERS = {"bootstrap.servers": os.environ.get("OTTLA_BROKERS", "localhost:9092")}

table = pa.table({"key": ["anna", "bert", "anna"], "value": [b"1", b"2", b"3"]})
with Producer(BROKERS | {"compression.type": "zstd"}) as producer:
    print(producer.send_table("visits", table).result(10).rows, "rows written")

with Consumer(BROKERS | {"auto.offset.reset": "earliest"}) as consumer:
    consumer.assign([TopicPartition("visits", 0)])
    print(consumer.poll_table(10).select(["offset", "key", "value"]).to_pydict())
