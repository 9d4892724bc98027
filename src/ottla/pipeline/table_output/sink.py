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

from ottla.pipeline.table_output.rows import making_of, split_rows
from ottla.pipeline.table_output.secrets import open_secrets
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
from ottla.tables.batches.upserts import MAX_BYTES, conform_changes
from ottla.tables.errors import TableError

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
        self._held_bytes = 0
        self.names: list[str] = []
        self.bytes = 0
        """Of all rows, in memory."""

    def take_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows for the table, and pass the others on. Raises TableError."""
        for batch in batches:
            rows, others = split_rows(batch, str(self._target))
            if rows is not None:
                self._held.append(rows)
                self._held_bytes += rows.nbytes
                if self._held_bytes >= self._file_bytes:
                    self.write_held()
            yield others

    def write_held(self) -> None:
        """Write the rows that are held into files. Raises TableError."""
        if not self._held:
            return
        if self._table is None:
            self._table = open_table(self._target)
        conform = conform_changes if self._target.upsert else conform_table
        rows = conform(pa.concat_tables(self._held), self._table.columns, self._table.name)
        self.bytes += rows.nbytes
        if self._target.upsert:
            check_changes(self.bytes, self._turn, self._table.name)
        self.names += self._table.write_rows(rows, self._turn.query, self._turn.batch)
        self._held, self._held_bytes = [], 0


def open_table(target: TableTarget) -> BatchTable:
    """The table of a target, whose references are replaced. Raises TableError."""
    making, properties = making_of(target), target.properties
    return open_batch_table(target.kind, target.location, making, catalog=target.catalog, properties=properties)


def check_changes(size: int, turn: TaskBatch, name: str) -> None:
    """Check that the driver can hold the changes of a batch. size: in bytes. name: of the table. Raises TableError."""
    if size > MAX_BYTES:
        raise TableError(
            f"{name}: batch {turn.batch} has more than {MAX_BYTES >> 20} MiB of changes, which are made at once",
            'Start the step with a new checkpoint and smaller batches, options={"maxOffsetsPerTrigger": …}',
        )


class TableWriter(StreamWriter):
    """The writer of one batch."""

    file_bytes: ClassVar[int] = _FILE_BYTES

    def __init__(self, options: SinkOptions, target: TableTarget) -> None:
        super().__init__(options)
        self._target = target

    def _write_task(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        # Files, and an open transaction with the failed records.
        with open_secrets(self._target) as target:
            files = TableFiles(target, self._task_batch(this_task()), self.file_bytes)
            written = super()._write_task(files.take_rows(iterator))
            files.write_held()
        written.files, written.table_bytes = tuple(files.names), files.bytes
        return written

    def commit(self, messages: Sequence[Written | None], batchId: int) -> None:  # noqa: ARG002, N803 - Spark's names
        """Decide the batch, and add its files to the table; runs on the driver."""
        results = results_of(messages)
        if not results:
            return
        with open_secrets(self._target) as target:
            self._commit_table(open_table(target), results[0].turn._replace(partition=0), messages)

    def _commit_table(self, table: BatchTable, turn: TaskBatch, messages: Sequence[Written | None]) -> None:
        # The decision may be forgotten (offsets.retention.minutes); the table then still has the batch.
        if has_batch(table, turn.query, turn.batch):
            self._abort_batch(messages)
            return
        if self._target.upsert:
            self._check_changes(table, turn, messages)
        self._commit_batch(messages)
        self._add_files(table, turn, messages)

    def _check_changes(self, table: BatchTable, turn: TaskBatch, messages: Sequence[Written | None]) -> None:
        # Before the decision: a batch that was decided must be added.
        if results_of(messages)[0].part is None:
            return
        try:
            check_changes(sum(one.table_bytes for one in messages if one is not None), turn, table.name)
        except TableError:
            self._abort_batch(messages)
            raise

    def _add_files(self, table: BatchTable, turn: TaskBatch, messages: Sequence[Written | None]) -> None:
        # Partition 0 without a transaction: an earlier attempt was decided, and its files are those of the batch.
        if results_of(messages)[0].part is None:
            with cached_connections(self._options.client) as links:
                files = read_decided_files(links, turn)
        else:
            files = [file for one in messages if one is not None for file in one.files]
        commit_batch_files(table, turn.query, turn.batch, files)
