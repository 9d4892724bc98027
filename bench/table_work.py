"""Writes a table as other programs do, in a process of its own; `bench/tables.py` starts it.

Zone: real. `python bench/table_work.py arrow FORMAT FOLDER FILE` writes prepared columns of an Arrow file;
`python bench/table_work.py script FORMAT FOLDER BOOTSTRAP TOPIC` reads a topic with confluent-kafka, record by record.
Neither stores offsets: a second run writes the rows again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa

COMMIT_BYTES = 128 << 20
"""Of rows: the default of `ottla table copy`."""
TABLE = "lake.events"
COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)


def catalog_properties(folder: str) -> dict[str, str]:
    """An Iceberg catalog in a folder."""
    return {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}"}


def open_writer(kind: str, folder: str) -> Callable[[pa.Table], object]:
    """A function that appends rows to a new table, by the format's own library."""
    if kind == "delta":
        from deltalake import DeltaTable, write_deltalake

        made = DeltaTable.create(f"{folder}/table", schema=COLUMNS)
        return lambda rows: write_deltalake(made, rows, mode="append")
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("default", **catalog_properties(folder))
    catalog.create_namespace(TABLE.rpartition(".")[0])
    return catalog.create_table(TABLE, COLUMNS).append


def prepared_tables(file: str) -> Iterator[pa.Table]:
    """The columns of an Arrow file, in pieces of COMMIT_BYTES."""
    with pa.memory_map(file) as source:
        reader = pa.ipc.open_file(source)
        gathered: list[pa.RecordBatch] = []
        for at in range(reader.num_record_batches):
            gathered.append(reader.get_batch(at))
            if sum(each.nbytes for each in gathered) >= COMMIT_BYTES:
                yield pa.Table.from_batches(gathered)
                gathered = []
        if gathered:
            yield pa.Table.from_batches(gathered)


def consumed_tables(bootstrap: str, topic: str) -> Iterator[pa.Table]:
    """The columns of all records of a topic, in pieces of COMMIT_BYTES of keys and values."""
    from confluent_kafka import Consumer, TopicPartition

    settings = {"bootstrap.servers": bootstrap, "group.id": "script", "enable.auto.commit": False}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    partitions = list(consumer.list_topics(topic, 30).topics[topic].partitions)
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    gathered: list[Any] = []
    ends, size = 0, 0
    while ends < len(partitions):
        for message in consumer.consume(10_000, 1.0):
            if message.error() is not None:
                ends += 1  # the end of a partition
                continue
            gathered.append(message)
            size += len(message)
        if size >= COMMIT_BYTES:
            yield table_of(gathered)
            gathered, size = [], 0
    if gathered:
        yield table_of(gathered)
    consumer.close()


def table_of(messages: list[Any]) -> pa.Table:
    """The columns of messages."""
    columns = [
        [each.key() for each in messages],
        [each.value() for each in messages],
        [each.headers() and [{"key": key, "value": value} for key, value in each.headers()] for each in messages],
        [each.timestamp()[1] * 1000 for each in messages],
        [each.partition() for each in messages],
        [each.offset() for each in messages],
    ]
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, COLUMNS, strict=True)], schema=COLUMNS)


def main(job: str, kind: str, folder: str, *words: str) -> None:
    """Write all rows; prints their number."""
    tables = {"arrow": prepared_tables, "script": consumed_tables}[job]
    append, count = open_writer(kind, folder), 0
    for rows in tables(*words):
        append(rows)
        count += rows.num_rows
    print(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
