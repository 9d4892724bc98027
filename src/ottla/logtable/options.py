"""The options of `format("ottla-log")`.

Zone: pure. Turns text into values; `segments` looks for the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.spark.errors import BadOption
from ottla.spark.options import ParsedOptions

ALL: Final = "all"
READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"
_ISOLATIONS: Final = (ALL, READ_UNCOMMITTED, READ_COMMITTED)
_NAMES: Final = ("path", "topic", "partition", "isolation", "onCorrupt")


class LogOptions(NamedTuple):
    """The options of a query."""

    paths: tuple[str, ...]
    """Data directories (`log.dirs` of one broker), or directories of single partitions."""
    topics: frozenset[str]
    """Empty: all."""
    partitions: frozenset[int]
    """Empty: all."""
    isolation: str
    """ALL: everything in the files; otherwise what a consumer of that isolation level sees."""
    skip_corrupt: bool


def log_options(options: Mapping[str, str]) -> LogOptions:
    """Raises BadOption."""
    given = ParsedOptions(options)
    given.refuse_misspelt(_NAMES, {})
    paths = tuple(re.sub("^file:(//)?", "", each) for each in _split_list(given.text("path")))
    if not paths:
        raise BadOption("path", "is missing; name the data directories, as in load('/var/lib/ottla')")
    isolation = (given.text("isolation") or ALL).lower()
    if isolation not in _ISOLATIONS:
        raise BadOption("isolation", f"must be {', '.join(_ISOLATIONS[:-1])} or {_ISOLATIONS[-1]}, not {isolation!r}")
    on_corrupt = (given.text("onCorrupt") or "fail").lower()
    if on_corrupt not in ("fail", "skip"):
        raise BadOption("onCorrupt", f"must be fail or skip, not {on_corrupt!r}")
    numbers = _split_list(given.text("partition"))
    if wrong := [each for each in numbers if not re.fullmatch(r"[0-9]{1,10}", each)]:
        raise BadOption("partition", f"must be numbers with commas between them, not {wrong[0]!r}")
    topics = frozenset(_split_list(given.text("topic")))
    return LogOptions(paths, topics, frozenset(int(each) for each in numbers), isolation, on_corrupt == "skip")


def _split_list(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]
