"""Positions of a copy: where they are kept, and where a copy continues.

Zone: real. With transactions they are in a group of the target's cluster, for the target's partitions, and are
committed with the records. Otherwise they are in the group of the same name of the source's cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.failure import CommandFailed
from ottla.cli.options import print_note
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.positions import OffsetAndMetadata
from ottla.client.stable_positions import stable_positions
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.client import Cluster, Consumer


class CopyPlan(NamedTuple):
    """Which records are copied, and the group that has the positions."""

    source: str
    target: str
    partitions: tuple[int, ...]
    group: str
    origin: str
    """Cluster, name and id of the source's topic: kept with each position at the target."""

    def source_partitions(self) -> list[TopicPartition]:
        """The partitions to read."""
        return [TopicPartition(self.source, number) for number in self.partitions]


def plan_copy(source: Cluster, target: Cluster, topic: str, new_name: str, group: str | None) -> CopyPlan:
    """Look up the topics of a copy. Raises ClientError; CommandFailed where it would never end or not fit."""
    found, made = source.topic(topic), target.topic(new_name)
    origin = f"{source.view.cluster_id}/{topic}/{found.topic_id.hex()}"
    # By the cluster's id, not by its address: one cluster has many.
    if topic == new_name and source.view.cluster_id == target.view.cluster_id:
        raise CommandFailed(f"topic {topic} would be copied into itself: name another target", exit_code=2)
    missing = sorted(set(found.partitions) - set(made.partitions))
    if missing:
        raise CommandFailed(
            f"topic {new_name} has {len(made.partitions)} partitions, and {topic} has {len(found.partitions)}: "
            f"ottla topic alter {new_name} -p {max(found.partitions) + 1}"
        )
    name = group or f"ottla-copy-{topic}-{new_name}"
    return CopyPlan(topic, new_name, tuple(sorted(found.partitions)), name, origin)


def positions_at_target(target: Cluster, plan: CopyPlan) -> dict[int, int]:
    """The positions of a copy with transactions; waits for its open transaction to end. Raises ClientError;
    CommandFailed when the group has positions in another topic.
    """
    groups = CoordinatorCalls(target, CoordinatorKind.GROUP)
    places = [TopicPartition(plan.target, number) for number in plan.partitions]
    found = stable_positions(groups, plan.group, places)
    for tp, position in found.items():
        # A topic that was created again has other records at the same offsets.
        if position.metadata != plan.origin:
            raise CommandFailed(
                f"group {plan.group} has a position for {tp} of {position.metadata or 'another client'}, not of "
                f"{plan.origin}: the source was deleted and created again, or the group is in use. Give another "
                "--group to copy from the start"
            )
    return {tp.partition: position.offset for tp, position in found.items()}


def target_offsets(plan: CopyPlan, positions: Mapping[int, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions in the form in which a transaction at the target commits them."""
    return {
        TopicPartition(plan.target, number): OffsetAndMetadata(offset, metadata=plan.origin)
        for number, offset in positions.items()
    }


def seek_positions(consumer: Consumer, plan: CopyPlan, known: Mapping[int, int]) -> dict[int, int]:
    """Assign the partitions of the source and seek to the positions, else to the start. Returns the positions.

    Raises ClientError; CommandFailed for a position past the end.
    """
    places = plan.source_partitions()
    starts, ends = consumer.beginning_offsets(places), consumer.end_offsets(places)
    consumer.assign(places)
    chosen: dict[int, int] = {}
    for tp in places:
        wanted = known.get(tp.partition, starts[tp])
        # Past the end: continuing there would skip records that come later.
        if wanted > ends[tp]:
            raise CommandFailed(
                f"{tp} ends at {ends[tp]}, and the copy is at {wanted}: the source lost records, or was deleted and "
                "created again. Give another --group to copy from the start"
            )
        if wanted < starts[tp]:
            print_note(f"records {wanted} to {starts[tp] - 1} of {tp} were deleted before they were copied")
        chosen[tp.partition] = max(wanted, starts[tp])
        consumer.seek(tp, chosen[tp.partition])
    return chosen
