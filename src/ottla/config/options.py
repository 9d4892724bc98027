"""An option of a client, a Spark format, the retry service or a pipeline as one row.

Zone: pure. A row is written beside the code that reads it, as a field of a dataclass: default, range and text are there
and nowhere else. Parsing, errors and the pages of docs/ come from the rows. Each room has its own class of error, so a
row only answers what is allowed. Keys of brokers and topics have more: see `rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import Field, field, fields
from difflib import get_close_matches
from enum import Enum
from typing import Any, NamedTuple, TypeVar, cast

T = TypeVar("T")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class OptionType(Enum):
    """The type of a value, with its name for people."""

    TEXT = "string"
    PASSWORD = "password"  # noqa: S105 - the name of the type
    BOOLEAN = "boolean"
    INTEGER = "integer"
    NUMBER = "number"
    DURATION = "duration"
    LIST = "list"
    JSON = "JSON"
    FUNCTION = "function"
    OBJECTS = "objects"
    MAPPING = "mapping"


TEXT, PASSWORD, BOOLEAN, INTEGER = OptionType.TEXT, OptionType.PASSWORD, OptionType.BOOLEAN, OptionType.INTEGER
NUMBER, DURATION, LIST, JSON = OptionType.NUMBER, OptionType.DURATION, OptionType.LIST, OptionType.JSON
FUNCTION, OBJECTS, MAPPING = OptionType.FUNCTION, OptionType.OBJECTS, OptionType.MAPPING


class Bounds(NamedTuple):
    """Numbers that are allowed, both ends included; None: no bound."""

    low: float
    high: float | None = None


class Option(NamedTuple):
    """One option."""

    name: str
    """As users write it."""
    type: OptionType
    default: Any
    doc: str
    allowed: Bounds | tuple[str, ...] | None = None
    """A range of numbers, or the words to choose from; None: anything of the type."""
    scope: str = ""
    """Who reads it, where that is not everything on its page."""
    default_text: str = ""
    """The default in words, where it depends on something."""
    old_names: tuple[str, ...] = ()
    """Names that are accepted with a warning."""
    unused: str = ""
    """Why the option has no effect; empty if it has one."""
    since: str = "0.1.0"
    """The first version with this option."""
    attribute: str = ""
    """The name of the field with the value."""

    def is_allowed(self, value: Any) -> bool:
        """Whether a value of the right type is in the range, or one of the words. None is where it is the default."""
        if value is None:
            return self.default is None
        if isinstance(self.allowed, Bounds):
            return bool(self.allowed.low <= value and (self.allowed.high is None or value <= self.allowed.high))
        return self.allowed is None or value in self.allowed

    @property
    def words(self) -> str:
        """The words to choose from, as "a, b, c"."""
        return "" if self.allowed is None or isinstance(self.allowed, Bounds) else ", ".join(self.allowed)

    @property
    def requirement(self) -> str:
        """What a value must be, as "at least 1", "between 1 and 9" or "a, b or c"; empty without a range."""
        if isinstance(self.allowed, Bounds):
            low, high = self.allowed
            return f"at least {low}" if high is None else f"between {low} and {high}"
        *first, last = self.allowed or ("",)
        return f"{', '.join(first)} or {last}" if first else last


def option(
    name: str,
    type_: OptionType,
    default: T,
    doc: str,
    allowed: Bounds | tuple[str, ...] | None = None,
    **more: Any,
) -> T:
    """Define a dataclass field with its row. `more`: other fields of `Option`."""
    row = Option(name, type_, default, doc, allowed, **more)
    return field(default=default, metadata={"option": row}, repr=type_ is not PASSWORD)


def options_of(owner: type[object]) -> dict[str, Option]:
    """The rows of a dataclass by name, in order of declaration."""
    found: dict[str, Option] = {}
    for each in fields(cast("Any", owner)):
        row = cast("Field[object]", each).metadata.get("option")
        if row is not None:
            found[row.name] = row._replace(attribute=each.name)
    return found


def option_table(*rows: Option) -> Mapping[str, Option]:
    """Rows without a field of their own, by name: options from which one value is computed."""
    return {row.name: row for row in rows}


def nearest_name(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most similar to a wrong one, if one is similar enough."""
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def suggest_name(name: str, known: Iterable[str]) -> str:
    """The nearest known name as "Did you mean …?"; empty if none is near."""
    close = nearest_name(name, known)
    return f"Did you mean {close}?" if close is not None else ""
