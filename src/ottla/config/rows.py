"""A configuration key as one row: name, type, default, check, importance, scope of changes, documentation.

Zone: pure. Rows, their parsing and their rendering. `topic` and `broker` have the keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, field, fields
from enum import Enum, IntEnum
from math import isfinite
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

Value = bool | int | float | str | tuple[str, ...] | None
"""The parsed value of a key. None: not set, because the key has no default or another key replaces it."""

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1
THREADS_MAX = 256
"""Limit of everything that runs concurrently: each one takes memory and turns of the loop."""
PARTITIONS_MAX = 10_000
"""Limit of partitions of a topic that the broker creates by itself, as in one CreateTopics."""


class ConfigError(Exception):
    """An invalid value. `key` is the name of the row, `message` has the cause and the allowed values."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key
        self.message = message


class Type(IntEnum):
    """Type of a key; the numbers are those of DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class Importance(Enum):
    """How likely an operator has to set the key."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Dynamic(Enum):
    """Whether the key may change while the broker runs (KIP-226). Keys that only the start reads are read-only."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Check(NamedTuple):
    """A condition on a parsed value; `text` completes the sentence "must be …"."""

    text: str
    holds: Callable[[Any], bool]


class Row(NamedTuple):
    """One key. `synonyms`: keys of the broker that provide its default, or aliases, strongest first."""

    name: str
    type: Type
    default: Value
    doc: str
    check: Check | None
    importance: Importance
    dynamic: Dynamic
    synonyms: tuple[str, ...]
    unused: str = ""
    """The reason why the key has no effect; empty if it has one."""
    since: str = "0.1.0"
    """The first version with this key."""

    @property
    def attribute(self) -> str:
        """The name of the field with the value."""
        return self.name.replace(".", "_")

    @property
    def sensitive(self) -> bool:
        """Whether the value is never shown."""
        return self.type is Type.PASSWORD


HIGH, MEDIUM, LOW = Importance.HIGH, Importance.MEDIUM, Importance.LOW
READ_ONLY, PER_BROKER, CLUSTER_WIDE = Dynamic.READ_ONLY, Dynamic.PER_BROKER, Dynamic.CLUSTER_WIDE


def key(
    name: str,
    type_: Type,
    default: T,
    doc: str,
    check: Check | None = None,
    importance: Importance = MEDIUM,
    dynamic: Dynamic = READ_ONLY,
    synonyms: tuple[str, ...] = (),
    unused: str = "",
    since: str = "0.1.0",
) -> T:
    """Define a dataclass field with its row."""
    row = Row(name, type_, cast("Value", default), doc, check, importance, dynamic, synonyms, unused, since)
    return field(default=default, metadata={"row": row})


def rows_of(owner: type[object]) -> Iterator[Row]:
    """The rows of a configuration dataclass, in order of declaration."""
    for item in fields(cast("Any", owner)):
        if "row" in cast("Field[object]", item).metadata:
            yield item.metadata["row"]


def at_least(low: float) -> Check:
    """A check for numbers from `low` on."""
    return Check(f"at least {low}", lambda value: value is None or value >= low)


def between(low: float, high: float) -> Check:
    """A check for numbers from `low` to `high`, both included."""
    return Check(f"between {low} and {high}", lambda value: value is None or low <= value <= high)


def one_of(*allowed: str) -> Check:
    """A check for one of these words."""
    return Check(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def subset_of(*allowed: str) -> Check:
    """A check for a list of distinct words out of these, which may be empty."""

    def holds(value: tuple[str, ...]) -> bool:
        return len(set(value)) == len(value) and all(word in allowed for word in value)

    return Check(f"a list of distinct words out of {', '.join(allowed)}", holds)


NOT_EMPTY = Check("not empty", bool)

_BOUNDS = {
    Type.SHORT: (-(2**15), 2**15 - 1),
    Type.INT: (-(2**31), INT_MAX),
    Type.LONG: (-(2**63), LONG_MAX),
}
_SHOWN = 80
_PIECE = re.compile(r"\\[\\,\s]|.", re.DOTALL)
"""One character of a comma list, or a backslash with the character that it escapes."""
_TO_KEEP = re.compile(r",|\\(?=[\\,\s]|\Z)|\A\s|\s\Z")
"""The characters that need a backslash."""


def parse_value(row: Row, text: str) -> Value:
    """Parse and check the text of this key. Raises ConfigError with the key."""
    value = split_list(text) if row.type is Type.LIST else _parse_type(row, text.strip())
    if row.check is not None and not row.check.holds(value):
        raise ConfigError(row.name, f"{quote_value(row, text)} is not allowed; it must be {row.check.text}")
    return value


def _parse_type(row: Row, text: str) -> Value:
    if row.type in _BOUNDS:
        return _parse_integer(row, text)
    if row.type is Type.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ConfigError(row.name, f"{quote_value(row, text)} is not allowed; it must be true or false")
        return text.lower() == "true"
    if row.type is Type.DOUBLE:
        return _parse_double(row, text)
    return text


def split_list(text: str) -> tuple[str, ...]:
    """The words of a comma list without blanks around them; a backslash escapes a comma, a blank or a backslash."""
    if "\\" not in text:
        return tuple(word.strip() for word in text.split(",")) if text.strip() else ()
    pieces = _PIECE.findall(text)
    words: list[list[str]] = [[]]
    for piece in pieces:
        if piece == ",":
            words.append([])
        else:
            words[-1].append(piece)
    return tuple(_join_word(word) for word in words)


def _join_word(pieces: list[str]) -> str:
    while pieces and pieces[0].isspace():
        del pieces[0]
    while pieces and pieces[-1].isspace():
        del pieces[-1]
    return "".join(piece[1] if len(piece) == 2 else piece for piece in pieces)


def list_word(word: str) -> str:
    """A word as it is written in a comma list, so that `split_list` returns it unchanged."""
    return _TO_KEEP.sub(r"\\\g<0>", word)


def _parse_integer(row: Row, text: str) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    # Python's `int` also takes underscores and other alphabets' digits, which Kafka refuses. 20 digits are enough for a
    # LONG; converting a text of a million digits would take long.
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise ConfigError(row.name, f"{quote_value(row, text)} is not an integer{_allowed_values(row)}")
    low, high = _BOUNDS[row.type]
    if not low <= int(text) <= high:
        raise ConfigError(row.name, f"{text} is outside {low}..{high} ({row.type.name.lower()}){_allowed_values(row)}")
    return int(text)


def _parse_double(row: Row, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(row.name, f"{quote_value(row, text)} is not a number{_allowed_values(row)}") from None
    # `float` accepts "nan" and "inf". Every comparison with NaN is false, so a check would not be meaningful.
    if not isfinite(value):
        raise ConfigError(row.name, f"{quote_value(row, text)} is not a finite number{_allowed_values(row)}")
    return value


def _allowed_values(row: Row) -> str:
    return f"; it must be {row.check.text}" if row.check is not None else ""


def quote_value(row: Row, text: str) -> str:
    """A value as it appears in a message: shortened, and without passwords."""
    if row.sensitive:
        return "the given value"
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def render_value(value: Value) -> str | None:
    """The text of a value, as in DescribeConfigs; `parse_value` reverses it. None stays None."""
    if value is None:
        return None
    # Before the number: a bool is an int, and `str` would render it as True.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(map(list_word, value))
    return str(value)


_UNITS_MS = {"ms": 1, "seconds": 1_000, "minutes": 60_000, "hours": 3_600_000}


def resolve_ms(values: Mapping[str, int | None], names: tuple[str, ...]) -> int | None:
    """Milliseconds from the first set key of `names`; the last word of a name is its unit.

    Negative values mean "no limit" and stay -1 whatever the unit.
    """
    for name in names:
        value = values.get(name)
        if value is not None:
            return value * _UNITS_MS[name.rsplit(".", 1)[1]] if value >= 0 else -1
    return None
