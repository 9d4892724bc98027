"""Chooses the sink's unit: a task, if a step's rows stay in the task that read them, or else the batch.

Zone: real. Reads the plan of a DataFrame from Spark. A task that is run again must get the same rows. That is so if all
nodes between source and sink work row by row, because the source's ranges are in the checkpoint. If rows change tasks,
Spark may distribute them differently the next time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from ottla.pipeline.plan_tree import PlanNode, plan_of

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
"""Nodes of a plan that leave every row in its task. Any other node counts as a shuffle."""


_SPLIT: Final = ("minpartitions", "maxrecordsperpartition")


class Scope(NamedTuple):
    """The unit, and the reason for it."""

    mode: str
    """partition, batch or off; auto if Spark was not asked."""
    reason: str
    offsets: bool = False
    """Whether the offsets of the step's group are committed in the transaction of the rows."""
    because: str = ""
    """Why they are not committed there."""

    @property
    def guarantee(self) -> str:
        """The guarantee in words."""
        if self.mode == "off":
            return "at least once"
        return f"exactly once by {unit_text(self.mode, self.offsets)}: {self.reason}"


def unit_text(mode: str, offsets: bool) -> str:
    """The unit in words."""
    return f"{mode}, with offsets" if offsets else mode


def scope_of(frame: Any) -> Scope:
    """Choose the unit from the plan of a streaming DataFrame."""
    plan = plan_of(frame)
    if plan is None:
        return Scope("batch", "the Spark Connect session does not show the plan in a known form")
    wide = sorted({node.name for node in plan.all_nodes()} - NARROW)
    if wide:
        return Scope("batch", f"rows change tasks: {', '.join(wide)}")
    return Scope("partition", "rows stay in the task that read them")


def with_offsets(scope: Scope, wanted: str, *, stays: bool, has_source: bool, options: Iterable[str]) -> Scope:
    """The same unit, and whether the group's offsets can be in its transaction: a step reads and writes one cluster.

    wanted: auto, true or false. stays: rows stay in the task that read them. has_source: rows have the column
    `_source` with their origin. options: names of the source's options.
    """
    # 1. Not wanted. 2. At least once: no transaction. 3. A whole batch: the rows must name their origin. 4. By task:
    # the task must read all of a partition's records, and its rows must stay in it.
    if wanted == "false":
        return scope._replace(because="the step turns it off")
    if scope.mode == "off":
        return scope._replace(because="there is no transaction")
    if scope.mode == "batch":
        return scope._replace(offsets=has_source, because="" if has_source else "the rows have no column `_source`")
    if not stays:
        return scope._replace(because="rows change tasks")
    split = sorted(name for name in options if name.lower() in _SPLIT)
    return scope._replace(offsets=not split, because=f"{split[0]} splits partitions" if split else "")


STATEFUL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Aggregate": "Aggregate",
        "Distinct": "Aggregate",
        "Deduplicate": "Deduplicate",
        "DeduplicateWithinWatermark": "DeduplicateWithinWatermark",
        "GlobalLimit": "GlobalLimit",
        "Join": "Join",
    }
)
"""Nodes that keep state over a stream, and the node that each stands for."""


def stateful_nodes(frame: Any) -> tuple[str, ...] | None:
    """The nodes of a streaming DataFrame's plan that keep state; None if the plan is not seen, or has others."""
    plan = plan_of(frame)
    if plan is None:
        return None
    nodes = list(_streaming_nodes(plan))
    if any("WithState" in name for name in nodes):
        return None
    return tuple(STATEFUL[name] for name in nodes if name in STATEFUL)


def _streaming_nodes(plan: PlanNode) -> Iterator[str]:
    """The names of nodes of a stream; of joins those whose two sides are streams."""
    streams = [each for each in plan.children if each.streams]
    if streams and (len(streams) > 1 or plan.name != "Join"):
        yield plan.name
    for each in streams:
        yield from _streaming_nodes(each)
