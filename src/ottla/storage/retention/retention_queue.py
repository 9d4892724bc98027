"""Schedules the logs that retention checks because their oldest segment becomes too old.

Zone: deterministic. A log without changes waits in a heap by the wall time at which its oldest segment is due; it has
one entry there, and is checked when that is reached. Only a change of the log can make it due earlier, or by size; then
it is checked for that (`LogDirContext.on_log_changed`).
"""

from __future__ import annotations

import heapq
from typing import Final

from ottla.types import TopicPartition

_STALE_MIN: Final = 64


class RetentionQueue:
    """Partitions by the time at which their logs are to be checked, ms of the wall clock."""

    __slots__ = ("_due", "_heap")

    def __init__(self) -> None:
        self._due: dict[TopicPartition, int] = {}
        self._heap: list[tuple[int, TopicPartition]] = []
        """May have entries that `_due` does not have any more."""

    def __len__(self) -> int:
        return len(self._due)

    def schedule_log(self, tp: TopicPartition, due_ms: int) -> None:
        """Schedule a log for that time at the latest: an earlier time that was set before stays."""
        if due_ms >= self._due.get(tp, due_ms + 1):
            return
        self._due[tp] = due_ms
        heapq.heappush(self._heap, (due_ms, tp))
        if len(self._heap) > 2 * len(self._due) + _STALE_MIN:
            self._heap = [(due, each) for each, due in self._due.items()]
            heapq.heapify(self._heap)

    def forget_log(self, tp: TopicPartition) -> None:
        """Remove a log that was deleted."""
        self._due.pop(tp, None)

    def take_due(self, now_ms: int) -> list[TopicPartition]:
        """Remove and return the partitions whose time has come, the earliest first."""
        due: list[TopicPartition] = []
        while self._heap and self._heap[0][0] <= now_ms:
            at, tp = heapq.heappop(self._heap)
            if self._due.get(tp) == at:
                del self._due[tp]
                due.append(tp)
        return due
