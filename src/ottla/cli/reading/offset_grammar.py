"""The offset grammar of `ottla consume`: where to start, and where to stop.

Zone: pure. Text to bounds, bounds to offsets; the times and ends of partitions come in as numbers.

    start | end | N | +N (after the start) | -N (before the end) | @TIME
    FROM:TO, each of them one of the above (":TO" from the start; TO itself is not read)
    TIME: ms or s since 1970, 2026-11-21, 2026-11-21T08:30:00Z (UTC unless it has a zone), or -90s -5m -1h -2d
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_RELATIVE = re.compile(r"-(\d+)(ms|s|m|h|d)", re.ASCII)
_MILLISECONDS_FROM = 10**11
"""Plain numbers from this one on are milliseconds; smaller ones are seconds (which reach the year 5138)."""
_LARGEST = 2**63 - 1


class Base(Enum):
    """The point from which a bound counts."""

    START = "start"
    END = "end"
    ZERO = "offset"
    TIME = "time"


class Bound(NamedTuple):
    """A point in a partition: `number` after START, before END, as such, or a time in ms."""

    base: Base
    number: int = 0

    def resolve_offset(self, start: int, end: int, at_time: Callable[[int], int]) -> int:
        """The offset, moved into [start, end] of the partition; `at_time` finds the first offset of a time."""
        if self.base is Base.START:
            offset = start + self.number
        elif self.base is Base.END:
            offset = end - self.number
        elif self.base is Base.TIME:
            offset = at_time(self.number)
        else:
            offset = self.number
        return min(max(offset, start), end)


class OffsetRange(NamedTuple):
    """Where to read: from `first` on, up to but without `until` (None: no end)."""

    first: Bound
    until: Bound | None = None


START = Bound(Base.START)
END = Bound(Base.END)


def parse_range(text: str, now_ms: int) -> OffsetRange:
    """Parse the grammar above; relative times count from `now_ms`. Raises ValueError with what is wrong."""
    whole = _parse_bound(text, now_ms)
    if whole is not None:
        return OffsetRange(whole)
    # A time contains colons itself, so that each colon is tried as the separator of FROM:TO.
    for at, character in enumerate(text):
        if character == ":" and (found := _parse_pair(text[:at], text[at + 1 :], now_ms)) is not None:
            return found
    raise ValueError(f"{text!r} is not an offset: use start, end, N, +N, -N, @time or FROM:TO")


def parse_bound(text: str, now_ms: int) -> Bound:
    """Parse one offset of the grammar, not a range. Raises ValueError with what is wrong."""
    found = parse_range(text, now_ms)
    if found.until is not None:
        raise ValueError(f"{text!r} is a range: give one offset")
    return found.first


def _parse_pair(left: str, right: str, now_ms: int) -> OffsetRange | None:
    # "@A:B" means two times, if B is one: the second "@" may be left out.
    if left.startswith("@") and right and not right.startswith("@"):
        right = f"@{right}" if _parse_bound(f"@{right}", now_ms) is not None else right
    first = _parse_bound(left, now_ms) if left else START
    until = _parse_bound(right, now_ms) if right else None
    if first is None or (right and until is None):
        return None
    return OffsetRange(first, until)


def _parse_bound(text: str, now_ms: int) -> Bound | None:
    if text in ("start", "beginning", "earliest"):
        return START
    if text in ("end", "latest"):
        return END
    if text.startswith("@"):
        time = parse_time(text[1:], now_ms)
        return None if time is None else Bound(Base.TIME, time)
    digits = text.lstrip("+-")
    if len(text) - len(digits) > 1 or not digits.isascii() or not digits.isdigit() or int(digits) > _LARGEST:
        return None
    base = {"+": Base.START, "-": Base.END}.get(text[0], Base.ZERO)
    return Bound(base, int(digits))


def parse_time(text: str, now_ms: int) -> int | None:
    """A TIME of the grammar in ms since 1970; None when the text is not one."""
    if text.isascii() and text.isdigit():
        number = int(text)
        time = number if number >= _MILLISECONDS_FROM else number * 1_000
        return time if time <= _LARGEST else None
    if (relative := _RELATIVE.fullmatch(text)) is not None:
        return max(0, now_ms - int(relative[1]) * _UNITS_MS[relative[2]])
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0, round(moment.timestamp() * 1_000))
