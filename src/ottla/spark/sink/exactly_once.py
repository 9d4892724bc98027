"""Exactly once: the names, the marker and the rules of the sink, without any broker.

Zone: pure. A marker is a position that the sink commits for its own group in the transaction that holds the rows of a
batch: its offset is the number of the next batch, its metadata say which query it belongs to. Whoever writes the batch
again reads the marker first and finds it done. The steps are in `transactional_write`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, NamedTuple

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.errors import BadCheckpoint, StaleDriver, UnstableRows
from ottla.types import TopicPartition

MARKERS: Final = "__ottla_spark_markers"
"""The topic whose positions are markers. Nothing is ever written to it: positions only need a topic that exists, and
nobody else's topic will do, because with a topic its positions go."""
MARKER: Final = TopicPartition(MARKERS, 0)
_VERSION: Final = 1

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
RUN: Final = "spark.jobGroup.id"
"""Spark's own names (StreamExecution, MicroBatchExecution). They are not documented, so their absence is an error and
never a default."""
ADAPTIVE: Final = "spark.sql.adaptive.enabled"
ADAPTIVE_STREAMS: Final = "spark.sql.adaptive.streaming.stateless.enabled"


class TaskBatch(NamedTuple):
    """What a task has to write: the rows of one partition of one batch of one query."""

    prefix: str
    query: str
    """The query's id, which is in its checkpoint; or the name of a job."""
    sink: str
    batch: int
    partition: int

    @property
    def name(self) -> str:
        """Of the transactional id and of the group: the same for every batch and every attempt."""
        return f"{self.prefix}{self.query}-{self.sink}-{self.partition}"

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of {self.query}"


class Marker(NamedTuple):
    """What was committed last under a name."""

    query: str
    batch: int
    rows: int
    parts: str | None = None
    """What the rows were read from (`parts_of`); None where that is not known."""


def marker_position(turn: TaskBatch, rows: int, parts: str | None = None) -> OffsetAndMetadata:
    """The marker to be committed with the rows of this turn."""
    said = {"q": turn.query, "b": turn.batch, "n": rows, "v": _VERSION, **({} if parts is None else {"p": parts})}
    return OffsetAndMetadata(turn.batch + 1, -1, json.dumps(said, separators=(",", ":")))


def parts_of(ranges: Iterable[tuple[TopicPartition, int]]) -> str:
    """A short name of what a task reads: the partitions of the source and where the batch ends in them."""
    text = json.dumps(sorted({(*tp, end) for tp, end in ranges}))
    return sha256(text.encode()).hexdigest()[:16]


def parse_marker(found: OffsetAndMetadata | None, name: str) -> Marker | None:
    """The marker in a position. Raises BadCheckpoint for one that this sink did not write."""
    if found is None:
        return None
    try:
        said = json.loads(found.metadata)
        marker = Marker(str(said["q"]), int(said["b"]), int(said["n"]), said.get("p"))
        if said["v"] != _VERSION or marker.batch + 1 != found.offset:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise BadCheckpoint(
            f"group {name} has a position of {MARKERS} that this version of the sink did not write: offset "
            f"{found.offset}, metadata {found.metadata[:100]!r}. Nobody else may commit there; take another "
            "transactionalIdPrefix"
        ) from None
    return marker


def already_written(turn: TaskBatch, marker: Marker | None) -> bool:
    """Whether an earlier attempt has committed this turn. Raises StaleDriver when a later batch is there already."""
    if marker is None or marker.query != turn.query:
        return False
    if marker.batch > turn.batch:
        raise StaleDriver(
            f"{turn}: batch {marker.batch} is committed already, by a driver that is ahead of this one. Two drivers "
            "run on one checkpoint, or the checkpoint was put back to an older state; nothing was written"
        )
    return marker.batch == turn.batch


def is_adaptive_off(get: Callable[[str], str | None], *, streaming: bool) -> bool:
    """Whether Spark keeps the partitions behind a shuffle as they are. `get`: Spark's settings as a task sees them."""
    return any(get(name) == "false" for name in (ADAPTIVE, ADAPTIVE_STREAMS)[: 2 if streaming else 1])


def check_rows_are_stable(get: Callable[[str], str | None], *, streaming: bool, parts: int) -> None:
    """Whether rows come in the same partitions when a batch is run again. Raises UnstableRows.

    `get`: Spark's settings as the task sees them. `parts`: how many parts of topics were read in this very task. One:
    there is no shuffle between source and sink. None: behind a shuffle Spark's adaptive execution chooses partitions by
    sizes that it measures in each run; what a partition has committed then says nothing about the rows that come in it.
    Several: `coalesce` has put them together, and may put others together when its number is changed.
    """
    if parts == 1 or is_adaptive_off(get, streaming=streaming):
        return
    why = (
        "the rows were not read from topics in the task that writes them, so there may be a shuffle, and adaptive "
        "execution may put rows into other partitions when Spark runs the batch again"
        if not parts
        else f"the rows of one task were read from {parts} partitions, as with coalesce, and may be spread otherwise "
        "in the next run"
    )
    raise UnstableRows(
        f"exactly once by partition cannot hold here: {why}. Set "
        f"{ADAPTIVE_STREAMS if streaming else ADAPTIVE}=false; or write with repartition(1) and exactlyOnce=batch; or "
        "write at least once, with exactlyOnce=off"
    )
