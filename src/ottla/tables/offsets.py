"""Up to which offsets a table has a topic: as text in the table, and checked against the topic.

Zone: pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.tables.errors import OffsetsLostError, OffsetsOutsideTopicError, TopicRecreatedError

MAX_TEXT: Final = 4 << 20
"""Most characters of a stored position: over 100,000 partitions."""
_NEW_TABLE: Final = "Copy the topic into a new table"


class TableOffsets(NamedTuple):
    """The topic by its id, and the first offset of each partition that the table does not have."""

    topic_id: str
    next_offsets: Mapping[int, int]

    def encode_text(self) -> str:
        """As JSON."""
        partitions = {str(number): offset for number, offset in sorted(self.next_offsets.items())}
        return json.dumps({"topic_id": self.topic_id, "next_offsets": partitions}, separators=(",", ":"))


def decode_offsets(text: str, table: str) -> TableOffsets:
    """The offsets that `encode_text` wrote. Raises OffsetsLostError for other text."""
    try:
        if len(text) > MAX_TEXT:
            raise ValueError(f"{len(text)} characters")
        found = json.loads(text)
        return TableOffsets(
            str(found["topic_id"]), {int(number): int(offset) for number, offset in found["next_offsets"].items()}
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OffsetsLostError(f"{table}: the stored offsets cannot be read ({error})", _NEW_TABLE) from error


def check_offsets(topic: str, saved: TableOffsets, topic_id: str, log: Mapping[int, tuple[int, int]]) -> None:
    """Raise TopicRecreatedError or OffsetsOutsideTopicError unless the topic can continue the table.

    log: first and end offset of each partition of the topic.
    """
    if saved.topic_id != topic_id:
        raise TopicRecreatedError(
            f"topic {topic} was created again: its id is {topic_id}, the table has the topic {saved.topic_id}",
            _NEW_TABLE,
        )
    for number, offset in sorted(saved.next_offsets.items()):
        if number not in log:
            raise OffsetsOutsideTopicError(
                f"the table has partition {number} of {topic}, the topic does not", _NEW_TABLE
            )
        start, end = log[number]
        if offset > end:
            raise OffsetsOutsideTopicError(
                f"partition {number} of {topic} ends at offset {end}, the table has it up to {offset}: the topic lost "
                "records, or this is another cluster",
                f"Check --brokers. {_NEW_TABLE} if records were lost",
            )
        if offset < start:
            raise OffsetsOutsideTopicError(
                f"partition {number} of {topic} begins at offset {start}, the table has it up to {offset}: retention "
                f"deleted {start - offset} offsets before they were copied",
                f"Give --skip-deleted to continue from {start} without them",
            )
