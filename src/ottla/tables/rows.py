"""Records as the rows of a table, with keys and values as bytes.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ottla.tables.column_types import TIME, standard_schema
from ottla.tables.conforming import YEARS_MS
from ottla.tables.errors import TableError

_HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_KEY: Final = pa.field("key", pa.binary())
_REST: Final = (
    pa.field("headers", pa.list_(pa.field("element", _HEADER))),
    pa.field("timestamp", TIME),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
)
DELETED: Final = "_ottla_deleted"
"""Whether the row is that of a tombstone, by which the row of the key is deleted."""
SCHEMA: Final = pa.schema([_KEY, pa.field("value", pa.binary()), *_REST])


NO_KEY: Final = "ottla.tables.MissingKeyError"


class Layout(NamedTuple):
    """The columns that a table has for any record; a value's columns are besides them."""

    schema: pa.Schema
    prefix: str = ""
    """In front of a column's name: the fields of a value may have the names of a record's parts."""
    is_upsert: bool = False
    """One row per key: the last record's. Rows then have a column more, DELETED."""

    @property
    def row_schema(self) -> pa.Schema:
        """The columns of rows of any record."""
        return self.schema.append(pa.field(DELETED, pa.bool_())) if self.is_upsert else self.schema

    @property
    def key(self) -> str:
        """The column of the key."""
        return f"{self.prefix}key"

    @property
    def decoded_key(self) -> str:
        """The column of the decoded key, if the table has one."""
        return f"{self.prefix}decoded_key"

    @property
    def partition(self) -> str:
        """The column of the partition."""
        return f"{self.prefix}partition"

    @property
    def time(self) -> str:
        """The column of the timestamp."""
        return f"{self.prefix}timestamp"


def _prefixed(fields: Sequence[pa.Field], prefix: str) -> Layout:
    return Layout(pa.schema([each.with_name(f"{prefix}{each.name}") for each in fields]), prefix)


BYTES: Final = Layout(SCHEMA)
"""Keys and values are bytes."""
FLAT: Final = _prefixed((_KEY, *_REST), "_kafka_")
"""The fields of a value are columns. `_partition` alone would be a name that Iceberg reserves."""
NESTED: Final = _prefixed((_KEY, *_REST), "")
"""The value is one column."""
LAYOUTS: Final = {"flat": FLAT, "nested": NESTED}


class Refused(NamedTuple):
    """A record that is not a row of the table."""

    row: int
    """In the table of records."""
    kind: str
    """The full name of an error's class."""
    reason: str


class Rows(NamedTuple):
    """What became of some records."""

    rows: pa.Table
    refused: list[Refused]


class RowMaker(Protocol):
    """Makes rows of records."""

    layout: Layout

    def begin_table(self, name: str, columns: pa.Schema) -> None:
        """Make rows for a table with these columns. Raises TableError: it has other ones."""

    def make_rows(self, records: pa.Table) -> Rows:
        """The rows of a table of records (as `Consumer.poll_table` returns it), without those that are refused."""

    def join_rows(self, pieces: Sequence[pa.Table]) -> pa.Table:
        """All rows, with the columns of the last piece."""


class BytesRows:
    """Rows with keys and values as bytes."""

    def __init__(self, layout: Layout = BYTES) -> None:
        self.layout = layout

    def begin_table(self, name: str, columns: pa.Schema) -> None:
        """Raise TableError unless the table has the columns."""
        require_columns(name, self.layout, columns)

    def make_rows(self, records: pa.Table) -> Rows:
        """All records are rows."""
        return Rows(rows_of(records, self.layout), [])

    def join_rows(self, pieces: Sequence[pa.Table]) -> pa.Table:
        """All rows."""
        return pa.concat_tables(pieces)


def rows_of(records: pa.Table, layout: Layout = BYTES) -> pa.Table:
    """The rows of a table that `Consumer.poll_table` returned. The timestamp is null where a record has none."""
    times = pc.if_else(pc.equal(records["timestamp"], -1), None, records["timestamp"])
    found = records.set_column(records.schema.get_field_index("timestamp"), "timestamp", _to_time(times))
    names = layout.schema.names
    rows = found.select([each.removeprefix(layout.prefix) for each in names]).rename_columns(names).cast(layout.schema)
    return rows.append_column(DELETED, records["value"].is_null()) if layout.is_upsert else rows


def records_with_keys(records: pa.Table, layout: Layout) -> tuple[pa.Table, list[Refused]]:
    """The records that the layout allows, and the others: an upsert needs a key."""
    if not layout.is_upsert or not records["key"].null_count:
        return records, []
    is_wrong = records["key"].is_null()
    rows = pc.indices_nonzero(is_wrong).to_pylist()
    return records.filter(pc.invert(is_wrong)), [Refused(row, NO_KEY, "an upsert needs a key") for row in rows]


def last_rows(rows: pa.Table, layout: Layout) -> pa.Table:
    """Of each key the last row."""
    numbered = rows.select([layout.key]).append_column("at", pa.array(range(rows.num_rows), pa.int64()))
    last = numbered.group_by(layout.key).aggregate([("at", "max")])["at_max"]
    # Not sliced: Delta's library fails on nested columns of slices.
    return rows.combine_chunks().take(last.combine_chunks().sort())


def _to_time(ms: pa.ChunkedArray) -> pa.ChunkedArray:
    # A timestamp is any number of the producer's choice: Iceberg's and Delta's libraries fail on years beyond 9999.
    fits = pc.and_(pc.greater_equal(ms, YEARS_MS[0]), pc.less_equal(ms, YEARS_MS[1]))
    return pc.if_else(fits, ms, None).cast(pa.timestamp("ms", tz="UTC")).cast(TIME)


def live_rows(rows: pa.Table) -> pa.Table:
    """The rows of an upsert that are not those of tombstones."""
    return rows.filter(pc.invert(rows[DELETED])).drop_columns([DELETED])


def require_columns(name: str, layout: Layout, columns: pa.Schema, *, has_decoded_key: bool = False) -> None:
    """Raise TableError unless a table has the columns of a layout, and that of decoded keys only if they are."""
    if layout.decoded_key in columns.names and not has_decoded_key:
        raise TableError(
            f"{name} has the column {layout.decoded_key}: it was made with --key-schema",
            "Give the options that it was made with, or name a new table",
        )
    found = {each.name: each.type for each in standard_schema(columns)}
    wanted = standard_schema(layout.schema)
    wrong = [each.name for each in wanted if found.get(each.name) != each.type]
    if wrong:
        raise TableError(
            f"{name} has no column {wrong[0]} of type {wanted.field(wrong[0]).type}: it was made with another "
            "--value-schema or --columns, or by another program",
            "Give the options that it was made with, or name a new table",
        )
