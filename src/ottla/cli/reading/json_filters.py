"""`consume --json`: which records have a value that is JSON in which a condition holds.

Zone: pure. A condition is a path and, unless the field need only exist, an operator and a value:

    .user.id=5   .items[0].name~^a   ."a field"!=null   .price>=9.5   .deleted
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ottla.cli.reading.filters import Filter
from ottla.cli.views.record_text import Shown

Condition = Callable[[Any], bool]

_STEP = re.compile(r'\.(?:([A-Za-z_][\w-]*)|("(?:[^"\\]|\\.)*"))|\[(-?\d{1,9})\]')
_OPERATOR = re.compile(r"\s*(!=|<=|>=|=|<|>|~)\s*", re.DOTALL)
_ABSENT: Final = object()
_ORDERED: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def json_filter(texts: Sequence[str]) -> Filter:
    """Passes records whose value is JSON in which all conditions hold. Raises ValueError for a wrong condition."""
    conditions = [parse_condition(text) for text in texts]

    def passes(record: Shown) -> bool:
        try:
            document = json.loads(record.value or b"")
        # A value that is no JSON has no fields: it does not pass, and the next record is looked at.
        except (ValueError, RecursionError):
            return False
        return all(holds(document) for holds in conditions)

    return passes


def parse_condition(text: str) -> Condition:
    """A function that tells whether a condition holds in a document. Raises ValueError for a wrong condition."""
    steps, at = _parse_path(text)
    rest = _OPERATOR.match(text, at)
    if rest is None and text[at:].strip():
        raise ValueError(f"{text!r} is not a condition: after the path comes = != < <= > >= or ~, or nothing")
    holds = _exists if rest is None else _comparison(rest[1], text[rest.end() :])
    return lambda document: holds(_find_field(document, steps))


def _parse_path(text: str) -> tuple[list[str | int], int]:
    steps: list[str | int] = []
    at = 0
    while (step := _STEP.match(text, at)) is not None:
        name, quoted, index = step.groups()
        steps.append(int(index) if index is not None else name if name is not None else json.loads(quoted))
        at = step.end()
    if not steps:
        raise ValueError(f'{text!r} is not a condition: it begins with a path, such as .user.id, ."a b" or [0]')
    return steps, at


def _find_field(document: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        if isinstance(step, int):
            # Negative indexes count from the end, as in jq.
            inside = isinstance(document, list) and -len(document) <= step < len(document)
        else:
            inside = isinstance(document, dict) and step in document
        if not inside:
            return _ABSENT
        document = document[step]
    return document


def _exists(found: Any) -> bool:
    return found is not _ABSENT


def _comparison(sign: str, text: str) -> Condition:
    if sign == "~":
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise ValueError(f"{text!r} is not a regular expression: {error}") from error
        return lambda found: isinstance(found, str) and pattern.search(found) is not None
    wanted = _parse_value(text)
    if sign == "=":
        return lambda found: _is_equal(found, wanted)
    if sign == "!=":
        # As in SQL, a field that is absent is neither equal nor unequal.
        return lambda found: found is not _ABSENT and not _is_equal(found, wanted)
    compare = _ORDERED[sign]
    return lambda found: _is_ordered(found, wanted) and compare(found, wanted)


def _parse_value(text: str) -> Any:
    """JSON, or else the text itself, so that a shell needs no second pair of quotes."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _is_equal(found: Any, wanted: Any) -> bool:
    """Equality of JSON: true is not 1."""
    return bool(found == wanted) and isinstance(found, bool) == isinstance(wanted, bool)


def _is_ordered(found: Any, wanted: Any) -> bool:
    """Whether two values can be compared: two numbers, or two texts."""
    # In Python true is 1; in JSON it is no number.
    if isinstance(found, bool) or isinstance(wanted, bool):
        return False
    numbers = isinstance(found, int | float) and isinstance(wanted, int | float)
    return numbers or (isinstance(found, str) and isinstance(wanted, str))
