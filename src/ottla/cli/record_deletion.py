"""Deletion of records before an offset: Kafka's file of it, and the offset of each partition.

Zone: real. Reads files and asks a cluster; deletes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.reading.offset_grammar import Bound
    from ottla.client import Admin

_FORM = '{"partitions":[{"topic":"t","partition":0,"offset":10},…],"version":1}'
_LARGEST_FILE = 64 << 20
_LARGEST_OFFSET = 2**63 - 1


class Deletion(NamedTuple):
    """The records of a partition that are to be deleted: those from `start` up to, but without, `before`."""

    tp: TopicPartition
    start: int
    before: int

    @property
    def record_count(self) -> int:
        """The number of offsets; in a compacted or transactional log there are fewer records."""
        return max(0, self.before - self.start)


def read_text(path: str, most: int = _LARGEST_FILE) -> str:
    """The text of a file, or of standard input for `-`. Raises click.UsageError, OSError."""
    with click.open_file(path, "rb") as file:
        content: bytes = file.read(most + 1)
    if len(content) > most:
        raise click.UsageError(f"{path} is longer than {most} bytes: divide it")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise click.UsageError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from error


def read_offset_file(path: str) -> dict[TopicPartition, Bound]:
    """The bounds in the file of kafka-delete-records; its offset -1 is the end. Raises click.UsageError, OSError."""
    try:
        document = json.loads(read_text(path))
        # Kafka's tool has had one version, and takes a file without it.
        if document.get("version", 1) != 1:
            raise ValueError(f"version {document['version']!r} is not 1")
        found = [_parse_row(each) for each in document["partitions"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise click.UsageError(f"{path} is not of the form {_FORM}: {type(error).__name__} {error}") from error
    bounds = dict(found)
    if not found or len(bounds) < len(found):
        raise click.UsageError(f"{path} names {'a partition twice' if found else 'no partition'}")
    return bounds


def _parse_row(row: Mapping[str, Any]) -> tuple[TopicPartition, Bound]:
    from ottla.cli.reading.offset_grammar import END, Base, Bound

    topic, partition, offset = row["topic"], row["partition"], row["offset"]
    if not isinstance(topic, str) or type(partition) is not int or type(offset) is not int:
        raise ValueError(f"{json.dumps(row, ensure_ascii=False)[:200]} has a field of another type")
    if not (0 <= partition < 2**31 and -1 <= offset <= _LARGEST_OFFSET):
        raise ValueError(f"partition {partition} or offset {offset} of {topic} is out of range")
    return TopicPartition(topic, partition), END if offset < 0 else Bound(Base.ZERO, offset)


def plan_deletions(admin: Admin, bounds: Mapping[TopicPartition, Bound]) -> list[Deletion]:
    """The deletion of each partition. Raises ClientError when a partition cannot be read.

    A number stays as it is: one past the end, which may be a typing error, is refused by the broker.
    """
    from ottla.cli.reading.offset_grammar import Base
    from ottla.cli.views.group_views import reset_targets
    from ottla.client import EARLIEST
    from ottla.client.errors import values_of

    starts = values_of(admin.list_offsets(dict.fromkeys(bounds, EARLIEST)))
    # Times and ends have to be asked for; numbers are taken as they are.
    searched = {tp: bound for tp, bound in bounds.items() if bound.base is not Base.ZERO}
    targets = reset_targets(admin, searched, {}, None) if searched else {}
    return [Deletion(tp, starts[tp].offset, targets.get(tp, bound.number)) for tp, bound in sorted(bounds.items())]
