"""A Delta table that takes batches: the number of a query's last batch is the version of an application transaction.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from ottla.tables.batches.batch_table import KEY, TIME_COLUMN, BatchMaking, columns_of_rows, merge_columns
from ottla.tables.batches.delta_files import describe_file, is_partition_type, write_partitions
from ottla.tables.batches.upserts import join_changes, split_changes
from ottla.tables.column_types import standard_schema
from ottla.tables.delta import COMPRESSED, DeltaWriter, create_delta, merge_rows, with_time_partition
from ottla.tables.errors import CommitConflict, OffsetsLostError, TableError
from ottla.tables.rows import BYTES
from ottla.tables.writers import require_mode, require_partitioning

_APPLICATION: Final = "ottla/batch/"
_UPSERT: Final = "ottla/upsert"
"""The application of tables with one row per key."""
_CONSTRAINTS: Final = "delta.constraints."
_MAPPING: Final = "delta.columnMapping.mode"


class DeltaBatches:
    """A table by its path or URI, which must be there (`prepare_delta`)."""

    def __init__(self, uri: str, making: BatchMaking, properties: Mapping[str, str]) -> None:
        """properties: of the object store, as delta-rs documents them. Raises TableError."""
        self.name = f"Delta table {uri}"
        self._making = making
        with _table_errors(self.name):
            self._table = DeltaTable(uri, storage_options=dict(properties))
            self._files = pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(properties)))

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, as of its opening."""
        return _columns_of(self._table)

    def write_rows(self, rows: pa.Table, query: str, batch: int) -> list[str]:  # noqa: ARG002 - the seam's
        """Write rows into new files, one for each partition. Raises TableError."""
        by = [] if self._making.upsert else self._partitions
        with _table_errors(self.name):
            return write_partitions(self._files, rows if self._making.upsert else self._with_time(rows), by, self.name)

    def _with_time(self, rows: pa.Table) -> pa.Table:
        return with_time_partition(rows, TIME_COLUMN, self._making.time_partitioning or "none")

    @property
    def _partitions(self) -> list[str]:
        return list(self._table.metadata().partition_columns)

    def last_batch(self, query: str) -> int | None:
        """The version of the query's application in the newest version. Raises TableError."""
        with _table_errors(self.name):
            self._table.update_incremental()
            return self._table.transaction_version(f"{_APPLICATION}{query}")

    def add_files(self, query: str, batch: int, files: Sequence[str]) -> None:
        """One version with the files and the batch. Raises CommitConflict, TableError."""
        # Without retries in delta-rs: the batch and the mode are looked up before each commit.
        done = [
            Transaction(f"{_APPLICATION}{query}", batch),
            *([Transaction(_UPSERT, 1)] if self._making.upsert else []),
        ]
        commit = CommitProperties(max_commit_retries=0, app_transactions=done)
        try:
            with _table_errors(self.name):
                _require_mode(self._table, self._making, self.name)
                if self._making.upsert:
                    self._change_rows(query, files, commit)
                else:
                    self._append_files(files, commit)
        except CommitFailedError as error:
            raise CommitConflict(f"{self.name}: the commit failed: {error}", "Start again") from error
        except FileNotFoundError as error:
            raise OffsetsLostError(
                f"{self.name}: a file of batch {batch} of query {query} was deleted before it was added: {error}",
                "Start the step with another name, to write all rows again into a new table; and vacuum a table only "
                "with an age that is longer than the pauses of its queries",
            ) from error

        if self._making.upsert:
            self._delete_changes(files)

    def _append_files(self, files: Sequence[str], commit: CommitProperties) -> None:
        properties = self._table.metadata().configuration
        actions: list[AddAction | RemoveAction] = [
            describe_file(self._files, each, self._partitions, properties) for each in files
        ]
        self._table.create_write_transaction(actions, "append", self._table.schema(), commit_properties=commit)

    def _change_rows(self, query: str, files: Sequence[str], commit: CommitProperties) -> None:
        before, by = self._table.transaction_version(f"{_APPLICATION}{query}"), self._making.time_partitioning
        columns = pa.schema([each for each in self.columns if each.name != by])
        changes = self._with_time(join_changes([self._read_file(each) for each in files], columns, self.name))
        merge_rows(self._table, changes, KEY, commit)
        # A merge that changes no row makes no version, and stores no batch.
        if self.last_batch(query) == before:
            _, rows = split_changes(changes)
            write_deltalake(self._table, rows, mode="append", writer_properties=COMPRESSED, commit_properties=commit)

    def _read_file(self, path: str) -> pa.Table:
        with self._files.open_input_file(path) as file:
            return pq.read_table(file)

    def _delete_changes(self, files: Sequence[str]) -> None:
        # The table has the rows in files of its own. A file that is left is one for a vacuum.
        for each in files:
            with suppress(OSError, DeltaError):
                self._files.delete_file(each)


def prepare_delta(uri: str, rows: pa.Schema, making: BatchMaking, properties: Mapping[str, str]) -> None:
    """Make the table if it is not there, and add the columns that it lacks.

    rows: the columns of the rows. Raises TableError.
    """
    name, storage = f"Delta table {uri}", dict(properties)
    wanted = columns_of_rows(rows, DeltaWriter.types, making, name)
    with _table_errors(name):
        if not DeltaTable.is_deltatable(uri, storage):
            create_delta(uri, wanted, making.partition_by or "none", storage)
        table = DeltaTable(uri, storage_options=storage)
        _require_mode(table, making, name)
        _check_partitions(table, wanted, making, name)
        _check_layout(table, name)
        merged = merge_columns(_columns_of(table), wanted, DeltaWriter.types, name)
        if merged != _columns_of(table):
            write_deltalake(table, merged.empty_table(), mode="append", schema_mode="merge")


def _require_mode(table: DeltaTable, making: BatchMaking, name: str) -> None:
    is_upsert = table.transaction_version(_UPSERT) is not None
    # A table that has neither the mark nor a row may become one of both kinds.
    if is_upsert or (making.upsert and table.file_uris()):
        require_mode(name, BYTES._replace(is_upsert=making.upsert), is_upsert=is_upsert)


def _check_partitions(table: DeltaTable, rows: pa.Schema, making: BatchMaking, name: str) -> None:
    found = table.metadata().partition_columns
    if making.partition_by is not None:
        require_partitioning(name, making.partition_by, found)
    columns = _columns_of(table)
    for each in found:
        # The text of other values in Delta's log differs between programs.
        if not is_partition_type(columns.field(each).type):
            raise TableError(
                f"{name} is partitioned by {each}, of type {columns.field(each).type}", "Name another table"
            )
        if each not in rows.names and each != making.time_partitioning:
            raise TableError(
                f"{name} is partitioned by {each}, which the rows lack", f"Give partition_by, or select {each}"
            )


def _check_layout(table: DeltaTable, name: str) -> None:
    metadata = table.metadata()
    # delta-rs checks no values of files that it only adds.
    rules = [key for key in metadata.configuration if key.startswith(_CONSTRAINTS)]
    ruled = [
        each.name
        for each in table.schema().fields
        if not each.nullable or any("delta." in key for key in each.metadata)
    ]
    for rule in (*rules, *ruled):
        raise TableError(f"{name} has a rule that batches do not check: {rule}", "Name a table without such rules")
    if (mode := metadata.configuration.get(_MAPPING, "none")) != "none":
        raise TableError(
            f"{name} has {_MAPPING}={mode}, and files of batches have the names of columns", "Name another"
        )


def _columns_of(table: DeltaTable) -> pa.Schema:
    return standard_schema(pa.schema(table.schema().to_arrow()))


@contextmanager
def _table_errors(name: str) -> Iterator[None]:
    try:
        yield
    except CommitFailedError:
        raise
    except TableNotFoundError as error:
        raise TableError(f"{name} is not there any more: {error}", "Start the query again, which makes it") from error
    except (DeltaError, ValueError) as error:
        raise TableError(f"{name}: {error}", "Check the location and its properties") from error
