"""What a position of a consumer group says of who has put it there: a sink, with the rows of a batch, or anybody else.

Zone: pure. Written by the sink (`attempt`), minded by the source (`group_offsets`), which takes none of it back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.exactly_once import Turn
from ottla.types import TopicPartition


def marked(turn: Turn, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions that say which batch has put them there."""
    metadata = json.dumps({"q": turn.query, "b": turn.batch}, separators=(",", ":"))
    return {where: OffsetAndMetadata(offset, -1, metadata) for where, offset in offsets.items()}


def query_of(position: OffsetAndMetadata) -> str | None:
    """The query whose sink has put a position there, with rows; None for one of anybody else."""
    try:
        said = json.loads(position.metadata)
        return str(said["q"]) if isinstance(said["b"], int) else None
    except (ValueError, TypeError, KeyError):
        return None


def goes_on(offset: int, present: OffsetAndMetadata | None, query: str) -> bool:
    """Whether an offset may take the place of what the group has. It may not take this query back; another one, that
    began elsewhere, it may."""
    return present is None or offset > present.offset or query_of(present) not in (None, query)
