"""A clock that only tests move.

Zone: deterministic.
"""

from __future__ import annotations

from ottla.seams import Instant


class StillClock:
    """Implements `ottla.seams.Clock` without alarms."""

    def __init__(self) -> None:
        self.ns = 10**12

    def now(self) -> Instant:
        return Instant(self.ns, self.ns // 10**6)

    def set_alarm(self, mono_ns: int | None) -> None:
        raise AssertionError("no alarm is needed")
