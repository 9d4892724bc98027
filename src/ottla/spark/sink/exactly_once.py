"""Exactly once: the names, the marker and the rules of the sink; sends no request to a broker.

Zone: pure. A marker is a position that the sink commits for a group of its own, in the transaction with the rows of a
batch: its offset is the number of the next batch, its metadata name the query. An attempt that writes the batch again
reads the marker first, and finds that the batch is done. The steps are in `transactional_write`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final, NamedTuple

from ottla.client.positions import OffsetAndMetadata
from ottla.spark.errors import BadCheckpoint, StaleDriver, UnstableRows
from ottla.types import TopicPartition

MARKERS: Final = "__ottla_spark_markers"
"""The topic of the markers, to which no record is ever written: a position needs an existing topic. It is a topic of
the sink's own, because positions are deleted with their topic."""
MARKER: Final = TopicPartition(MARKERS, 0)
_VERSION: Final = 1
MOST_LISTS: Final = 500
"""Positions that name the transactions of one batch: some 50,000 tasks."""

QUERY: Final = "sql.streaming.queryId"
BATCH: Final = "streaming.sql.batchId"
RUN: Final = "spark.jobGroup.id"
"""Spark's own names (StreamExecution, MicroBatchExecution). They are not documented, so that a missing one is an error
and never replaced by a default."""
_ID: Final = r"[A-Za-z0-9_.-]{1,64}"
RUNNING: Final = rf"{_ID}/{_ID}/\d{{1,18}}"
"""The text of a RunningBatch, as a regular expression."""
ADAPTIVE: Final = "spark.sql.adaptive.enabled"
ADAPTIVE_STREAMS: Final = "spark.sql.adaptive.streaming.stateless.enabled"


class RunningBatch(NamedTuple):
    """The batch in which rows are written, where Spark does not name it to tasks: `write_batch` passes it on."""

    query: str
    """The query's id, which is in its checkpoint."""
    run: str
    """One run of the query."""
    batch: int

    def __str__(self) -> str:
        return f"{self.query}/{self.run}/{self.batch}"

    @staticmethod
    def is_name(text: str) -> bool:
        """Whether a text can be the id of a query or a run."""
        return re.fullmatch(_ID, text) is not None

    @classmethod
    def parse(cls, text: str) -> RunningBatch:
        """The batch of a text that matches RUNNING."""
        query, run, batch = text.split("/")
        return cls(query, run, int(batch))

    def get_property(self, name: str) -> str | None:
        """The property of a task that Spark sets in its own sinks."""
        return {QUERY: self.query, RUN: self.run, BATCH: str(self.batch)}.get(name)


class TaskBatch(NamedTuple):
    """Identifies what a task writes: the rows of one partition of one batch of one query."""

    prefix: str
    query: str
    """The query's id, which is in its checkpoint, or the name of a job."""
    sink: str
    batch: int
    partition: int

    @property
    def name(self) -> str:
        """The transactional id and the name of the group: the same for every batch and every attempt."""
        return f"{self.prefix}{self.query}-{self.sink}-{self.partition}"

    def __str__(self) -> str:
        return f"partition {self.partition} of batch {self.batch} of {self.query}"


class Marker(NamedTuple):
    """The last commit under a name."""

    query: str
    batch: int
    rows: int
    parts: str | None = None
    """The ranges that the rows were read from (`parts_of`); None when they are not known."""
    lists: int = 0
    """How many positions name the transactions of the other tasks (`batch_decision`); of a whole batch."""
    files: int = 0
    """How many positions name the files of a table that belong to the batch."""


def marker_position(
    turn: TaskBatch, rows: int, parts: str | None = None, lists: int = 0, files: int = 0
) -> OffsetAndMetadata:
    """The marker to commit with the rows of this task."""
    said = {"q": turn.query, "b": turn.batch, "n": rows, "v": _VERSION, **({} if parts is None else {"p": parts})}
    said |= {"l": lists} if lists else {}
    said |= {"f": files} if files else {}
    return OffsetAndMetadata(turn.batch + 1, -1, json.dumps(said, separators=(",", ":")))


def parts_of(ranges: Iterable[tuple[TopicPartition, int]]) -> str:
    """A hash of what a task reads: the partitions of the source, and the end of the batch in each."""
    text = json.dumps(sorted({(*tp, end) for tp, end in ranges}))
    return sha256(text.encode()).hexdigest()[:16]


def parse_marker(found: OffsetAndMetadata | None, name: str) -> Marker | None:
    """The marker in a position. Raises BadCheckpoint for one that this sink did not write."""
    if found is None:
        return None
    try:
        said = json.loads(found.metadata)
        marker = Marker(str(said["q"]), int(said["b"]), int(said["n"]), said.get("p"))
        marker = marker._replace(lists=int(said.get("l", 0)), files=int(said.get("f", 0)))
        is_bounded = all(0 <= each <= MOST_LISTS for each in (marker.lists, marker.files))
        if said["v"] != _VERSION or marker.batch + 1 != found.offset or not is_bounded:
            raise ValueError
    except (ValueError, TypeError, KeyError):
        raise BadCheckpoint(
            f"group {name} has a position of {MARKERS} that this version of the sink did not write: offset "
            f"{found.offset}, metadata {found.metadata[:100]!r}. No other program may commit there; set another "
            "transactionalIdPrefix"
        ) from None
    return marker


def already_written(turn: TaskBatch, marker: Marker | None) -> bool:
    """Whether an earlier attempt has committed these rows. Raises StaleDriver if a later batch is committed."""
    if marker is None or marker.query != turn.query:
        return False
    if marker.batch > turn.batch:
        raise StaleDriver(
            f"{turn}: batch {marker.batch} is committed already, by another driver that is ahead. Two drivers "
            "use one checkpoint (stop one of them), or the checkpoint was restored from a copy; nothing was written"
        )
    return marker.batch == turn.batch


def is_adaptive_off(get: Callable[[str], str | None], *, streaming: bool) -> bool:
    """Whether Spark keeps the partitions after a shuffle as planned. `get`: Spark's settings as a task sees them."""
    return any(get(name) == "false" for name in (ADAPTIVE, ADAPTIVE_STREAMS)[: 2 if streaming else 1])


def check_rows_are_stable(get: Callable[[str], str | None], *, streaming: bool, parts: int) -> None:
    """Check that rows are in the same partitions when a batch is run again. Raises UnstableRows.

    `get`: Spark's settings as the task sees them. `parts`: how many parts of topics were read in this task.
    """
    # 1. One part: no shuffle between source and sink.
    # 2. None: after a shuffle, adaptive execution chooses partitions by sizes that it measures in each run, so that a
    #    partition may get other rows than those it committed before. Without adaptive execution it gets the same.
    # 3. Several: `coalesce` combined them, and may combine others when its number is changed.
    if parts == 1 or is_adaptive_off(get, streaming=streaming):
        return
    why = (
        "the rows were not read from topics in the task that writes them, so there may be a shuffle, and adaptive "
        "execution may put rows into other partitions when Spark runs the batch again"
        if not parts
        else f"the rows of one task were read from {parts} partitions, as with coalesce, and may be distributed "
        "differently in the next run"
    )
    raise UnstableRows(
        f"exactly once by partition cannot hold here: {why}. Set "
        f"{ADAPTIVE_STREAMS if streaming else ADAPTIVE}=false; or write with exactlyOnce=batch; or "
        "write at least once, with exactlyOnce=off"
    )
