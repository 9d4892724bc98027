"""Exactly once: the names, the marker and the rules of the sink, without any broker.

Zone: pure. A marker is a position that the sink commits for its own group in the transaction that holds the rows of a
batch: its offset is the number of the next batch, its metadata say which query it belongs to. Whoever writes the batch
again reads the marker first and finds it done. The steps are in `attempt`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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


class Turn(NamedTuple):
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


def marker_position(turn: Turn, rows: int) -> OffsetAndMetadata:
    """The marker to be committed with the rows of this turn."""
    metadata = json.dumps({"q": turn.query, "b": turn.batch, "n": rows, "v": _VERSION}, separators=(",", ":"))
    return OffsetAndMetadata(turn.batch + 1, -1, metadata)


def parse_marker(found: OffsetAndMetadata | None, name: str) -> Marker | None:
    """The marker in a position. Raises BadCheckpoint for one that this sink did not write."""
    if found is None:
        return None
    try:
        said = json.loads(found.metadata)
        marker = Marker(str(said["q"]), int(said["b"]), int(said["n"]))
        if said["v"] != _VERSION or marker.batch + 1 != found.offset:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise BadCheckpoint(
            f"group {name} has a position of {MARKERS} that this version of the sink did not write: offset "
            f"{found.offset}, metadata {found.metadata[:100]!r}. Nobody else may commit there; take another "
            "transactionalIdPrefix"
        ) from None
    return marker


def already_written(turn: Turn, marker: Marker | None) -> bool:
    """Whether an earlier attempt has committed this turn. Raises StaleDriver when a later batch is there already."""
    if marker is None or marker.query != turn.query:
        return False
    if marker.batch > turn.batch:
        raise StaleDriver(
            f"{turn}: batch {marker.batch} is committed already, by a driver that is ahead of this one. Two drivers "
            "run on one checkpoint, or the checkpoint was put back to an older state; nothing was written"
        )
    return marker.batch == turn.batch


def check_rows_are_stable(get: Callable[[str], str | None], *, streaming: bool, read_here: bool) -> None:
    """Whether rows come in the same partitions when a batch is run again. Raises UnstableRows.

    `get`: Spark's settings as the task sees them. `read_here`: the rows were read from topics in this very task, so
    there is no shuffle between source and sink. Behind a shuffle Spark's adaptive execution chooses partitions anew
    each time, by sizes it measures; what a partition has committed then says nothing about the rows that come in it.
    """
    off = [name for name in (ADAPTIVE, ADAPTIVE_STREAMS)[: 2 if streaming else 1] if get(name) == "false"]
    if off or read_here:
        return
    raise UnstableRows(
        "exactly once by partition cannot hold here: the rows were not read from topics in the task that writes them, "
        "so there may be a shuffle, and adaptive execution may put rows into other partitions when Spark runs the "
        f"batch again. Set {ADAPTIVE_STREAMS if streaming else ADAPTIVE}=false; or write with repartition(1) and "
        "exactlyOnce=batch; or write at least once, with exactlyOnce=off"
    )
