"""The seam between the copy of a topic and a table format, and the commit that no two writers can both make.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol

from ottla.tables.errors import CommitConflict, ConcurrentWriterError, TableError
from ottla.tables.offsets import TableOffsets

if TYPE_CHECKING:
    import pyarrow as pa

_ATTEMPTS: Final = 5


class TableWriter(Protocol):
    """A table that takes rows and offsets in one step."""

    name: str
    """Of the table, for messages."""

    def read_offsets(self) -> TableOffsets | None:
        """The offsets in the table now; None for a table without rows. Raises TableError."""

    def append_rows(self, rows: pa.Table, before: TableOffsets, after: TableOffsets) -> None:
        """Add rows and set the offsets, both or neither. Raises CommitConflict if the table changed meanwhile."""

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
    if list(columns) != ([] if wanted == "none" else [wanted]):
        found = ", ".join(columns) or "none"
        raise TableError(
            f"{name} is partitioned by {found}, not by {wanted}", "Give its --partition-by, or name a new table"
        )


def _text(offsets: TableOffsets | None) -> str:
    return "none" if offsets is None else offsets.encode_text()
