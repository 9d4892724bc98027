"""Pauses that keep a producer at a number of records per second.

Zone: deterministic. The clock is an argument, and the caller sleeps.
"""

from __future__ import annotations

from typing import Final

_SHORTEST_S: Final = 0.002
"""Shorter pauses are collected, because a sleep is not so exact."""


class Throttler:
    """As Kafka's ThroughputThrottler."""

    def __init__(self, per_second: float, start_s: float) -> None:
        """per_second: negative for no limit."""
        self._per_second = per_second
        self._start_s = start_s
        self._owed_s = 0.0

    def pause_after(self, sent: int, now_s: float) -> float:
        """Seconds to sleep after this number of records; 0 for none."""
        elapsed = now_s - self._start_s
        if self._per_second < 0 or elapsed <= 0 or sent / elapsed <= self._per_second:
            return 0.0
        # One record's time for each record that comes too early, so that a slow start is not made up in one burst.
        self._owed_s += 1 / self._per_second
        if self._owed_s < _SHORTEST_S:
            return 0.0
        pause, self._owed_s = self._owed_s, 0.0
        return pause
