"""The seam `Clock` over virtual time.

Zone: deterministic. Monotonic time starts at 0 in each process; wall time belongs to the machine, and may jump.
"""

from __future__ import annotations

from typing import Protocol

from ottla.seams import Inputs, Instant
from ottla.sim.world import MS, WALL_START_MS, Action, Timeline


class ClockedProcess(Protocol):
    """What a clock uses of the process that it belongs to."""

    timeline: Timeline
    alive: bool
    inputs: Inputs | None

    @property
    def wall_skew_ms(self) -> int:
        """How far the wall time of its machine is ahead."""

    def post_turn(self, delay_ns: int, kind: str, action: Action, *arguments: object) -> None:
        """Run a turn after the delay, if the process is still alive."""

    def run_callback(self, callback: Action) -> None:
        """Within a turn: call the broker; a planned defect may strike."""


class ProcessClock:
    """The time of one process."""

    def __init__(self, process: ClockedProcess) -> None:
        self._process = process
        self._timeline = process.timeline
        self._start_ns = process.timeline.now_ns
        self._asked: int | None = None
        self._scheduled: int | None = None

    def now(self) -> Instant:
        """The present time. Virtual time does not advance within a turn."""
        now_ns = self._timeline.now_ns
        wall_ms = WALL_START_MS + now_ns // MS + self._process.wall_skew_ms
        return Instant(now_ns - self._start_ns, wall_ms)

    def set_alarm(self, mono_ns: int | None) -> None:
        """Ask for one `on_alarm`. An event that is already scheduled earlier checks again when it runs."""
        self._asked = mono_ns
        if mono_ns is None:
            return
        due = max(mono_ns + self._start_ns, self._timeline.now_ns)
        if self._scheduled is None or due < self._scheduled:
            self._scheduled = due
            self._timeline.schedule_at(due, "alarm", self._on_alarm_due, due)

    def _on_alarm_due(self, due: int) -> None:
        if due != self._scheduled:
            return
        self._scheduled = None
        if self._asked is None or not self._process.alive:
            return
        if self._asked + self._start_ns > self._timeline.now_ns:
            self.set_alarm(self._asked)
            return
        self._process.post_turn(0, "on_alarm", self._deliver_alarm)

    def _deliver_alarm(self) -> None:
        # Check again: turns between the event and this one may have moved or cancelled the alarm.
        asked, inputs = self._asked, self._process.inputs
        if asked is None or inputs is None:
            return
        if asked + self._start_ns > self._timeline.now_ns:
            self.set_alarm(asked)
            return
        self._asked = None
        self._process.run_callback(inputs.on_alarm)
