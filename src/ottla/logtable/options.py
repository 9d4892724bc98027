"""The options of `format("ottla-log")`.

Zone: pure. Turns text into values; `segments` looks for the files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.config.options import LIST, TEXT, Option, option_table
from ottla.spark.errors import BadOption
from ottla.spark.option_values import ParsedOptions

ALL: Final = "all"
READ_UNCOMMITTED: Final = "read_uncommitted"
READ_COMMITTED: Final = "read_committed"
LOG_OPTIONS: Final[Mapping[str, Option]] = option_table(
    Option(
        "path",
        LIST,
        None,
        "The directories, also as the argument of `load`: data directories (`log.dirs` of one broker), or directories "
        "of single partitions.",
        default_text="must be set",
    ),
    Option("topic", LIST, (), "Only these topics.", default_text="all"),
    Option("partition", LIST, (), "Only these partitions, by number.", default_text="all"),
    Option(
        "isolation",
        TEXT,
        ALL,
        "`all`: everything in the files. The other two: what such a consumer sees, so no control records and nothing "
        "below the log's start; with `read_committed` also nothing aborted, and nothing from the start of the first "
        "open transaction on.",
        (ALL, READ_UNCOMMITTED, READ_COMMITTED),
    ),
    Option(
        "onCorrupt",
        TEXT,
        "fail",
        "What happens at a batch that is cut, does not match its checksum or cannot be decoded: `fail` ends the query "
        "with its file and position; `skip` leaves it out, and the rest of the segment where its length cannot be "
        "trusted.",
        ("fail", "skip"),
    ),
)


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
    given = ParsedOptions(options, LOG_OPTIONS)
    given.refuse_misspelt({})
    paths = tuple(re.sub("^file:(//)?", "", each) for each in _split_list(given.text("path")))
    if not paths:
        raise BadOption("path", "is missing; name the data directories, as in load('/var/lib/ottla')")
    numbers = _split_list(given.text("partition"))
    if wrong := [each for each in numbers if not re.fullmatch(r"[0-9]{1,10}", each)]:
        raise BadOption("partition", f"must be numbers with commas between them, not {wrong[0]!r}")
    topics = frozenset(_split_list(given.text("topic")))
    return LogOptions(
        paths, topics, frozenset(map(int, numbers)), given.value("isolation"), given.value("onCorrupt") == "skip"
    )


def _split_list(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]
