"""A hierarchical timing wheel: many deadlines, one alarm.

Zone: pure. Buckets and arithmetic on ticks only; timers define what happens when they expire.

Level 0 has `size` buckets of one tick each; level k has buckets `size` times as wide as level k-1. A deadline goes
into the lowest level that reaches it, so adding and cancelling are O(1); when a bucket of a higher level comes due, its
entries fall one level down. Empty ticks cost nothing: due buckets wait in a heap, one entry per bucket, not per task.

    tick 1 ms, size 20:  level 0 |..20 buckets of 1 ms..|  level 1 |..20 of 20 ms..|  level 2 |..20 of 400 ms..|  …
"""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from typing import Final

TICK_MS: Final = 1
WHEEL_SIZE: Final = 20


class Timer(ABC):
    """A deadline in the wheel. `expire` is called at most once, and never after `cancel`."""

    __slots__ = ("bucket", "deadline_ms")

    def __init__(self) -> None:
        self.bucket: dict[Timer, None] | None = None
        self.deadline_ms = 0

    def cancel(self) -> None:
        """Remove the deadline; does nothing if it has passed or was never set."""
        if self.bucket is not None:
            del self.bucket[self]
            self.bucket = None

    @abstractmethod
    def expire(self) -> None:
        """Called when the deadline is reached."""


class TimingWheel:
    """Timers by deadline, in milliseconds of a monotonic clock."""

    def __init__(self, now_ms: int, tick_ms: int = TICK_MS, size: int = WHEEL_SIZE) -> None:
        assert tick_ms > 0
        assert size > 1
        self._tick = tick_ms
        self._size = size
        self._now = now_ms - now_ms % tick_ms
        self._buckets: dict[tuple[int, int], dict[Timer, None]] = {}  # (width, start) → timers, oldest first
        self._due: list[tuple[int, int]] = []  # heap of (start, width), one per bucket

    def add_timer(self, timer: Timer, deadline_ms: int) -> bool:
        """Arm a timer. Returns False, and does not arm it, when the deadline has already passed."""
        assert timer.bucket is None
        if deadline_ms < self._now + self._tick:  # due within the present tick: the caller expires it at once
            return False
        timer.deadline_ms = deadline_ms
        self._place_timer(timer)
        return True

    def _place_timer(self, timer: Timer) -> None:
        # The lowest level whose buckets, counted from now on, reach the deadline.
        width = self._tick
        while timer.deadline_ms >= self._now - self._now % width + width * self._size:
            width *= self._size
        start = timer.deadline_ms - timer.deadline_ms % width
        bucket = self._buckets.get((width, start))
        if bucket is None:
            bucket = self._buckets[(width, start)] = {}
            heapq.heappush(self._due, (start, width))
        bucket[timer] = None
        timer.bucket = bucket

    def next_ms(self) -> int | None:
        """The next time at which `advance_to` has work; None when no timer is armed."""
        while self._due:
            start, width = self._due[0]
            if self._buckets[(width, start)]:
                return start
            # All timers of this bucket were cancelled: without this, the alarm would fire for nothing.
            heapq.heappop(self._due)
            del self._buckets[(width, start)]
        return None

    def advance_to(self, now_ms: int) -> list[Timer]:
        """Move to `now_ms`, and return the timers that are due, in the order of their ticks."""
        expired: list[Timer] = []
        while self._due and self._due[0][0] <= now_ms:
            start, width = heapq.heappop(self._due)
            bucket = self._buckets.pop((width, start))
            # Before the bucket is emptied: its timers are placed relative to its start, not to the last call's time.
            self._now = max(self._now, start)
            self._empty_bucket(bucket, width, expired)
        self._now = max(self._now, now_ms - now_ms % self._tick)
        return expired

    def _empty_bucket(self, bucket: dict[Timer, None], width: int, expired: list[Timer]) -> None:
        for timer in bucket:
            timer.bucket = None
            # Timers of a wide bucket fall to a lower level, unless their tick is the present one.
            if width == self._tick or timer.deadline_ms < self._now + self._tick:
                expired.append(timer)
            else:
                self._place_timer(timer)
