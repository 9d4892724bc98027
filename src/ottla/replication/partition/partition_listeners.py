"""Listeners that wait for the next change of a partition.

Zone: deterministic. A partition keeps its listeners in dicts, in the order of their registration.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class PartitionListener(Protocol):
    """Waits for the next change of a partition. It is woken once, then removed."""

    def wake(self) -> None:
        """React to a change: more can be read, or the role has changed."""
        ...


def wake_all(watchers: Iterable[PartitionListener]) -> None:
    """Wake all listeners."""
    for watcher in watchers:
        watcher.wake()
