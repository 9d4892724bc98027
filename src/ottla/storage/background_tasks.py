"""What every log needs from time to time, one log after the other: in idle moments, and when there are none, anyway.

Zone: deterministic. What is done to a log is the manager's; here is only when. Under load a broker may have no idle
moment for hours, and a disk would fill with what retention has long given up: so some logs have their turn regardless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ottla.seams import Clock
from ottla.storage.log import Log
from ottla.storage.timers import Timers

LOGS_PER_STEP: Final = 16
"""Logs that a step looks at."""
CHANGES_PER_STEP: Final = 4
"""Logs whose files a step changes: each costs as much as dozens of looks. A step is a few milliseconds at most."""
PATIENCE_NS: Final = 100_000_000
"""So long idle moments are waited for, then a step is taken without one."""

BackgroundTask = Callable[[Log], bool]
"""Does something to a log; whether it changed files."""


class BackgroundTasks:
    """The work that waits."""

    __slots__ = ("_clock", "_queue", "_queued", "_timers", "_watching")

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self._queue: deque[tuple[BackgroundTask, Log]] = deque()
        self._queued: set[tuple[BackgroundTask, Log]] = set()
        self._watching = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, chore: BackgroundTask, logs: Iterable[Log]) -> None:
        """Do this to each of the logs, once, even if it was asked for before."""
        for log in logs:
            if (chore, log) not in self._queued:
                self._queued.add((chore, log))
                self._queue.append((chore, log))
        self._watch()

    def step(self) -> bool:
        """Look after a few logs; True when more wait."""
        changes = 0
        for _ in range(min(LOGS_PER_STEP, len(self._queue))):
            chore, log = self._queue.popleft()
            self._queued.discard((chore, log))
            changes += chore(log)
            if changes == CHANGES_PER_STEP:
                break
        return bool(self._queue)

    def clear(self) -> None:
        """Nothing is to happen any more."""
        self._queue.clear()
        self._queued.clear()

    def _watch(self) -> None:
        if self._queue and not self._watching:
            self._watching = True
            self._timers.add(self._clock.now().mono_ns + PATIENCE_NS, self._lose_patience)

    def _lose_patience(self) -> None:
        self._watching = False
        self.step()
        self._watch()
