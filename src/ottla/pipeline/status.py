"""The status of a pipeline, read from its cluster alone: Spark need not run.

Zone: real. The queries of a pipeline commit their progress to its consumer group; the rest is offsets of topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.client.admin.types import EARLIEST, LATEST
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError, values_of
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.pipeline.steps import Step, group_of
from ottla.types import TopicPartition

Offsets = Mapping[TopicPartition, int]


class StepStatus(NamedTuple):
    """The status of a step. Offsets are counted, which with transactions are a little more than records."""

    step: str
    lag: int
    """Offsets of the sources that are not read yet."""
    waiting: int
    """Offsets of the retry topics that are not read yet."""
    dead: int
    """Offsets of the dead-letter topics."""
    missing: tuple[str, ...] = ()
    """Topics that do not exist (yet)."""


def status_of(cluster: Cluster, pipeline: str, steps: Sequence[Step]) -> list[StepStatus]:
    """Read the status of steps from the cluster. Raises ClientError."""
    names = {topic for step in steps for topic in (*step.places, *step.dead_topics)}
    there = _list_partitions(cluster, names)
    first = _list_offsets(cluster, there, EARLIEST)
    last = _list_offsets(cluster, there, LATEST)
    found = []
    for step in steps:
        group = GroupAdmin(cluster).group_offsets(group_of(pipeline, step, steps))
        read = {tp: at.offset for tp, at in group.items() if isinstance(at, GroupOffset)}
        behind = {tp: max(0, end - max(first[tp], read.get(tp, 0))) for tp, end in last.items()}
        missing = sorted({*step.places, *step.dead_topics} - {tp.topic for tp in there})
        found.append(
            StepStatus(
                step.name,
                _sum_topics(behind, step.sources),
                _sum_topics(behind, step.retry_topics),
                _sum_topics({tp: last[tp] - first[tp] for tp in last}, step.dead_topics),
                tuple(missing),
            )
        )
    return found


def _sum_topics(sizes: Offsets, topics: Iterable[str]) -> int:
    wanted = set(topics)
    return sum(size for tp, size in sizes.items() if tp.topic in wanted)


def _list_partitions(cluster: Cluster, names: Iterable[str]) -> list[TopicPartition]:
    found: list[TopicPartition] = []
    for name, view in Admin(cluster).describe_topics(sorted(names)).items():
        if isinstance(view, TopicView):
            found += [TopicPartition(name, number) for number in view.partitions]
        elif not (isinstance(view, RefusedError) and view.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            assert isinstance(view, ClientError)
            raise view
    return found


def _list_offsets(cluster: Cluster, places: Iterable[TopicPartition], at: int) -> dict[TopicPartition, int]:
    asked = dict.fromkeys(places, at)
    return {tp: found.offset for tp, found in values_of(Admin(cluster).list_offsets(asked)).items()}
