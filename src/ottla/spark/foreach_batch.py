"""Writing exactly once from within foreachBatch: for what `writeStream` cannot do from Python, as output mode update.

Zone: real. Runs in the driver. A batch that Spark runs again calls the function again; each write is known by the
query, the number of the batch and its own name, so the rows that are there already are not written a second time.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from ottla.spark.environment import activate_session
from ottla.spark.errors import BadOption, NoBatch
from ottla.spark.sink.exactly_once import BATCH, RUN

# Whether rows that Spark keeps (persist, cache) were read from topics without a shuffle. Asks the driver for the
# physical plan of a DataFrame. Rows that come from memory leave no note of what they were read from; but what fills
# the memory again, when the batch runs again, is the plan below it.

CACHED: Final = "InMemoryTableScan"
_NODE: Final = re.compile(r"^[\s:|+*()\d-]*([A-Za-z]+)")
_MOVES_ROWS: Final = frozenset(
    {"AQEShuffleRead", "CartesianProduct", "Coalesce", "Exchange", "ReusedExchange", "ShuffleQueryStage", "Union"}
)
_RDD: Final = re.compile(r"\b(\w+RDD)\b")
_MOVES_PARTITIONS: Final = frozenset({"CartesianRDD", "CoalescedRDD", "ShuffledRDD", "ShuffledRowRDD", "UnionRDD"})
_READS: Final = "DataSourceRDD"


def comes_from_stable_cache(frame: Any) -> bool:
    """Whether rows come from Spark's cache, and each kept partition holds rows of one part of a topic. False also where
    it cannot be seen (Spark Connect)."""
    if getattr(frame, "_jdf", None) is None:
        return False
    execution = frame._jdf.queryExecution()
    plan = str(execution.executedPlan().toString())
    # The plan first: asking for the lineage of one with a shuffle would run it.
    return is_stable_plan(plan) and is_stable_lineage(str(execution.toRdd().toDebugString()))


def is_stable_plan(plan: str) -> bool:
    """Whether the text of a physical plan has a cache in it, and nothing that moves rows."""
    nodes = {found[1] for line in plan.splitlines() if (found := _NODE.match(line)) is not None}
    return CACHED in plan and not nodes & _MOVES_ROWS


def is_stable_lineage(lineage: str) -> bool:
    """Whether the text of an RDD's lineage begins at a source, and nothing in it moves rows."""
    kinds = set(_RDD.findall(lineage))
    return _READS in kinds and not kinds & _MOVES_PARTITIONS


_SCOPES: Final = ("partition", "batch")
_REMEMBERED: Final = 1_000
_last: Final[dict[tuple[str, str], int]] = {}
"""The last batch of each (run of a query, sink): two writes under one name in one batch are a mistake, and the second
would be taken for the first one."""


def write_batch(
    frame: Any, batch_id: int, options: Mapping[str, str], *, sink: str, exactly_once: str = "partition"
) -> None:
    """Write a DataFrame within foreachBatch, exactly once.

        def publish(frame, batch_id):
            options = {"kafka.bootstrap.servers": "localhost:9092", "topic": "counts"}
            write_batch(frame, batch_id, options, sink="counts")

        counts.writeStream.outputMode("update").foreachBatch(publish)

    frame, batch_id: as Spark hands them over. options: those of the sink. sink: the name of this write, another one for
    each write of the function; it must stay the same as long as the checkpoint does. exactly_once: "partition", or
    "batch" for all rows in one transaction, which are then brought into one partition.

    Raises BadOption and NoBatch for what cannot be right, and Spark's error around what `format("ottla")` raises.
    """
    if exactly_once not in _SCOPES:
        raise BadOption("exactlyOnce", f"must be one of {', '.join(_SCOPES)} in write_batch, not {exactly_once!r}")
    _check_batch(frame, batch_id, sink)
    activate_session(frame.sparkSession)
    rows = frame.repartition(1) if exactly_once == "batch" else frame
    said = {**options, "sink": sink, "exactlyOnce": exactly_once}
    if exactly_once == "partition" and comes_from_stable_cache(frame):
        said.setdefault("stableRows", "true")
    rows.write.format("ottla").options(**said).mode("append").save()


def _check_batch(frame: Any, batch_id: int, sink: str) -> None:
    """Whether this is the batch that Spark is running, and the first write of that name in it."""
    context = frame.sparkSession.sparkContext
    running, run = context.getLocalProperty(BATCH), context.getLocalProperty(RUN)
    if running != str(batch_id) or not run:
        raise NoBatch(
            f"write_batch was called for batch {batch_id}, and Spark runs {running or 'none'} here: call it in the "
            "function that foreachBatch got, with the number that Spark hands over; in threads of your own start them "
            "within the function as pyspark.InheritableThread, which carries Spark's properties over"
        )
    if _last.get((run, sink)) == batch_id:
        raise BadOption("sink", f"{sink!r} was written in batch {batch_id} already: each write needs its own name")
    while len(_last) >= _REMEMBERED:
        del _last[next(iter(_last))]
    _last[run, sink] = batch_id
