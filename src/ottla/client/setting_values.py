"""Values of client settings: from text or a type of Python to the type of the row, within the range of the row.

Zone: pure. The rows are in the dataclasses of settings. An error never shows the value of a password.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from ottla.client.errors import ConfigError
from ottla.config.options import BOOLEAN, FUNCTION, INTEGER, LIST, OBJECTS, PASSWORD, Bounds, Option


def parse_setting(row: Option, raw: object, *, strict: bool = False) -> Any:
    """A value in the type of its row, from text or from that type. Raises ConfigError, which names the key.

    Also accepts numbers and booleans of other libraries, and subclasses of str. A list may be text with commas, or a
    list of strings. strict: refuse a number where text is wanted, and keep blanks around text.
    """
    if row.type is BOOLEAN:
        return _parse_boolean(row, raw)
    if row.type is INTEGER:
        return _parse_integer(row, raw)
    if row.type in (LIST, OBJECTS):
        return _parse_list(row, raw)
    if row.type is FUNCTION:
        if not callable(raw):
            raise ConfigError(f"{row.name}={raw!r} is not a function", "Give a function")
        return raw
    if strict and not isinstance(raw, str):
        raise ConfigError(f"{row.name} is {type(raw).__name__}, not text", "Give a string")
    return plain_text(raw) if strict else _parse_text(row, raw)


def check_settings(rows: Mapping[str, Option], config: object) -> None:
    """Check that all fields are within the ranges of their rows. Raises ConfigError."""
    for row in rows.values():
        value = getattr(config, row.attribute)
        if row.allowed is None or row.is_allowed(value):
            continue
        if isinstance(row.allowed, Bounds):
            raise ConfigError(f"{row.name}={value} is out of range", f"Use {row.allowed.low} to {row.allowed.high}")
        raise ConfigError(f"{row.name}={value} is not known", f"Use one of {row.words}")


def join_words(value: Any) -> Any:
    """A list as text with commas; anything else as it is."""
    return ",".join(value) if isinstance(value, tuple) else value


def plain_text(raw: object) -> str:
    """A value as text; for a subclass of str its content, not its `str()` (which is the name for an enum)."""
    return str.__str__(raw) if isinstance(raw, str) else str(raw)


def _parse_boolean(row: Option, raw: object) -> bool:
    text = plain_text(raw).strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"{row.name}={raw!r} is not a boolean", "Use true or false")
    return text == "true"


def _parse_integer(row: Option, raw: object) -> int:
    text = plain_text(raw).strip()
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{row.name}={text} is not a whole number") from None


def _parse_text(row: Option, raw: object) -> str:
    if isinstance(raw, str):
        return str.__str__(raw).strip()
    if not isinstance(raw, bool):
        with suppress(TypeError):
            return str(operator.index(raw))  # type: ignore[arg-type]  # TypeError: not an integer
    shown = type(raw).__name__ if row.type is PASSWORD else f"{raw!r}, which is {type(raw).__name__}"
    raise ConfigError(f"{row.name} is {shown}, not text", "Give a string")


def _parse_list(row: Option, raw: object) -> tuple[Any, ...]:
    if isinstance(raw, str):
        return tuple(word for each in str.__str__(raw).split(",") if (word := each.strip()))
    if not isinstance(raw, list | tuple):
        raise ConfigError(f"{row.name}={raw!r} is not a list", "Give a list of strings, or text with commas")
    return tuple(raw) if row.type is OBJECTS else tuple(_parse_text(row, each) for each in raw)
