"""The metadata of committed offsets: which query's sink committed them, and until where tasks must not move them.

Zone: pure. The sink writes it (`transactional_write`); the source reads it (`group_offsets`), and never moves such an
offset back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.sink.exactly_once import TaskBatch
from ottla.types import TopicPartition

_UNTIL: Final = "until"


def mark_offsets(turn: TaskBatch, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions whose metadata name the query and batch that commit them."""
    metadata = json.dumps({"q": turn.query, "b": turn.batch}, separators=(",", ":"))
    return {tp: OffsetAndMetadata(offset, -1, metadata) for tp, offset in offsets.items()}


def query_of(position: OffsetAndMetadata) -> str | None:
    """The query whose sink committed a position with rows; None if another program did."""
    try:
        said = json.loads(position.metadata)
        return str(said["q"]) if isinstance(said["b"], int) else None
    except (ValueError, TypeError, KeyError):
        return None


def may_replace(offset: int, present: OffsetAndMetadata | None, query: str) -> bool:
    """Whether an offset may replace the present one of the group.

    1. There is none. 2. It moves the group forward. 3. The sink of another query committed the present one: this query
    began elsewhere, and may move the group back.
    """
    return present is None or offset > present.offset or query_of(present) not in (None, query)


def mark_held(position: OffsetAndMetadata, until: int | None) -> OffsetAndMetadata:
    """The same position with a mark that tasks must not move it to `until`; None removes the mark.

    Several tasks read up to `until`, and each knows only its own rows. The query in the metadata is kept.
    """
    said = _parse_metadata(position)
    said.pop(_UNTIL, None)
    if until is not None:
        said[_UNTIL] = until
    return position._replace(leader_epoch=-1, metadata=json.dumps(said, separators=(",", ":")) if said else "")


def held_until(position: OffsetAndMetadata) -> int | None:
    """The offset to which tasks must not move a position; None without such a mark."""
    until = _parse_metadata(position).get(_UNTIL)
    return until if isinstance(until, int) else None


def _parse_metadata(position: OffsetAndMetadata) -> dict[str, Any]:
    try:
        said = json.loads(position.metadata)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
