"""Finds the segments in data directories, and the start offset of each log.

Zone: real. Reads names and one checkpoint; `walk` reads the segments.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from ottla.logtable.errors import LogChanged
from ottla.logtable.options import LogOptions
from ottla.spark.errors import BadOption
from ottla.storage import layout
from ottla.storage.checkpoints import CorruptCheckpoint, parse_offsets
from ottla.types import TopicPartition


class Log(NamedTuple):
    """A partition's log on disk."""

    tp: TopicPartition
    files: tuple[str, ...]
    """Its segments, by base offset."""
    start: int
    """The first offset that consumers see; files may begin before it."""


def find_logs(options: LogOptions) -> list[Log]:
    """All logs that the options select, by partition.

    Raises BadOption: no directory, no log in it, the same partition twice, a topic or partition that is not there.
    """
    found: dict[TopicPartition, str] = {}
    for path in options.paths:
        for tp, directory in _log_directories(path):
            if tp in found:
                raise BadOption(
                    "path",
                    f"holds {tp} twice, in {found[tp]} and {directory}: name the directories of one broker",
                )
            found[tp] = directory
    chosen = _select_partitions(found, options)
    return [Log(tp, _segment_files(found[tp]), _start_directory(found[tp], tp)) for tp in chosen]


def _log_directories(path: str) -> Iterable[tuple[TopicPartition, str]]:
    """The logs in a data directory; or `path` itself, when it is the directory of one."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise BadOption("path", f"cannot be read: {path}: {error.strerror}") from error
    itself = layout.parse_log_dir(os.path.basename(os.path.abspath(path)))
    if itself is not None and any(_is_segment(name) for name in names):
        return [(itself, path)]
    parsed = [(layout.parse_log_dir(name), os.path.join(path, name)) for name in names]
    logs = [(tp, each) for tp, each in parsed if tp is not None and os.path.isdir(each)]
    if not logs:
        raise BadOption("path", f"{path} holds no directory of a partition, such as orders-0")
    return logs


def _select_partitions(found: Iterable[TopicPartition], options: LogOptions) -> list[TopicPartition]:
    topics = {tp.topic for tp in found}
    if missing := sorted(options.topics - topics):
        raise BadOption("topic", f"{missing[0]!r} is not in the directories; there are: {', '.join(sorted(topics))}")
    chosen = [tp for tp in sorted(found) if not options.topics or tp.topic in options.topics]
    if missing_numbers := sorted(options.partitions - {tp.partition for tp in chosen}):
        raise BadOption("partition", f"{missing_numbers[0]} is not in the directories")
    return [tp for tp in chosen if not options.partitions or tp.partition in options.partitions]


def _segment_files(directory: str) -> tuple[str, ...]:
    return tuple(os.path.join(directory, name) for name in sorted(os.listdir(directory)) if _is_segment(name))


def _is_segment(name: str) -> bool:
    # A file with a state (`.deleted`, `.cleaned`, `.swap`) has records that are removed, or in another segment as well.
    parsed = layout.parse_file_name(name)
    return parsed is not None and parsed.kind == layout.LOG and not parsed.state


def _start_directory(directory: str, tp: TopicPartition) -> int:
    """The log start offset from the data directory's checkpoint; 0 without one, as for a copy of one partition."""
    path = os.path.join(os.path.dirname(os.path.abspath(directory)), layout.LOG_STARTS)
    try:
        with open(path, "rb") as file:
            return parse_offsets(file.read()).get(tp, 0)
    except FileNotFoundError:
        return 0
    except (OSError, CorruptCheckpoint) as error:
        raise LogChanged(path, f"the log start offsets cannot be read: {error}") from error
