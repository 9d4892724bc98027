"""The sink of steps that write a table: rows go into files of the table, failed records to topics.

Zone: real. A batch is decided as one that is written as a whole (`ottla.spark.sink.batch_decision`): the transaction
with the failed records names the files. After it, and not before, the files are added to the table, by the driver or,
after its death, by the next one: the table has the number of the batch, so that this is done once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource

from ottla.pipeline.table_output.rows import split_rows
from ottla.pipeline.table_output.targets import TableTarget, decode_target
from ottla.spark.connection_cache import cached_connections
from ottla.spark.gc_freeze import freeze_loaded_modules
from ottla.spark.sink.exactly_once import TaskBatch
from ottla.spark.sink.sink_options import SinkOptions, check_schema, sink_options
from ottla.spark.sink.whole_batches import read_decided_files
from ottla.spark.sink.writers import StreamWriter, Written, results_of
from ottla.spark.tasks import this_task
from ottla.tables.batches.batch_table import BatchTable, commit_batch_files, conform_table, has_batch
from ottla.tables.batches.formats import open_batch_table

FORMAT: Final = "ottla_table"
TARGET: Final = "table"
_FILE_BYTES: Final = 128 << 20
"""Rows of a file in memory, before it is written."""


class TableSink(DataSource):  # type: ignore[misc]  # pyspark's classes are not typed
    """The data source of `writeStream`, registered for a session by the pipeline."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(...)`."""
        return FORMAT

    def streamWriter(self, schema: Any, overwrite: bool) -> TableWriter:  # noqa: ARG002, N802 - Spark's names
        """The writer. Raises BadOption, BadRows."""
        freeze_loaded_modules()
        others = {key: value for key, value in self.options.items() if key.lower() != TARGET}
        options = sink_options(others)
        check_schema(schema, options.topic)
        return TableWriter(options, decode_target(self.options[TARGET]))


class TableFiles:
    """The files of one task."""

    def __init__(self, target: TableTarget, turn: TaskBatch, file_bytes: int = _FILE_BYTES) -> None:
        self._target = target
        self._turn = turn
        self._file_bytes = file_bytes
        self._table: BatchTable | None = None
        self._held: list[pa.Table] = []
        self._bytes = 0
        self.names: list[str] = []

    def take_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows for the table, and pass the others on. Raises TableError."""
        for batch in batches:
            rows, others = split_rows(batch, str(self._target))
            if rows is not None:
                self._held.append(rows)
                self._bytes += rows.nbytes
                if self._bytes >= self._file_bytes:
                    self.write_held()
            yield others

    def write_held(self) -> None:
        """Write the rows that are held into files. Raises TableError."""
        if not self._held:
            return
        if self._table is None:
            self._table = open_table(self._target)
        rows = conform_table(pa.concat_tables(self._held), self._table.columns, self._table.name)
        self.names += self._table.write_rows(rows, self._turn.query, self._turn.batch)
        self._held, self._bytes = [], 0


def open_table(target: TableTarget) -> BatchTable:
    """The table of a target. Raises TableError."""
    return open_batch_table(target.kind, target.location, catalog=target.catalog, properties=target.properties)


class TableWriter(StreamWriter):
    """The writer of one batch."""

    file_bytes: ClassVar[int] = _FILE_BYTES

    def __init__(self, options: SinkOptions, target: TableTarget) -> None:
        super().__init__(options)
        self._target = target

    def _write_task(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        # Files, and an open transaction with the failed records.
        files = TableFiles(self._target, self._task_batch(this_task()), self.file_bytes)
        written = super()._write_task(files.take_rows(iterator))
        files.write_held()
        written.files = tuple(files.names)
        return written

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's names
        """Decide the batch, and add its files to the table; runs on the driver."""
        results = results_of(messages)
        if not results:
            return
        turn = results[0].turn._replace(partition=0)
        table = open_table(self._target)
        # The decision may be forgotten (offsets.retention.minutes); the table then still has the batch.
        if has_batch(table, turn.query, turn.batch):
            self._abort_batch(messages)
            return
        self._commit_batch(messages)
        self._add_files(table, turn, messages)

    def _add_files(self, table: BatchTable, turn: TaskBatch, messages: Sequence[Written | None]) -> None:
        # Partition 0 without a transaction: an earlier attempt was decided, and its files are those of the batch.
        if results_of(messages)[0].part is None:
            with cached_connections(self._options.client) as links:
                files = read_decided_files(links, turn)
        else:
            files = [file for one in messages if one is not None for file in one.files]
        commit_batch_files(table, turn.query, turn.batch, files)
