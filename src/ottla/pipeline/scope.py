"""What the sink may take for one unit: a task, when a step's rows stay in the task that read them, or else the batch.

Zone: real. Asks Spark for the plan of a DataFrame. A task that is run again must see the same rows: so it is when
between the source and the sink there is nothing but row by row work, because the source's ranges are in the checkpoint.
As soon as rows change tasks, Spark may cut them in another way the next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


_SPLIT: Final = ("minpartitions", "maxrecordsperpartition")


class Scope(NamedTuple):
    """The unit, and why."""

    mode: str
    """partition, batch or off; auto where Spark was not asked."""
    reason: str
    offsets: bool = False
    """Whether the offsets of the step's group are committed in the transaction of the rows."""
    because: str = ""
    """Why they are not."""

    @property
    def guarantee(self) -> str:
        """For people."""
        if self.mode == "off":
            return "at least once"
        return f"exactly once by {unit(self.mode, self.offsets)}: {self.reason}"


def unit(mode: str, offsets: bool) -> str:
    """What is written all or nothing, in words."""
    return f"{mode}, with offsets" if offsets else mode


def scope_of(frame: Any) -> Scope:
    """Decide from the plan of a streaming DataFrame."""
    if getattr(frame, "_jdf", None) is None:
        return Scope("batch", "the plan cannot be seen from a Spark Connect session")
    wide = sorted(set(_nodes(frame._jdf.queryExecution().analyzed())) - NARROW)
    if wide:
        return Scope("batch", f"rows change tasks: {', '.join(wide)}")
    return Scope("partition", "rows stay in the task that read them")


def with_offsets(scope: Scope, wanted: str, *, stays: bool, has_source: bool, options: Iterable[str]) -> Scope:
    """The same unit, with whether the group's offsets can be in its transaction. Source and sink of a step are on one
    cluster.

    wanted: auto, true or false. stays: rows stay in the task that read them. has_source: rows that change tasks say
    what they were made of. options: names of the source's options.
    """
    if wanted == "false":
        return scope._replace(because="the step says so")
    if scope.mode == "off":
        return scope._replace(because="there is no transaction")
    if scope.mode == "batch":
        return scope._replace(offsets=has_source, because="" if has_source else "no column `_source` comes to the sink")
    if not stays:
        return scope._replace(because="rows change tasks")
    split = sorted(name for name in options if name.lower() in _SPLIT)
    return scope._replace(offsets=not split, because=f"{split[0]} splits partitions" if split else "")


def _nodes(plan: Any) -> Iterator[str]:
    yield str(plan.nodeName())
    children = plan.children()
    for number in range(children.size()):
        yield from _nodes(children.apply(number))
