"""Exactly-once writes within foreachBatch, for uses that `writeStream` does not support, as output mode update.

Zone: real. Runs in the driver. When Spark runs a batch again, it calls the function again. A write is identified by the
query, the number of the batch and a name, so that rows that are committed already are not written a second time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ottla.spark.connect_batch import find_batch, is_remote
from ottla.spark.environment import activate_session
from ottla.spark.errors import BadOption, NoBatch
from ottla.spark.sink.exactly_once import BATCH, RUN

# Whether cached rows (persist, cache) were read from topics without a shuffle. For cached rows the reader of a task
# leaves no note, so the driver looks at the physical plan below the cache: Spark uses it to fill the cache again when
# the batch is run again.

CACHED: Final = "InMemoryTableScan"
_NODE: Final = re.compile(r"^[\s:|+*()\d-]*([A-Za-z]+)")
_MOVES_ROWS: Final = frozenset(
    {"AQEShuffleRead", "CartesianProduct", "Coalesce", "Exchange", "ReusedExchange", "ShuffleQueryStage", "Union"}
)
_RDD: Final = re.compile(r"\b(\w+RDD)\b")
_MOVES_PARTITIONS: Final = frozenset({"CartesianRDD", "CoalescedRDD", "ShuffledRDD", "ShuffledRowRDD", "UnionRDD"})
_READS: Final = "DataSourceRDD"


def comes_from_stable_cache(frame: Any) -> bool:
    """Whether rows come from Spark's cache, and each cached partition has rows of one part of a topic.

    False also when the plan cannot be read (Spark Connect).
    """
    if getattr(frame, "_jdf", None) is None:
        return False
    execution = frame._jdf.queryExecution()
    plan = str(execution.executedPlan().toString())
    # The plan first: reading the lineage of a plan with a shuffle would run the shuffle.
    return is_stable_plan(plan) and is_stable_lineage(str(execution.toRdd().toDebugString()))


def is_stable_plan(plan: str) -> bool:
    """Whether the text of a physical plan contains a cache, and nothing that moves rows between partitions."""
    nodes = {found[1] for line in plan.splitlines() if (found := _NODE.match(line)) is not None}
    return CACHED in plan and not nodes & _MOVES_ROWS


def is_stable_lineage(lineage: str) -> bool:
    """Whether the text of an RDD's lineage begins at a source, and nothing in it moves rows between partitions."""
    kinds = set(_RDD.findall(lineage))
    return _READS in kinds and not kinds & _MOVES_PARTITIONS


_SCOPES: Final = ("partition", "batch")
_REMEMBERED: Final = 1_000
_last: Final[dict[tuple[str, str], int]] = {}
"""The last batch of each run of a query and sink. Two writes with one name in one batch are a mistake: the second would
be taken for a repetition of the first, and skipped."""


def write_batch(
    frame: Any,
    batch_id: int,
    options: Mapping[str, str],
    *,
    sink: str,
    exactly_once: str = "partition",
    checkpoint: str | None = None,
) -> None:
    """Write a DataFrame within foreachBatch, exactly once.

        def publish(frame, batch_id):
            options = {"kafka.bootstrap.servers": "localhost:9092", "topic": "counts"}
            write_batch(frame, batch_id, options, sink="counts")

        counts.writeStream.outputMode("update").foreachBatch(publish)

    frame, batch_id: the arguments of the foreachBatch function. options: those of the sink. sink: the name of this
    write; each write of the function needs its own, and must keep it as long as the checkpoint is used. exactly_once:
    "partition", or "batch" for all rows or none. checkpoint: the query's `checkpointLocation`, which a session of Spark
    Connect needs, because Spark does not name the query there; not read in other sessions.

    Raises BadOption, NoBatch, BadCheckpoint, and Spark's error around those of `format("ottla")`.
    """
    if exactly_once not in _SCOPES:
        raise BadOption("exactlyOnce", f"must be one of {', '.join(_SCOPES)} in write_batch, not {exactly_once!r}")
    if any(name.lower() == "jobid" for name in options):
        raise BadOption(
            "jobId", "is for df.write: a write within foreachBatch is identified by its query, batch and sink"
        )
    session = frame.sparkSession
    running = find_batch(session, checkpoint, batch_id) if is_remote(session) else None
    run = _find_run(session, batch_id) if running is None else f"{running.query}/{running.run}"
    _check_first(run, batch_id, sink)
    activate_session(session)
    said = {**options, "sink": sink, "exactlyOnce": exactly_once}
    if running is not None:
        said["runningBatch"] = str(running)
    if exactly_once == "partition" and comes_from_stable_cache(frame):
        said.setdefault("stableRows", "true")
    frame.write.format("ottla").options(**said).mode("append").save()


def _find_run(session: Any, batch_id: int) -> str:
    """The run of the query whose batch Spark is running. Raises NoBatch if it is not this batch."""
    context = session.sparkContext
    running, run = context.getLocalProperty(BATCH), context.getLocalProperty(RUN)
    if running != str(batch_id) or not run:
        raise NoBatch(
            f"write_batch was called for batch {batch_id}, and Spark runs {running or 'none'} here: call it in the "
            "function given to foreachBatch, with the number that Spark passes to it; start threads of your own within "
            "that function, as pyspark.InheritableThread, which copies Spark's properties"
        )
    return str(run)


def _check_first(run: str, batch_id: int, sink: str) -> None:
    """Check that this is the first write with this name in the batch. Raises BadOption."""
    if _last.get((run, sink)) == batch_id:
        raise BadOption("sink", f"{sink!r} was written in batch {batch_id} already: each write needs its own name")
    while len(_last) >= _REMEMBERED:
        del _last[next(iter(_last))]
    _last[run, sink] = batch_id
