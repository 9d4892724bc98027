"""Who waits for the next change of a partition.

Zone: deterministic. A partition keeps its watchers in dicts, in the order of their coming.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class PartitionListener(Protocol):
    """Somebody who waits for the next change of a partition; told once, then forgotten."""

    def wake(self) -> None:
        """More can be read, or the partition is not what it was."""
        ...


def wake_all(watchers: Iterable[PartitionListener]) -> None:
    """Tell everybody."""
    for watcher in watchers:
        watcher.wake()
