"""Whether rows that Spark keeps (persist, cache) were read from topics without a shuffle.

Zone: real. Asks the driver for the physical plan of a DataFrame. Rows that come from memory leave no note of what they
were read from; but what fills the memory again, when the batch runs again, is the plan below it.
"""

from __future__ import annotations

import re
from typing import Any, Final

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
