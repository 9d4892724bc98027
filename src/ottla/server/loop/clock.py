"""The machine's time, constant within a turn, and the one alarm.

Zone: real. Implements `ottla.seams.Clock`. The code that starts a turn sets `instant` to None: an attribute, not a
call, because it happens once per request. The receiver of the alarm decides what is due.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ottla.seams import Instant

_monotonic_ns = time.monotonic_ns
_time_ns = time.time_ns
_new = tuple.__new__  # called once per turn: NamedTuple's own `__new__` would cost another call


class RealClock:
    """Monotonic and wall time of the operating system."""

    __slots__ = ("_due", "_handle", "_loop", "_on_alarm", "instant")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: int | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._on_alarm: Callable[[], None] | None = None
        self.instant: Instant | None = None
        """The time of the current turn, read at the first `now`; None at the start of each turn."""

    def set_receiver(self, on_alarm: Callable[[], None]) -> None:
        """Set the receiver of the alarm; must precede `set_alarm`."""
        self._on_alarm = on_alarm

    def now(self) -> Instant:
        """The time of this turn."""
        instant = self.instant
        if instant is None:
            self.instant = instant = _new(Instant, (_monotonic_ns(), _time_ns() // 1_000_000))
        return instant

    def set_alarm(self, mono_ns: int | None) -> None:
        """Replace the alarm; None: no alarm. An earlier timer is kept, since it re-arms itself when it fires: moving
        the alarm back, as nearly every request does, then costs nothing."""
        self._due = mono_ns
        if mono_ns is None:
            return
        handle = self._handle
        when = mono_ns / 1e9
        if handle is not None:
            if handle.when() <= when:
                return
            handle.cancel()
        self._handle = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._handle = None
        due = self._due
        if due is None:
            return
        # The alarm was moved back after this timer was set.
        if time.monotonic_ns() < due:
            self.set_alarm(due)
            return
        self._due = None
        self.instant = None
        assert self._on_alarm is not None, "alarm before connect"
        self._on_alarm()


class GivenWallClock(RealClock):
    """The machine's monotonic time, and wall time that a function returns: for tests that move it."""

    __slots__ = ("_read_wall_ms",)

    def __init__(self, loop: asyncio.AbstractEventLoop, read_wall_ms: Callable[[], int]) -> None:
        """read_wall_ms: milliseconds since 1970; it is called in the broker's thread."""
        super().__init__(loop)
        self._read_wall_ms = read_wall_ms

    def now(self) -> Instant:
        """The time of this turn."""
        if self.instant is None:
            self.instant = Instant(_monotonic_ns(), self._read_wall_ms())
        return self.instant
