"""What the sink may take for one unit: a task, when a step's rows stay in the task that read them, or else the batch.

Zone: real. Asks Spark for the plan of a DataFrame. A task that is run again must see the same rows: so it is when
between the source and the sink there is nothing but row by row work, because the source's ranges are in the checkpoint.
As soon as rows change tasks, Spark may cut them in another way the next time.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

NARROW: Final = frozenset(
    {
        "CollectMetrics",
        "DeserializeToObject",
        "EventTimeWatermark",
        "Filter",
        "Generate",
        "MapElements",
        "MapInArrow",
        "MapInPandas",
        "MapPartitions",
        "Project",
        "PythonMapInArrow",
        "ResolvedHint",
        "SerializeFromObject",
        "StreamingRelation",
        "StreamingRelationV2",
        "SubqueryAlias",
        "TypedFilter",
        "UnresolvedHint",
        "View",
    }
)
"""Nodes of a plan that leave every row in its task. What is not here counts as a shuffle."""


class Scope(NamedTuple):
    """The unit, and why."""

    mode: str
    """partition or batch."""
    reason: str


def scope_of(frame: Any) -> Scope:
    """Decide from the plan of a streaming DataFrame."""
    if getattr(frame, "_jdf", None) is None:
        return Scope("batch", "the plan cannot be seen from a Spark Connect session")
    wide = sorted(set(_nodes(frame._jdf.queryExecution().analyzed())) - NARROW)
    if wide:
        return Scope("batch", f"rows change tasks: {', '.join(wide)}")
    return Scope("partition", "rows stay in the task that read them")


def _nodes(plan: Any) -> Iterator[str]:
    yield str(plan.nodeName())
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))
