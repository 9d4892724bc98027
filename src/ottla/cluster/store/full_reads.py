"""Notes what is set while everything is read: the read may have taken the names before, and must not remove it.

Zone: deterministic. A read of all resources takes several turns. Meanwhile a notification, or a change by this broker,
may add a resource. It is not older than what the read finds, because a session answers its requests in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

K = TypeVar("K")


class FullReads(Generic[K]):
    """The reads of all resources that are in progress."""

    def __init__(self) -> None:
        self._newer: list[set[K]] = []

    @contextmanager
    def track_changes(self) -> Iterator[set[K]]:
        """The resources that are set until the read ends."""
        newer: set[K] = set()
        self._newer.append(newer)
        try:
            yield newer
        finally:
            self._newer = [each for each in self._newer if each is not newer]

    def note_set(self, resource: K) -> None:
        """Note that a resource is set from the present state of the store."""
        for newer in self._newer:
            newer.add(resource)
