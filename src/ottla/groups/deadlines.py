"""Deadlines by key: moving one later costs one dict write, whatever their number.

Zone: pure. Times are monotonic ns. A heap holds at least one entry at or before each deadline; an entry that comes up
too early, because its deadline was moved later meanwhile, is put back.
"""

from __future__ import annotations

import heapq
from enum import IntEnum
from typing import NamedTuple


class DeadlineKind(IntEnum):
    """What happens at a deadline."""

    __hash__ = int.__hash__  # Enum's own is a call in Python, and each heartbeat looks a key up

    SESSION = 0
    """A member was not heard of."""
    JOIN = 1
    """A rebalance has waited for members long enough."""
    SYNC = 2
    """Members have not fetched their assignment."""
    SWEEP = 3
    """Expired offsets are looked for."""


_SLACK = 64
"""So many entries may stand for nothing any more, besides as many as there are deadlines."""


class DeadlineKey(NamedTuple):
    """What a deadline is for."""

    kind: DeadlineKind
    group_id: str = ""
    member_id: str = ""


class Deadlines:
    """Deadlines."""

    __slots__ = ("_deadlines", "_heap")

    def __init__(self) -> None:
        self._deadlines: dict[DeadlineKey, int] = {}
        self._heap: list[tuple[int, DeadlineKey]] = []

    def set(self, key: DeadlineKey, deadline_ns: int) -> None:
        """Make or move a deadline."""
        known = self._deadlines.get(key)
        self._deadlines[key] = deadline_ns
        if known is None or deadline_ns < known:
            heapq.heappush(self._heap, (deadline_ns, key))
            if len(self._heap) > 2 * len(self._deadlines) + _SLACK:
                self._heap = [(when, which) for which, when in self._deadlines.items()]
                heapq.heapify(self._heap)

    def clear(self, key: DeadlineKey) -> None:
        """Drop a deadline; fine if there is none."""
        self._deadlines.pop(key, None)

    def get(self, key: DeadlineKey) -> int | None:
        """A deadline."""
        return self._deadlines.get(key)

    def first(self) -> tuple[int, DeadlineKey] | None:
        """The next deadline, and its key."""
        heap, deadlines = self._heap, self._deadlines
        while heap:
            found, key = heap[0]
            real = deadlines.get(key)
            if real == found:
                return heap[0]
            if real is None or real < found:  # gone, or another entry stands for it
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (real, key))
        return None

    def __len__(self) -> int:
        return len(self._deadlines)
