"""`auto.offset.reset`: where to start reading if there is no position.

Zone: pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ottla.client.errors import ConfigError

_DURATION: Final = re.compile(
    r"P(?:(?P<d>\d+)D)?(?:T(?=\d)(?:(?P<h>\d+)H)?(?:(?P<m>\d+)M)?(?:(?P<s>\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)
_LATEST: Final = -1
_EARLIEST: Final = -2


class OffsetReset(NamedTuple):
    """A reset policy."""

    timestamp: int | None
    """Timestamp for ListOffsets: -1 the end, -2 the start; None: `age_ms` has the policy, or there is none."""
    age_ms: int | None = None

    @property
    def is_none(self) -> bool:
        """Whether to raise an error instead of resetting."""
        return self.timestamp is None and self.age_ms is None

    def timestamp_at(self, wall_ms: int) -> int:
        """The timestamp to look up, at the wall time `wall_ms`."""
        if self.age_ms is not None:
            return max(0, wall_ms - self.age_ms)
        assert self.timestamp is not None
        return self.timestamp


EARLIEST_RESET: Final = OffsetReset(_EARLIEST)
LATEST_RESET: Final = OffsetReset(_LATEST)


def parse_reset(text: str) -> OffsetReset:
    """earliest, latest, none, or by_duration:<ISO-8601 duration> (KIP-1106). Raises ConfigError."""
    fixed = {"earliest": EARLIEST_RESET, "latest": LATEST_RESET, "none": OffsetReset(None)}.get(text.lower())
    if fixed is not None:
        return fixed
    kind, _, duration = text.partition(":")
    found = _DURATION.fullmatch(duration)
    if kind.lower() != "by_duration" or found is None or not any(found.groups()):
        raise ConfigError(f"auto.offset.reset={text} is not known", "Use earliest, latest, none or by_duration:PT1H30M")
    days, hours, minutes = (int(found[unit] or 0) for unit in "dhm")
    seconds = float(found["s"] or 0)
    return OffsetReset(None, int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000))
