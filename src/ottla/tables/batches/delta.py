"""A Delta table that takes batches: the number of a query's last batch is the version of an application transaction.

Zone: real.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from ottla.tables.batches.batch_table import columns_of_rows, merge_columns
from ottla.tables.column_types import standard_schema
from ottla.tables.delta import DeltaWriter
from ottla.tables.errors import CommitConflict, OffsetsLostError, TableError

_APPLICATION: Final = "ottla/batch/"
_CONSTRAINTS: Final = "delta.constraints."
_MAPPING: Final = "delta.columnMapping.mode"


class DeltaBatches:
    """A table by its path or URI, which must be there (`prepare_delta`)."""

    def __init__(self, uri: str, properties: Mapping[str, str]) -> None:
        """properties: of the object store, as delta-rs documents them. Raises TableError."""
        self.name = f"Delta table {uri}"
        with _table_errors(self.name):
            self._table = DeltaTable(uri, storage_options=dict(properties))
            self._files = pa_fs.PyFileSystem(DeltaStorageHandler(uri, dict(properties)))

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, as of its opening."""
        return _columns_of(self._table)

    def write_rows(self, rows: pa.Table, query: str, batch: int) -> list[str]:  # noqa: ARG002 - the seam's
        """Write rows into a new file. Raises TableError."""
        name = f"part-{uuid4()}.parquet"
        with _table_errors(self.name):
            pq.write_table(rows, name, filesystem=self._files, compression="zstd")
        return [name]

    def last_batch(self, query: str) -> int | None:
        """The version of the query's application in the newest version. Raises TableError."""
        with _table_errors(self.name):
            self._table.update_incremental()
            return self._table.transaction_version(f"{_APPLICATION}{query}")

    def add_files(self, query: str, batch: int, files: Sequence[str]) -> None:
        """One version with the files and the batch. Raises CommitConflict, TableError."""
        # Without retries in delta-rs: the batch is looked up before each commit.
        done = Transaction(f"{_APPLICATION}{query}", batch)
        commit = CommitProperties(max_commit_retries=0, app_transactions=[done])
        try:
            with _table_errors(self.name):
                actions: list[AddAction | RemoveAction] = [self._describe_file(name) for name in files]
                self._table.create_write_transaction(actions, "append", self._table.schema(), commit_properties=commit)
        except CommitFailedError as error:
            raise CommitConflict(f"{self.name}: the commit failed: {error}", "Start again") from error
        except FileNotFoundError as error:
            raise OffsetsLostError(
                f"{self.name}: a file of batch {batch} of query {query} was deleted before it was added: {error}",
                "Start the step with another name, to write all rows again into a new table; and vacuum a table only "
                "with an age that is longer than the pauses of its queries",
            ) from error

    def _describe_file(self, name: str) -> AddAction:
        with self._files.open_input_file(name) as file:
            size, rows = file.size(), pq.read_metadata(file).num_rows
        counted = json.dumps({"numRecords": rows})
        return AddAction(name, size, {}, int(time.time() * 1000), data_change=True, stats=counted)


def prepare_delta(uri: str, rows: pa.Schema, properties: Mapping[str, str]) -> None:
    """Make the table if it is not there, and add the columns that it lacks.

    rows: the columns of the rows. Raises TableError.
    """
    name, storage = f"Delta table {uri}", dict(properties)
    wanted = columns_of_rows(rows, DeltaWriter.types, name)
    with _table_errors(name):
        if not DeltaTable.is_deltatable(uri, storage):
            DeltaTable.create(uri, wanted, mode="ignore", storage_options=storage)
        table = DeltaTable(uri, storage_options=storage)
        _check_layout(table, name)
        merged = merge_columns(_columns_of(table), wanted, DeltaWriter.types, name)
        if merged != _columns_of(table):
            write_deltalake(table, merged.empty_table(), mode="append", schema_mode="merge")


def _check_layout(table: DeltaTable, name: str) -> None:
    metadata = table.metadata()
    if metadata.partition_columns:
        raise TableError(
            f"{name} is partitioned by {metadata.partition_columns[0]}, and files of batches are not",
            "Name a table without partitions, or take iceberg",
        )
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
    except DeltaError as error:
        raise TableError(f"{name}: {error}", "Check the location and its properties") from error
