"""Runs actions at deadlines: the timers of the storage package, driven by the broker's one alarm.

Zone: pure. A heap; times are monotonic nanoseconds, actions with equal ones run in the order they were added.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

Action = Callable[[], None]


class Timers:
    """Deadlines and their actions. An action cannot be cancelled: it checks again whether it is still needed."""

    __slots__ = ("_count", "_heap", "next_ns")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Action]] = []
        self._count = 0
        self.next_ns: int | None = None
        """The earliest deadline; None when there is none."""

    def add_timer(self, deadline_ns: int, action: Action) -> None:
        """Run `action` at the first `run_due` at or after the deadline."""
        self._count += 1
        # The count keeps the order of equal deadlines, and two actions are never compared, which have no order.
        heapq.heappush(self._heap, (deadline_ns, self._count, action))
        self.next_ns = self._heap[0][0]

    def clear_timers(self) -> None:
        """Drop all actions."""
        self._heap.clear()
        self.next_ns = None

    def run_due(self, now_ns: int) -> None:
        """Run the actions that are due. One that is added meanwhile waits for the next call, even when it is due."""
        # All due actions are taken before the first one runs: an action that schedules itself for the same time would
        # otherwise keep this loop from ending.
        due: list[Action] = []
        while self._heap and self._heap[0][0] <= now_ns:
            due.append(heapq.heappop(self._heap)[2])
        self.next_ns = self._heap[0][0] if self._heap else None
        for action in due:
            action()
