"""Files of committed offsets: CSV as kafka-consumer-groups exports and imports it, JSON, and JSON lines.

Zone: pure. Text to positions and back. Positions have no leader epochs, because a file may be for another cluster.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ottla.cli.views.output import Json
from ottla.types import TopicPartition

_LARGEST_OFFSET = 2**63 - 1
_JSON_FIELDS = frozenset({"group", "topic", "partition", "offset", "metadata"})


class GroupPosition(NamedTuple):
    """A committed offset. group: None where the file does not name it."""

    group: str | None
    tp: TopicPartition
    offset: int
    metadata: str = ""

    def to_document(self) -> dict[str, Json]:
        """The JSON form."""
        tp = self.tp
        return {
            "group": self.group,
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": self.offset,
            "metadata": self.metadata,
        }


def csv_text(positions: Sequence[GroupPosition], *, with_group: bool) -> str:
    """Kafka's CSV, which has no header: topic, partition, offset; with_group: after the group."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    for group, tp, offset, _ in positions:
        rows.writerow(([group] if with_group else []) + [tp.topic, tp.partition, offset])
    return text.getvalue()


def parse_positions(text: str) -> list[GroupPosition]:
    """The positions in CSV of three or four columns, a JSON array or JSON lines. Raises ValueError, naming the row."""
    # The first character decides: a name of a topic in CSV begins with neither.
    beginning = text.lstrip()[:1]
    if beginning == "[":
        found = _numbered(_from_array(text), "row")
    elif beginning == "{":
        found = _numbered((_from_json(json.loads(line)) for line in text.splitlines() if line.strip()), "line")
    else:
        found = _numbered(map(_from_csv, filter(None, csv.reader(io.StringIO(text), strict=True))), "row")
    seen = set()
    for each in found:
        # Which of two offsets is meant cannot be known, so none is committed.
        if (each.group, each.tp) in seen:
            raise ValueError(f"{each.tp} is there twice for the same group")
        seen.add((each.group, each.tp))
    return found


def _from_array(text: str) -> Iterator[GroupPosition]:
    yield from map(_from_json, json.loads(text))


def _numbered(positions: Iterator[GroupPosition], noun: str) -> list[GroupPosition]:
    found: list[GroupPosition] = []
    try:
        found.extend(positions)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"{noun} {len(found) + 1}: {error}") from error
    return found


def _from_csv(row: list[str]) -> GroupPosition:
    if len(row) not in (3, 4):
        raise ValueError(f"it has {len(row)} columns: use [group,]topic,partition,offset")
    topic, partition, offset = row[-3:]
    # `int` would take spaces, underscores and digits of other scripts as well.
    numbers = [int(each) if each.isascii() and each.isdecimal() and len(each) < 20 else -1 for each in row[-2:]]
    if min(numbers) < 0:
        raise ValueError(f"partition {partition!r} or offset {offset!r} is not a number")
    return _checked(GroupPosition(row[0] if len(row) == 4 else None, TopicPartition(topic, numbers[0]), numbers[1]))


def _from_json(row: object) -> GroupPosition:
    if not isinstance(row, dict) or not row.keys() <= _JSON_FIELDS:
        raise ValueError(f"it is not an object with the fields {', '.join(sorted(_JSON_FIELDS))}")
    group, topic, metadata = row.get("group"), row.get("topic"), row.get("metadata", "")
    partition, offset = row.get("partition"), row.get("offset")
    is_group = group is None or isinstance(group, str)
    if not isinstance(topic, str) or not isinstance(metadata, str) or not is_group:
        raise ValueError("group, topic or metadata is not a string")
    # The type itself: for `isinstance`, JSON's true is an int as well.
    if type(partition) is not int or type(offset) is not int:
        raise ValueError("partition or offset is not a number")
    return _checked(GroupPosition(group, TopicPartition(topic, partition), offset, metadata))


def _checked(position: GroupPosition) -> GroupPosition:
    if not 0 <= position.tp.partition < 2**31 or not 0 <= position.offset <= _LARGEST_OFFSET:
        raise ValueError(f"partition {position.tp.partition} or offset {position.offset} is out of range")
    return position
