"""Virtual time: one heap of events, run one by one, and a hash that proves that two runs are equal.

Zone: deterministic. Independent of brokers, disks and networks. Two events of the same time run in the order in which
they were scheduled; nothing else decides an order.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable
from typing import Final

US: Final = 1_000
MS: Final = 1_000_000
SECOND: Final = 1_000_000_000
"""Nanoseconds."""

WALL_START_MS: Final = 1_700_000_000_000
"""Wall time at the beginning of every run: a fixed day, so that seeds replay on any date."""

Action = Callable[..., object]


class Timeline:
    """The event heap, ordered by (time, sequence), and the virtual clock."""

    __slots__ = ("_heap", "_sequence", "_trace", "events", "log", "now_ns")

    def __init__(self, log: Callable[[str], None] | None = None) -> None:
        self.now_ns = 0
        self.events = 0
        self.log = log
        """Receives one line per noted event (`ottla sim --trace`)."""
        self._heap: list[tuple[int, int, str, Action, tuple[object, ...]]] = []
        self._sequence = 0
        self._trace = hashlib.blake2b(digest_size=16)

    def schedule_at(self, time_ns: int, kind: str, action: Action, *arguments: object) -> None:
        """Run `action(*arguments)` at that time (not before now), after everything scheduled earlier for it."""
        self._sequence += 1
        heapq.heappush(self._heap, (max(time_ns, self.now_ns), self._sequence, kind, action, arguments))

    def schedule_after(self, delay_ns: int, kind: str, action: Action, *arguments: object) -> None:
        """Run `action(*arguments)` after the delay."""
        self.schedule_at(self.now_ns + delay_ns, kind, action, *arguments)

    def run_next_event(self) -> bool:
        """Run the next event. False if there is none."""
        if not self._heap:
            return False
        self.now_ns, sequence, kind, action, arguments = heapq.heappop(self._heap)
        self.events += 1
        self._trace.update(b"%d %d %s\n" % (self.now_ns, sequence, kind.encode()))
        action(*arguments)
        return True

    def run_until(self, time_ns: int) -> None:
        """Run every event up to and including that time, and set the clock to it."""
        while self._heap and self._heap[0][0] <= time_ns:
            self.run_next_event()
        self.now_ns = max(self.now_ns, time_ns)

    def run_while(self, waiting: Callable[[], bool], limit_ns: int) -> bool:
        """Run events while `waiting()` holds, at most until `limit_ns`. True if it stopped holding in time."""
        while waiting():
            if not self._heap or self._heap[0][0] > limit_ns:
                return False
            self.run_next_event()
        return True

    def run_until_holds(self, holds: Callable[[], bool], limit_ns: int, step_ns: int) -> bool:
        """Run in steps until `holds()`, an expensive check, at most for `limit_ns`. True if it holds."""
        end = self.now_ns + limit_ns
        while self.now_ns < end:
            if holds():
                return True
            self.run_until(self.now_ns + step_ns)
        return holds()

    def trace_fact(self, what: str, payload: bytes | bytearray | memoryview = b"") -> None:
        """Add a fact about the present event, and its bytes, to the trace hash and to the log."""
        self._trace.update(what.encode())
        self._trace.update(payload)
        if self.log is not None:
            size = f" [{len(payload)} B]" if len(payload) else ""
            self.log(f"{self.now_ns / SECOND:12.6f} {what}{size}")

    @property
    def trace_hash(self) -> str:
        """32 hexadecimal digits over every event and fact so far: equal only for equal runs."""
        return self._trace.hexdigest()
