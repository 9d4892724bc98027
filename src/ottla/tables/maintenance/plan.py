"""Which files of a table become one, and the report of a maintenance.

Zone: pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

DAY_S: Final = 86_400
MAX_FILES: Final = 5_000_000
"""Most files of one table: each costs about 300 bytes of memory here."""
MAX_GROUP: Final = 1000
"""Most files that become one: the footer of each is in memory."""
ATTEMPTS: Final = 10
"""Of a commit, when others commit at the same time."""
_SMALL: Final = 0.75

File = TypeVar("File")


class MaintenanceOptions(NamedTuple):
    """How old is old, and how large is small."""

    older_than_s: float | None = None
    """None: as the table's properties say, else the format's default."""
    target_bytes: int = 128 << 20
    """Of a file; those above three quarters of it stay as they are."""
    is_dry_run: bool = False
    commit_s: float = 60.0
    """Least time between commits of compacted files: a copy that runs meanwhile repeats its commit after each."""


@dataclass(slots=True)
class MaintenanceReport:
    """Numbers of what was done, or would be with `is_dry_run`."""

    files_compacted: int = 0
    files_written: int = 0
    bytes_compacted: int = 0
    bytes_written: int = 0
    """0 with `is_dry_run`: it is known when they are written."""
    commits: int = 0
    """That replaced files."""
    snapshots_expired: int = 0
    """0 for Delta, whose log deletes old versions by itself."""
    files_deleted: int = 0
    """Which no snapshot or version names."""


class TableMaintainer(Protocol):
    """A table that can be maintained while a copy writes it."""

    name: str
    """Of the table, for messages."""

    def maintain_table(
        self, options: MaintenanceOptions, on_compacted: Callable[[int, int], object]
    ) -> MaintenanceReport:
        """Compact, expire and delete. Raises TableError.

        on_compacted: called with the rows and bytes of files that became one.
        """


def plan_groups(files: Sequence[File], size_of: Callable[[File], int], target_bytes: int) -> list[list[File]]:
    """Groups of small files, each of about the target's size, in the order of the files."""
    groups: list[list[File]] = []
    total = 0
    for file in files:
        size = size_of(file)
        if size >= target_bytes * _SMALL:
            continue
        if not groups or total + size > target_bytes or len(groups[-1]) == MAX_GROUP:
            groups.append([])
            total = 0
        groups[-1].append(file)
        total += size
    return [group for group in groups if len(group) > 1]
