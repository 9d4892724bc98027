"""The periodic check which logs have segments to remove, over all logs of a broker.

Zone: deterministic. Visits logs that have changed since the last check, and those that became due by time, a few at a
time in idle moments; `retention_enforcer` removes the segments of one log.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ottla.errors import ApiError
from ottla.seams import Clock, Failure, Instant
from ottla.storage.background_tasks import BackgroundTasks
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.retention.retention_enforcer import delete_old_segments, retention_due_ms, retention_needs_flush
from ottla.types import TopicPartition

_logger = logging.getLogger(__name__)

_STALE_MIN: Final = 64


class RetentionQueue:
    """Partitions whose logs become due by time, by ms of the wall clock.

    A log without changes has one entry, for the time at which its oldest segment is due. Only a change of the log can
    make it due earlier, or by size; then it is checked for that (`LogDirContext.on_log_changed`).
    """

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


class RetentionTask:
    """Retention of all logs."""

    __slots__ = ("_clock", "_dirs", "_get_log", "_queue", "_tasks")

    def __init__(
        self,
        dirs: Sequence[LogDir],
        tasks: BackgroundTasks,
        clock: Clock,
        get_log: Callable[[TopicPartition], Log | None],
    ) -> None:
        """`get_log` returns the log of a partition if it is in service."""
        self._dirs = dirs
        self._tasks = tasks
        self._clock = clock
        self._get_log = get_log
        self._queue = RetentionQueue()

    def forget_log(self, tp: TopicPartition) -> None:
        """Forget when the log of a partition is due: it is deleted."""
        self._queue.forget_log(tp)

    def check_logs(self) -> None:
        """Check the logs that have changed, and those that have become due by time."""
        for each in self._dirs:
            if each.offline is None:
                self._tasks.add_task(self._apply_retention, each.take_unchecked())
        due = (self._get_log(tp) for tp in self._queue.take_due(self._clock.now().wall_ms))
        self._tasks.add_task(self._apply_retention, (log for log in due if log is not None))

    def _apply_retention(self, log: Log) -> bool:
        # The log may have been deleted, or replaced by a copy, while it was queued.
        if self._get_log(log.tp) is not log:
            return False
        now = self._clock.now()
        # 1. Removing all segments would block on the disk: flush first, then try again.
        # 2. Remove; a log whose next segment becomes due later waits for that time, one that could not remove all that
        #    it should is checked again at the next check.
        if retention_needs_flush(log, now):
            log.flush(lambda outcome: self._retain_later(log, outcome))
            return False
        has_dropped = self._drop_old(log, now)
        due_ms = retention_due_ms(log, now)
        if due_ms is not None and due_ms > now.wall_ms:
            self._queue.schedule_log(log.tp, due_ms)
        elif due_ms is not None:
            self._check_again(log)
        return has_dropped

    def _check_again(self, log: Log) -> None:
        """Check the log again at the next retention check."""
        for each in self._dirs:
            if each.logs.get(log.tp) is log:
                each.check_again(log.tp)

    def _drop_old(self, log: Log, now: Instant) -> bool:
        try:
            dropped = delete_old_segments(log, now)
        except ApiError as error:
            _logger.warning("retention of %s: %s", log.tp, error.message)
            return False
        if dropped:
            text = "retention of %s: removed %d segments, the log starts at offset %d"
            _logger.info(text, log.tp, dropped, log.start_offset)
        return dropped > 0

    def _retain_later(self, log: Log, outcome: int | Failure) -> None:
        if isinstance(outcome, Failure):
            self._check_again(log)
        else:
            self._tasks.add_task(self._apply_retention, (log,))
