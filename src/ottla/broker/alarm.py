"""One alarm of the clock for two users: the purgatory and the logs.

Zone: deterministic. Sets the clock's alarm to the earlier deadline of the two.
"""

from __future__ import annotations

from ottla.seams import Clock, Instant


class SharedAlarm:
    """The clock for the purgatory, which shares its alarm with the logs."""

    __slots__ = ("_armed", "_clock", "_purgatory_ns", "logs_ns", "now")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.now = clock.now
        self._purgatory_ns: int | None = None
        self.logs_ns: int | None = None
        self._armed: int | None = None

    def set_alarm(self, mono_ns: int | None) -> None:
        """Set the purgatory's next deadline."""
        self._purgatory_ns = mono_ns
        self._set_earliest()

    def set_logs_alarm(self, mono_ns: int | None) -> None:
        """Set the logs' next deadline."""
        self.logs_ns = mono_ns
        self._set_earliest()

    def on_fired(self) -> Instant:
        """Note that the alarm has fired, so it is not set any more. Returns the time."""
        self._armed = None
        self._purgatory_ns = None  # the purgatory sets its next deadline again, or none if it is empty
        return self._clock.now()

    def set_next_alarm(self) -> None:
        """Set the next alarm after one has been handled."""
        self._set_earliest()

    def _set_earliest(self) -> None:
        wishes = [each for each in (self._purgatory_ns, self.logs_ns) if each is not None]
        earliest = min(wishes, default=None)
        # Most turns leave the earliest deadline as it is: the comparison saves them a call of the clock.
        if earliest != self._armed:
            self._armed = earliest
            self._clock.set_alarm(earliest)
