"""Options as a user wrote them, parsed by their rows. Errors are those of Spark's own Kafka source.

Zone: pure. Turns text into values. An option that has no row cannot be read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from ottla.config.options import BOOLEAN, DURATION, INTEGER, Option, nearest_name
from ottla.spark.errors import BadOption
from ottla.spark.kafka_keys import PREFIX
from ottla.types import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2
Offsets = dict[TopicPartition, int]
_UNITS: Final = {"us": 0.001, "ms": 1, "s": 1e3, "m": 60e3, "min": 60e3, "h": 3600e3, "d": 86400e3}
_MISSPELT: Final = 0.85
"""How similar an unknown option is to a known one if it is refused."""


class ParsedOptions:
    """Options by the names of their rows; users may write names in any case."""

    def __init__(self, options: Mapping[str, str], rows: Mapping[str, Option]) -> None:
        self._options = {key.lower(): value for key, value in options.items()}
        self._rows = rows

    def __contains__(self, name: str) -> bool:
        return self._rows[name].name.lower() in self._options

    def text(self, name: str) -> str | None:
        """The value without surrounding space, None when the option is not set."""
        value = self._options.get(self._rows[name].name.lower())
        return None if value is None else value.strip()

    def value(self, name: str) -> Any:
        """The value in the type of its row; the row's default when the option is not set. Raises BadOption."""
        row, text = self._rows[name], self.text(name)
        if text is None or (text == "" and row.type is not INTEGER):
            return row.default
        if row.type is INTEGER:
            return _parse_integer(row, text)
        if row.type is DURATION:
            return duration_ms(name, text)
        if row.type is BOOLEAN:
            return _choose_word(row._replace(allowed=("true", "false")), text.lower()) == "true"
        return _choose_word(row, text.lower()) if row.allowed is not None else text

    def fields(self, rows: Mapping[str, Option]) -> dict[str, Any]:
        """The values of rows by the names of their fields. Raises BadOption."""
        return {row.attribute: self.value(name) for name, row in rows.items()}

    def kafka(self) -> dict[str, str]:
        """The options that start with `kafka.` and have no row, without that prefix."""
        own = {name.lower() for name in self._rows}
        ours = {key: value for key, value in self._options.items() if key.startswith(PREFIX) and key not in own}
        return {key[len(PREFIX) :]: value for key, value in ours.items()}

    def refuse_misspelt(self, refused: Mapping[str, str]) -> None:
        """Raise BadOption for a refused option, and for one that is nearly a known one.

        Spark passes on options of all kinds, so that an unknown option alone is not an error.
        `refused`: options that are not supported, and why.
        """
        for name, reason in refused.items():
            if name.lower() in self._options:
                raise BadOption(name, f"is not supported: {reason}")
        names = {name.lower(): name for name in self._rows}
        for key in self._options:
            if key not in names and not key.startswith(PREFIX):
                close = nearest_name(key, names, _MISSPELT)
                if close is not None:
                    raise BadOption(key, f"is not known; did you mean {names[close]}?")


def _parse_integer(row: Option, text: str) -> int:
    if not re.fullmatch(r"[+-]?\d{1,19}", text) or not row.is_allowed(int(text)):
        raise BadOption(row.name, f"must be a whole number, {row.requirement}, not {text!r}")
    return int(text)


def _choose_word(row: Option, word: str) -> str:
    if not row.is_allowed(word):
        raise BadOption(row.name, f"must be {row.requirement}, not {word!r}")
    return word


def partition_numbers(name: str, text: str, least: int) -> Offsets:
    """Numbers per partition from JSON like {"topic":{"0":23,"1":-1}}. Raises BadOption."""
    example = f'must be JSON like {{"topicA":{{"0":23,"1":{max(least, LATEST)}}}}}, not {text!r}'
    try:
        found = json.loads(text)
        pairs = {TopicPartition(t, int(p)): number for t, parts in found.items() for p, number in parts.items()}
    except (ValueError, AttributeError):
        raise BadOption(name, example) from None
    if not pairs or not all(type(number) is int and number >= least for number in pairs.values()):
        raise BadOption(name, example)
    return pairs


def duration_ms(name: str, text: str) -> int:
    """Milliseconds of a duration such as 500, 500ms, 30s, 15m, 2h, 1d. `name`: the option's, for BadOption."""
    match = re.fullmatch(r"(\d{1,15})\s*(us|ms|s|m|min|h|d)?", text.strip().lower())
    if match is None:
        raise BadOption(name, f"must be a duration such as 30s or 15m, not {text!r}")
    return int(int(match[1]) * _UNITS[match[2] or "ms"])
