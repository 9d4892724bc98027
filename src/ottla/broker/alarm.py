"""One alarm for two rooms: the purgatory's deadlines and the logs'.

Zone: deterministic. Only which deadline is the earlier one is decided here.
"""

from __future__ import annotations

from ottla.seams import Clock, Instant


class SharedAlarm:
    """The clock as the purgatory sees it; the logs' next deadline is told beside it."""

    __slots__ = ("_armed", "_clock", "_purgatory_ns", "logs_ns", "now")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.now
        self._purgatory_ns: int | None = None
        self.logs_ns: int | None = None
        self._armed: int | None = None

    def alarm(self, mono_ns: int | None) -> None:
        """The purgatory's wish."""
        self._purgatory_ns = mono_ns
        self._arm()

    def for_logs(self, mono_ns: int | None) -> None:
        """The logs' wish."""
        self.logs_ns = mono_ns
        self._arm()

    def fired(self) -> Instant:
        """The alarm has rung: it is not set any more, and the purgatory says anew what it wants. Returns the time."""
        self._armed = None
        self._purgatory_ns = None  # an empty purgatory wants nothing: its old wish would ring for ever
        return self._clock.now()

    def settle(self) -> None:
        """After an alarm: set the next one."""
        self._arm()

    def _arm(self) -> None:
        wishes = [each for each in (self._purgatory_ns, self.logs_ns) if each is not None]
        earliest = min(wishes, default=None)
        if earliest != self._armed:
            self._armed = earliest
            self._clock.alarm(earliest)
