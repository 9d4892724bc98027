"""A configuration key as one row: name, type, default, check, importance, who may change it at run time, and prose.

Zone: pure. Rows, their parsing and their rendering live here; which keys exist stands in `topic` and `broker`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import Field, field, fields
from enum import Enum, IntEnum
from math import isfinite
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")

Value = bool | int | float | str | tuple[str, ...] | None
"""What a key can hold after parsing; None: not set (the key has no default, or another key stands in for it)."""

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


class ConfigError(Exception):
    """A value that the configuration refuses. `key` names the row, `message` the cause and what is allowed."""

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
    """How likely it is that an operator has to think about the key."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Dynamic(Enum):
    """Who may change the key while the broker runs (KIP-226)."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Check(NamedTuple):
    """A condition on a parsed value; `text` completes the sentence "must be …"."""

    text: str
    holds: Callable[[Any], bool]


class Row(NamedTuple):
    """One key. `synonyms`: keys of the broker that stand in for it, strongest first (topic keys and aliases)."""

    name: str
    type: Type
    default: Value
    doc: str
    check: Check | None
    importance: Importance
    dynamic: Dynamic
    synonyms: tuple[str, ...]

    @property
    def attribute(self) -> str:
        """Name of the field that holds the value."""
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
) -> T:
    """A dataclass field that carries its row."""
    row = Row(name, type_, cast("Value", default), doc, check, importance, dynamic, synonyms)
    return field(default=default, metadata={"row": row})


def rows_of(owner: type[object]) -> Iterator[Row]:
    """The rows of a configuration dataclass, in order of declaration."""
    for item in fields(cast("Any", owner)):
        if "row" in cast("Field[object]", item).metadata:
            yield item.metadata["row"]


def at_least(low: float) -> Check:
    """Numbers from `low` upwards."""
    return Check(f"at least {low}", lambda value: value is None or value >= low)


def between(low: float, high: float) -> Check:
    """Numbers from `low` to `high`, both included."""
    return Check(f"between {low} and {high}", lambda value: value is None or low <= value <= high)


def one_of(*allowed: str) -> Check:
    """One of the words."""
    return Check(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def subset_of(*allowed: str) -> Check:
    """A list of distinct words out of these, at least one."""

    def holds(value: tuple[str, ...]) -> bool:
        return bool(value) and len(set(value)) == len(value) and all(word in allowed for word in value)

    return Check(f"a list of distinct words out of {', '.join(allowed)}", holds)


NOT_EMPTY = Check("not empty", bool)

_BOUNDS = {
    Type.SHORT: (-(2**15), 2**15 - 1),
    Type.INT: (-(2**31), INT_MAX),
    Type.LONG: (-(2**63), LONG_MAX),
}
_SHOWN = 80


def parse(row: Row, text: str) -> Value:
    """The value that `text` means for this key, checked. Raises ConfigError naming the key."""
    value = _parse_type(row, text.strip())
    if row.check is not None and not row.check.holds(value):
        raise ConfigError(row.name, f"{_shown(row, text)} is not allowed; it must be {row.check.text}")
    return value


def _parse_type(row: Row, text: str) -> Value:
    if row.type in _BOUNDS:
        return _parse_integer(row, text)
    if row.type is Type.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise ConfigError(row.name, f"{_shown(row, text)} is neither true nor false")
        return text.lower() == "true"
    if row.type is Type.DOUBLE:
        return _parse_double(row, text)
    if row.type is Type.LIST:
        return tuple(word.strip() for word in text.split(",")) if text else ()
    return text


def _parse_integer(row: Row, text: str) -> int:
    digits = text[1:] if text[:1] in ("-", "+") else text
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
        raise ConfigError(row.name, f"{_shown(row, text)} is not an integer")
    low, high = _BOUNDS[row.type]
    if not low <= int(text) <= high:
        raise ConfigError(row.name, f"{text} is outside {low}..{high} ({row.type.name.lower()})")
    return int(text)


def _parse_double(row: Row, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ConfigError(row.name, f"{_shown(row, text)} is not a number") from None
    if not isfinite(value):
        raise ConfigError(row.name, f"{_shown(row, text)} is not a finite number")
    return value


def _shown(row: Row, text: str) -> str:
    if row.sensitive:
        return "the given value"
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")


def render(value: Value) -> str | None:
    """The text form, as DescribeConfigs shows it and `parse` reads it back; None stays None."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
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
