"""Deadlines by key: to move one to a later time costs one dict write, whatever their number.

Zone: pure. Times are monotonic ns. The heap has at least one entry at or before each deadline. When an entry reaches
the top and its deadline was moved meanwhile, an entry with the present deadline replaces it.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class DeadlineKind(IntEnum):
    """The event at a deadline."""

    __hash__ = int.__hash__  # Enum's own is a call in Python, and each heartbeat looks a key up

    SESSION = 0
    """The session of a member expires."""
    JOIN = 1
    """A rebalance stops waiting for members."""
    SYNC = 2
    """Members that have not fetched their assignment are removed."""
    SWEEP = 3
    """The search for expired offsets begins."""


_SLACK = 64
"""The heap is rebuilt when it has more than twice as many entries as there are deadlines, and this many more."""


class DeadlineKey(NamedTuple):
    """The event, group and member of a deadline."""

    kind: DeadlineKind
    group_id: str = ""
    member_id: str = ""


class Deadlines:
    """All deadlines of one shard."""

    __slots__ = ("_deadlines", "_heap")

    def __init__(self) -> None:
        self._deadlines: dict[DeadlineKey, int] = {}
        self._heap: list[tuple[int, DeadlineKey]] = []

    def set_deadline(self, key: DeadlineKey, deadline_ns: int) -> None:
        """Add or move a deadline."""
        known = self._deadlines.get(key)
        self._deadlines[key] = deadline_ns
        # A later deadline leaves its old, earlier entry in the heap: `next_deadline` corrects it. Heartbeats only do
        # this.
        if known is None or deadline_ns < known:
            heapq.heappush(self._heap, (deadline_ns, key))
            if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
                self._heap = [(when, which) for which, when in self._deadlines.items()]
                heapq.heapify(self._heap)

    def clear_deadline(self, key: DeadlineKey) -> None:
        """Remove a deadline if it exists. Its entry in the heap is dropped by `next_deadline`."""
        self._deadlines.pop(key, None)

    def get_deadline(self, key: DeadlineKey) -> int | None:
        """The deadline of a key; None when there is none."""
        return self._deadlines.get(key)

    def next_deadline(self) -> tuple[int, DeadlineKey] | None:
        """The next deadline and its key; None when there is no deadline."""
        heap, deadlines = self._heap, self._deadlines
        while heap:
            found, key = heap[0]
            real = deadlines.get(key)
            if real == found:
                return heap[0]
            if real is None or real < found:  # removed, or an earlier entry of this key is in the heap
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (real, key))
        return None

    def __len__(self) -> int:
        return len(self._deadlines)
