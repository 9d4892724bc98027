"""What a position of a consumer group says of who has put it there: a sink, with the rows of a batch, or anybody else.

Zone: pure. Written by the sink (`transactional_write`), minded by the source (`group_offsets`), which takes none of it
back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.sink.exactly_once import TaskBatch
from ottla.types import TopicPartition

_UNTIL: Final = "until"


def marked(turn: TaskBatch, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions that say which batch has put them there."""
    metadata = json.dumps({"q": turn.query, "b": turn.batch}, separators=(",", ":"))
    return {tp: OffsetAndMetadata(offset, -1, metadata) for tp, offset in offsets.items()}


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


def hold(position: OffsetAndMetadata, until: int | None) -> OffsetAndMetadata:
    """The same position, which tasks must not move as far as `until`: several of them read up to there, and each knows
    its own rows only. None: it is free again. Who put it there is still told."""
    said = _said(position)
    said.pop(_UNTIL, None)
    if until is not None:
        said[_UNTIL] = until
    return position._replace(leader_epoch=-1, metadata=json.dumps(said, separators=(",", ":")) if said else "")


def held_until(position: OffsetAndMetadata) -> int | None:
    """As far as where tasks must not move a position; None for one that is free."""
    until = _said(position).get(_UNTIL)
    return until if isinstance(until, int) else None


def _said(position: OffsetAndMetadata) -> dict[str, Any]:
    try:
        said = json.loads(position.metadata)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
