"""The seam between the copy of a topic and a table format, and the commit that no two writers can both make.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.tables.column_types import ColumnTypes
from ottla.tables.errors import CommitConflict, ConcurrentWriterError, TableError
from ottla.tables.offsets import TableOffsets
from ottla.tables.partitionings import NONE
from ottla.tables.rows import BYTES, Layout

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPTS: Final = 5


class Making(NamedTuple):
    """How a table is made that is not there; one that is there must be the same."""

    layout: Layout = BYTES
    """With `is_upsert` the table has one row per key."""
    partition_by: str = NONE
    """none; day or hour of the record's timestamp; bucket[NUMBER], the hash of its key, with Iceberg."""


MAKING: Final = Making()
"""Rows of bytes, without partitions."""


class TableWriter(Protocol):
    """A table that takes rows and offsets in one step."""

    name: str
    """Of the table, for messages."""
    types: ColumnTypes

    @property
    def columns(self) -> pa.Schema:
        """The columns of the table, as of the last `read_offsets`."""

    def read_offsets(self) -> TableOffsets | None:
        """The offsets in the table now; None for a table without rows. Raises TableError."""

    def append_rows(self, rows: pa.Table, before: TableOffsets, after: TableOffsets) -> None:
        """Add rows and set the offsets, both or neither. Raises CommitConflict if the table changed meanwhile.

        Columns that only the rows have are added to the table, at the latest by this.
        """

    def close(self) -> None:
        """Release locks."""


def commit_rows(
    writer: TableWriter, rows: pa.Table, expected: TableOffsets | None, before: TableOffsets, after: TableOffsets
) -> None:
    """Append rows if the table has the expected offsets, also while others change its files.

    expected: what the table contained after the last commit. before: the first offsets of the rows. Raises TableError.
    """
    conflict: CommitConflict | None = None
    for _ in range(_ATTEMPTS):
        # Read before each attempt: a commit that another writer made meanwhile shows here.
        found = writer.read_offsets()
        if conflict is not None and found == after:
            return  # The earlier attempt took effect, although its answer was an error.
        if found != expected:
            raise ConcurrentWriterError(
                f"{writer.name}: another writer moved the table's offsets from {_text(expected)} to {_text(found)}",
                "Stop one of the two, and start the other again: it continues from the table's offsets",
            )
        try:
            writer.append_rows(rows, before, after)
            return
        except CommitConflict as error:
            conflict = error
    assert conflict is not None
    raise conflict


def require_partitioning(name: str, wanted: str, columns: Sequence[str]) -> None:
    """Raise TableError if a table is partitioned by other columns than the wanted one ("none": not at all)."""
    if list(columns) != ([] if wanted == NONE else [wanted]):
        found = ", ".join(columns) or "none"
        raise TableError(
            f"{name} is partitioned by {found}, not by {wanted}", "Give its partitioning, or name a new table"
        )


def require_mode(name: str, layout: Layout, *, is_upsert: bool) -> None:
    """Raise TableError if a table with one row per key is written with all records, or the other way round."""
    if is_upsert != layout.is_upsert:
        has, how = ("one row per key", "with") if is_upsert else ("all records", "without")
        raise TableError(f"{name} has {has}", f"Write it {how} upsert, or name a new table")


def _text(offsets: TableOffsets | None) -> str:
    return "none" if offsets is None else offsets.encode_text()
