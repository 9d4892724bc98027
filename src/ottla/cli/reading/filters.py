"""The filters of `ottla consume`: which records to show.

Zone: pure. Substrings and regular expressions over key, value and headers; all of them must hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from ottla.cli.views.record_text import Shown
from ottla.utf8 import encode_text

Test = Callable[[bytes], bool]
Filter = Callable[[Shown], bool]


def contains_text(text: str) -> Test:
    """Whether the bytes contain the UTF-8 of `text`."""
    wanted = encode_text(text)
    return lambda content: wanted in content


def matches_regex(pattern: str) -> Test:
    """Whether a regular expression is found in the bytes. Raises ValueError for an invalid one."""
    try:
        compiled = re.compile(encode_text(pattern))
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
    return lambda content: compiled.search(content) is not None


def on_key(test: Test) -> Filter:
    """Passes records whose key passes; a null key never does."""
    return lambda record: record.key is not None and test(record.key)


def on_value(test: Test) -> Filter:
    """Passes records whose value passes; a null value never does."""
    return lambda record: record.value is not None and test(record.value)


def on_header(text: str, make: Callable[[str], Test]) -> Filter:
    """`NAME=PATTERN`: passes if a header of that name has a matching value; `NAME` alone: if there is such a header."""
    name, equals, pattern = text.partition("=")
    if not equals:
        return lambda record: any(key == name for key, _ in record.headers)
    test = make(pattern)
    return lambda record: any(key == name and value is not None and test(value) for key, value in record.headers)


def all_of(filters: Sequence[Filter]) -> Filter:
    """Passes a record if all filters do; every record when there are none."""
    return lambda record: all(check(record) for check in filters)
