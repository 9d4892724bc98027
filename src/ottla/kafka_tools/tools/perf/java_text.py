"""Numbers, dates and metrics as Java's classes print them.

Zone: pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import ROUND_HALF_UP, Decimal
from typing import Final

_NAMES: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}
_FIELDS: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+|'")


def quotient(dividend: float, divisor: float) -> float:
    """As Java divides: by zero it is NaN or infinite."""
    if divisor:
        return dividend / divisor
    return math.copysign(math.inf, dividend) if dividend else math.nan


def decimal_text(number: float, digits: int) -> str:
    """As `%.4f` prints a double: halves are rounded up."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return _NAMES[number]
    return f"{Decimal(repr(float(number))).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP):f}"


def metric_text(metrics: Mapping[str, float]) -> str:
    """The table of --print-metrics, in alphabetical order; names are `group:name:{tags}`."""
    wide = max(map(len, metrics), default=0)
    lines = [f"{name:<{wide}} : {decimal_text(metrics[name], 3)}" for name in sorted(metrics)]
    return "\n".join((f"\n{'Metric Name':<{wide}}   Value", *lines))


def date_text(pattern: str, time: datetime) -> str:
    """The time by a pattern of SimpleDateFormat. Raises ValueError for one that is not valid or not known here."""
    return "".join(_field_text(found, time) for found in _FIELDS.finditer(pattern))


def _field_text(found: re.Match[str], time: datetime) -> str:
    word, letter = found[0], found[2]
    if word == "'":
        raise ValueError("Unterminated quote")
    if word == "''":
        return "'"
    if letter is None:
        return word if found[1] is None else found[1].replace("''", "'")
    make = _LETTERS.get(letter)
    if make is None:
        raise ValueError(f"Illegal pattern character '{letter}'")
    return make(time, len(word))


def _padded(read: Callable[[datetime], int]) -> Callable[[datetime, int], str]:
    return lambda time, width: f"{read(time):0{width}}"


def _year(time: datetime, width: int) -> str:
    return f"{time.year % 100:02}" if width == 2 else f"{time.year:0{width}}"


def _month(time: datetime, width: int) -> str:
    return f"{time:%B}" if width > 3 else f"{time:%b}" if width == 3 else f"{time.month:0{width}}"


def _offset(time: datetime, width: int) -> str:
    text = f"{time:%z}"
    if not time.utcoffset():
        return "Z"
    return {1: text[:3], 2: text}.get(width, f"{text[:3]}:{text[3:]}")


_LETTERS: Final[Mapping[str, Callable[[datetime, int], str]]] = {
    "y": _year,
    "M": _month,
    "d": _padded(lambda time: time.day),
    "D": _padded(lambda time: time.timetuple().tm_yday),
    "u": _padded(lambda time: time.isoweekday()),
    "E": lambda time, width: f"{time:%A}" if width > 3 else f"{time:%a}",
    "a": lambda time, _: f"{time:%p}",
    "H": _padded(lambda time: time.hour),
    "k": _padded(lambda time: time.hour or 24),
    "K": _padded(lambda time: time.hour % 12),
    "h": _padded(lambda time: time.hour % 12 or 12),
    "m": _padded(lambda time: time.minute),
    "s": _padded(lambda time: time.second),
    "S": _padded(lambda time: time.microsecond // 1000),
    "z": lambda time, _: f"{time:%Z}",
    "Z": lambda time, _: f"{time:%z}",
    "X": _offset,
}
