"""The seam between the batches of a query and a table format, and the commit that adds each batch once.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from ottla.tables.column_types import ColumnConflict, ColumnTypes, merge_types, table_type
from ottla.tables.conforming import conform_array
from ottla.tables.errors import (
    ColumnConflictError,
    CommitConflict,
    OffsetsLostError,
    RowNotReadableError,
    TableError,
)
from ottla.tables.partitionings import TIME_PARTITIONINGS, has_buckets

_ATTEMPTS: Final = 20
"""Commits of one batch, while maintenance and other queries commit to the same table."""


TIME_COLUMN: Final = "timestamp"
"""The column by which `day` and `hour` partition a table."""
KEY: Final = "key"
"""The column of which a table has each value once, with upsert."""
MARK: Final = "_deleted"
"""With upsert: a row with true in this column deletes the row of its key. It is no column of the table."""
_KEY_TYPES: Final = (pa.binary(), pa.string(), pa.int32(), pa.int64())


class BatchMaking(NamedTuple):
    """How a table is made that is not there; one that is there must be the same."""

    partition_by: str | None = None
    """none; day or hour of the column `timestamp`; bucket[NUMBER], the hash of the column `key`, with Iceberg. None: a
    new table has no partitions, and one that is there keeps its own."""
    upsert: bool = False
    """One row per key: the last."""

    @property
    def time_partitioning(self) -> str | None:
        """day or hour, if the table is partitioned by one of them."""
        return self.partition_by if self.partition_by in TIME_PARTITIONINGS else None

    @property
    def has_buckets(self) -> bool:
        """Whether the table is partitioned by the hash of its keys."""
        return has_buckets(self.partition_by)


MAKING: Final = BatchMaking()
"""All rows, without partitions."""


class BatchTable(Protocol):
    """A table whose files are written by tasks, and added by one commit per batch."""

    name: str
    """Of the table, for messages."""

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, as of its opening."""

    def write_rows(self, rows: pa.Table, query: str, batch: int) -> list[str]:
        """Write rows, with columns of the table, into new files; how `add_files` names them. Raises TableError.

        With upsert the rows are changes (`upserts.conform_changes`), and the table never names these files.
        """

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that the table has now. Raises TableError."""

    def add_files(self, query: str, batch: int, files: Sequence[str]) -> None:
        """Add the files of a batch, and its number. Raises CommitConflict if the table changed, TableError."""


def has_batch(table: BatchTable, query: str, batch: int) -> bool:
    """Whether the table has a batch of a query. Raises TableError."""
    last = table.last_batch(query)
    return last is not None and last >= batch


def commit_batch_files(table: BatchTable, query: str, batch: int, files: Sequence[str]) -> None:
    """Add the files of a batch unless the table has it, also while others change the table. Raises TableError.

    It may be called again with the same files, by any process.
    """
    conflict: CommitConflict | None = None
    for _ in range(_ATTEMPTS):
        # Read before each attempt: an earlier one may have taken effect although its answer was an error, and another
        # driver may have added the batch.
        if not files or has_batch(table, query, batch):
            return
        try:
            table.add_files(query, batch, files)
            return
        except CommitConflict as error:
            conflict = error
        except OffsetsLostError:
            # Another driver added the batch, and deleted files that are not needed any more.
            if not has_batch(table, query, batch):
                raise
    assert conflict is not None
    raise conflict


def columns_of_rows(rows: pa.Schema, types: ColumnTypes, making: BatchMaking, name: str) -> pa.Schema:
    """The columns that a table has for rows. name: of the table. Raises ColumnConflictError."""
    if making.upsert and MARK in rows.names:
        if not pa.types.is_boolean(rows.field(MARK).type):
            raise ColumnConflictError(f"{name}: the column {MARK} is {rows.field(MARK).type}", "Cast it to boolean")
        rows = rows.remove(rows.get_field_index(MARK))
    names = [each.name.lower() for each in rows]
    for each in rows:
        if names.count(each.name.lower()) > 1 or each.name in types.reserved:
            why = "is reserved by the format" if each.name in types.reserved else "is there twice, apart from case"
            raise ColumnConflictError(f"{name}: the column {each.name} {why}", "Give it another name")
    parts = [(each.name, table_type(each.type, types)) for each in rows]
    found = pa.schema([pa.field(column, part) for column, part in parts if part is not None])
    if not found.names:
        raise ColumnConflictError(f"{name}: the rows have no column with a type", "Select at least one column")
    _check_time(found, making, name)
    needs_key = "upsert" if making.upsert else f"partition_by={making.partition_by}" if making.has_buckets else None
    if needs_key and (KEY not in found.names or found.field(KEY).type not in _KEY_TYPES):
        raise ColumnConflictError(
            f"{name}: {needs_key} needs a column {KEY} of bytes, text or integers", f"Select one as {KEY}"
        )
    return found


def _check_time(rows: pa.Schema, making: BatchMaking, name: str) -> None:
    by = making.time_partitioning
    if by is None:
        return
    if TIME_COLUMN not in rows.names or not pa.types.is_timestamp(rows.field(TIME_COLUMN).type):
        raise ColumnConflictError(
            f"{name}: partition_by={by} needs a column {TIME_COLUMN} with timestamps", f"Select {TIME_COLUMN}"
        )
    if by in rows.names:
        raise ColumnConflictError(f"{name}: the column {by} has the name of the partitions", "Give it another name")


def merge_columns(found: pa.Schema, wanted: pa.Schema, types: ColumnTypes, name: str) -> pa.Schema:
    """The columns of a table with those of rows. Raises ColumnConflictError."""
    try:
        merged = merge_types(pa.struct(list(found)), pa.struct(list(wanted)), types)
    except ColumnConflict as error:
        raise ColumnConflictError(
            f"{name}: the column {error}", "Cast the column of the rows, or name a new table"
        ) from error
    return pa.schema(list(merged))


def conform_table(rows: pa.Table, columns: pa.Schema, name: str) -> pa.Table:
    """Rows with the types of a table's columns; columns that they lack are left out.

    Raises RowNotReadableError for a value that a column cannot hold, TableError for a column that the table lacks.
    """
    kinds = {each.name: each.type for each in columns}
    fields, arrays = [], []
    for each in rows.schema:
        if pa.types.is_null(each.type):
            continue
        if each.name not in kinds:
            raise TableError(f"{name} has lost its column {each.name} since the query began", "Start the query again")
        fields.append(pa.field(each.name, kinds[each.name]))
        arrays.append(_conform_column(rows[each.name], kinds[each.name], f"{name}: the column {each.name}"))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _conform_column(column: pa.ChunkedArray, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return conform_array(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type), kind)
    except pa.ArrowInvalid as error:
        raise RowNotReadableError(
            f"{name} cannot hold a value: {error}", "Mark such rows with _error, or filter them"
        ) from error
