"""Runs periodic work on every log, a few logs at a time: in idle moments, or after a time limit without one.

Zone: deterministic. The manager defines the tasks; this module decides when they run. Under load a broker may have no
idle moment for hours, and a disk would fill with segments past their retention: so after a time a step runs regardless.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from ottla.seams import Clock
from ottla.storage.log import Log
from ottla.storage.timers import Timers

LOGS_PER_STEP: Final = 16
"""The most logs that one step visits."""
CHANGES_PER_STEP: Final = 4
"""The most logs whose files one step changes: each costs as much as dozens of visits without a change. A step takes a
few milliseconds at most."""
PATIENCE_NS: Final = 100_000_000
"""How long to wait for an idle moment before a step runs without one."""

BackgroundTask = Callable[[Log], bool]
"""Works on a log; returns whether it changed files."""


class BackgroundTasks:
    """The queue of tasks and the logs that they are for."""

    __slots__ = ("_clock", "_queue", "_queued", "_timers", "_watching")

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock = clock
        self._timers = timers
        self._queue: deque[tuple[BackgroundTask, Log]] = deque()
        self._queued: set[tuple[BackgroundTask, Log]] = set()
        self._watching = False

    def __len__(self) -> int:
        return len(self._queue)

    def add_task(self, chore: BackgroundTask, logs: Iterable[Log]) -> None:
        """Queue the task for each of the logs, unless it is queued for that log already."""
        for log in logs:
            if (chore, log) not in self._queued:
                self._queued.add((chore, log))
                self._queue.append((chore, log))
        self._start_timer()

    def run_some(self) -> bool:
        """Run the tasks of a few logs; True when more are queued."""
        changes = 0
        for _ in range(min(LOGS_PER_STEP, len(self._queue))):
            chore, log = self._queue.popleft()
            # Before it runs: a change of the log during the task queues it again.
            self._queued.discard((chore, log))
            changes += chore(log)
            if changes == CHANGES_PER_STEP:
                break
        return bool(self._queue)

    def clear_tasks(self) -> None:
        """Drop all queued tasks."""
        self._queue.clear()
        self._queued.clear()

    def _start_timer(self) -> None:
        if self._queue and not self._watching:
            self._watching = True
            self._timers.add_timer(self._clock.now().mono_ns + PATIENCE_NS, self._on_patience_over)

    def _on_patience_over(self) -> None:
        # The timer runs one step and is set again while tasks are left. With an empty queue it ends, so that an idle
        # broker is not woken for nothing.
        self._watching = False
        self.run_some()
        self._start_timer()
