"""Batches of a step that writes a table, run as Spark runs them, without Spark: tasks, and the commit on the driver.

Zone: real. Which records fail changes with each attempt, as with a function that depends on something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark import SparkFiles, TaskContext

from ottla.pipeline.functions import HEADERS_TYPE
from ottla.pipeline.table_output.rows import making_of
from ottla.pipeline.table_output.secrets import open_secrets
from ottla.pipeline.table_output.sink import TableWriter, open_table
from ottla.pipeline.table_output.targets import TableTarget
from ottla.spark.sink.exactly_once import BATCH, QUERY
from ottla.spark.sink.sink_options import sink_options
from ottla.spark.sink.writers import Written
from ottla.tables.batches.batch_table import BatchTable
from ottla.tables.batches.formats import prepare_batch_table

ROWS = 6
TASKS = 2
NONE_FAILS = -1
"""An attempt in which no record fails."""
COLUMNS = pa.schema([("key", pa.binary()), ("value", pa.binary()), ("headers", HEADERS_TYPE)])
KEYS = 2 * TASKS
"""Keys of a batch: the rows of each are in one task, as Spark divides them."""
FRAME = pa.schema(
    [("key", pa.string()), ("value", pa.binary()), ("timestamp", pa.timestamp("us", "UTC")), ("_deleted", pa.bool_())]
)
"""The columns of a DataFrame, where the table has partitions or one row per key."""
DAY_US = 86_400_000_000


class Query(NamedTuple):
    """A query over one checkpoint."""

    bootstrap: str
    dead: str
    """The topic of records that fail."""
    kind: str
    location: str
    properties: Mapping[str, str]
    folder: str
    name: str = "query"
    partition_by: str | None = None
    upsert: bool = False

    @property
    def target(self) -> TableTarget:
        return TableTarget(self.kind, self.location, "default", self.properties, self.partition_by, self.upsert)

    @property
    def columns(self) -> pa.Schema:
        """The columns of the rows."""
        if self.upsert:
            return FRAME
        return pa.schema(list(FRAME)[:3]) if self.partition_by else COLUMNS

    def open_table(self) -> BatchTable:
        return open_table(self.target)

    def make_writer(self, kind: type[TableWriter] = TableWriter) -> TableWriter:
        with open_secrets(self.target) as target:
            making, properties = making_of(target), target.properties
            prepare_batch_table(
                self.kind, self.location, self.columns, making, catalog=target.catalog, properties=properties
            )
        once = {"exactlyOnce": "batch", "sink": "lake", "offsetsInTransaction": "false"}
        return kind(sink_options({"kafka.bootstrap.servers": self.bootstrap, **once}), self.target)

    def run_tasks(self, writer: TableWriter, batch: int, attempt: int, rows: int = ROWS) -> list[Written]:
        """All tasks of a batch."""
        return [self._run_task(writer, batch, attempt, number, rows) for number in range(TASKS)]

    def _run_task(self, writer: TableWriter, batch: int, attempt: int, partition: int, rows: int) -> Written:
        SparkFiles._root_directory, SparkFiles._is_running_on_worker = self.folder, True
        context = TaskContext._getOrCreate()
        context._partitionId, context._taskAttemptId = partition, (batch * 100 + attempt) * 100 + partition
        context._localProperties = {QUERY: self.name, BATCH: str(batch)}
        return writer.write(self._batches(batch, attempt, partition, rows))

    def _batches(self, batch: int, attempt: int, partition: int, rows: int) -> Iterator[pa.RecordBatch]:
        values = batch_values(batch, rows)[partition::TASKS]
        for first in range(0, len(values), 2):
            some = values[first : first + 2]
            fails = [attempt != NONE_FAILS and (first + at + attempt) % 3 == 0 for at in range(len(some))]
            topics = [self.dead if each else str(self.target) for each in fails]
            nothing = [pa.nulls(len(some), pa.binary()), pa.array(some, pa.binary())]
            arrays = [pa.array(topics), *nothing, pa.array([[]] * len(some), HEADERS_TYPE)]
            found = pa.RecordBatch.from_arrays(arrays, names=["topic", *COLUMNS.names])
            yield found if self.columns is COLUMNS else found.append_column("row", self._frame_rows(some))

    def _frame_rows(self, values: Sequence[bytes]) -> pa.StructArray:
        whole = [change_of(each) for each in values]
        return pa.array([{name: each[name] for name in self.columns.names} for each in whole], pa.struct(self.columns))

    def run_batch(self, batch: int, attempt: int, rows: int = ROWS) -> None:
        """A batch from its tasks to its commit."""
        writer = self.make_writer()
        messages: Sequence[Written] = self.run_tasks(writer, batch, attempt, rows)
        writer.commit(messages, batch)


def batch_values(batch: int, rows: int = ROWS) -> list[bytes]:
    return [b"%d-%d" % (batch, number) for number in range(rows)]


def change_of(value: bytes) -> dict[str, Any]:
    """The row of a DataFrame that has a value: every other batch deletes a key."""
    batch, number = map(int, value.split(b"-"))
    deleted = number == ROWS - 1 and batch % 2 == 1
    return {"key": f"k{number % KEYS}", "value": value, "timestamp": number * DAY_US, "_deleted": deleted}


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*.parquet") if path.is_file()]
