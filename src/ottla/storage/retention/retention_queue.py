"""Which logs retention looks at: those that changed, and those whose oldest segment has become too old.

Zone: deterministic. A log at rest waits in a heap by the wall time at which its oldest segment is due; it has one place
there, and is looked at once it is reached. What makes a log due earlier, or by size, is a change of it
(`LogDirContext.wake`).
"""

from __future__ import annotations

import heapq
from typing import Final

from ottla.types import TopicPartition

_STALE_MIN: Final = 64


class RetentionQueue:
    """Partitions by the time at which their logs are to be looked at, ms of the wall clock."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[TopicPartition, int] = {}
        self._heap: list[tuple[int, TopicPartition]] = []
        """May have places that `_due` does not name any more."""

    def __len__(self) -> int:
        return len(self._due)

    def schedule_log(self, tp: TopicPartition, due_ms: int) -> None:
        """Look at a log then, at the latest: an earlier time that was named before stays."""
        if due_ms >= self._due.get(tp, due_ms + 1):
            return
        self._due[tp] = due_ms
        heapq.heappush(self._heap, (due_ms, tp))
        if len(self._heap) > 2 * len(self._due) + _STALE_MIN:
            self._heap = [(due, each) for each, due in self._due.items()]
            heapq.heapify(self._heap)

    def forget_log(self, tp: TopicPartition) -> None:
        """Its log is gone."""
        self._due.pop(tp, None)

    def take_due(self, now_ms: int) -> list[TopicPartition]:
        """The partitions whose time has come, the earliest first; they are in here no more."""
        due: list[TopicPartition] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at, tp = heapq.heappop(self._heap)
            if self._due.get(tp) == at:
                del self._due[tp]
                due.append(tp)
        return due
