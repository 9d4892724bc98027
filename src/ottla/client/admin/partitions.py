"""Partition leaders and replicas: elections and reassignments.

Zone: real. The part of Admin that sends ElectLeaders (KIP-183, KIP-460) and partition reassignments (KIP-455).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import NamedTuple

from ottla.client.admin.log_dirs import LogDirAdmin
from ottla.client.cluster import CONTROLLER
from ottla.client.errors import ClientError, MalformedReplyError, UnsupportedVersionError, refused_error
from ottla.client.retry import Deadline, timeout_ms
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)


class ElectionType(IntEnum):
    """Which replica may become leader."""

    PREFERRED = 0
    """The first of the assignment, if it is in sync."""
    UNCLEAN = 1
    """Any live replica, if no in-sync replica is left: records may be lost."""


class Reassignment(NamedTuple):
    """A reassignment in progress; node ids."""

    replicas: tuple[int, ...]
    """All replicas at present, including those being added and removed."""
    adding: tuple[int, ...]
    removing: tuple[int, ...]


class PartitionAdmin(LogDirAdmin):
    """Calls about leaders and replicas over a Cluster."""

    __slots__ = ()

    def elect_leaders(
        self, kind: ElectionType, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, ClientError | None]:
        """Elect leaders; `partitions` None: of all partitions. A named partition that needs no election gets
        ELECTION_NOT_NEEDED; with None the result lists only partitions that had an election.
        """
        deadline = deadline or self._cluster.deadline()
        # Read once, and each partition asked for once: the caller may pass an iterator, or name one twice.
        wanted = None if partitions is None else list(dict.fromkeys(partitions))

        def build(version: int) -> ElectLeadersRequest:
            topic = ElectLeadersRequest.TopicPartitions
            asked = None if wanted is None else [topic(topic=t, partitions=p) for t, p in _by_topic(wanted).items()]
            return ElectLeadersRequest(
                # Version 0 knows only the preferred election.
                election_type=int(kind) if version >= 1 else 0,
                topic_partitions=asked,
                timeout_ms=timeout_ms(deadline),
            )

        answer = self._cluster.send_request(
            ApiKey.ELECT_LEADERS,
            build,
            ElectLeadersResponse,
            node=CONTROLLER,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "election of leaders"),
        )
        results: dict[TopicPartition, ClientError | None] = {}
        for topic in answer.replica_election_results:
            for part in topic.partition_result:
                tp = TopicPartition(topic.topic, part.partition_id)
                results[tp] = refused_error(part.error_code, f"election for {tp}", part.error_message)
        return results if wanted is None else _in_request_order(results, wanted, "election of leaders")

    def alter_partition_reassignments(
        self,
        targets: Mapping[TopicPartition, Sequence[int] | None],
        deadline: Deadline | None = None,
        *,
        allow_replication_factor_change: bool = True,
    ) -> dict[TopicPartition, ClientError | None]:
        """Move partitions to other replicas (the first one is the preferred leader); None cancels a reassignment.

        The call returns when the reassignment has begun; `list_partition_reassignments` shows what is in progress.
        allow_replication_factor_change: False has brokers refuse another number of replicas (KIP-860); brokers that do
        not know this are not asked: UnsupportedVersionError.
        """
        deadline = deadline or self._cluster.deadline()
        part_type = AlterPartitionReassignmentsRequest.ReassignablePartition
        by_topic: dict[str, list[AlterPartitionReassignmentsRequest.ReassignablePartition]] = {}
        for tp, replicas in targets.items():
            part = part_type(partition_index=tp.partition, replicas=None if replicas is None else list(replicas))
            by_topic.setdefault(tp.topic, []).append(part)
        topics = [
            AlterPartitionReassignmentsRequest.ReassignableTopic(name=name, partitions=parts)
            for name, parts in by_topic.items()
        ]

        def build(version: int) -> AlterPartitionReassignmentsRequest:
            if version < 1 and not allow_replication_factor_change:
                raise UnsupportedVersionError(
                    "the broker cannot refuse another number of replicas", "Compare them first"
                )
            return AlterPartitionReassignmentsRequest(
                topics=topics,
                timeout_ms=timeout_ms(deadline),
                allow_replication_factor_change=allow_replication_factor_change,
            )

        answer = self._cluster.send_request(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            build,
            AlterPartitionReassignmentsResponse,
            node=CONTROLLER,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "reassignment", answer.error_message),
        )
        results: dict[TopicPartition, ClientError | None] = {}
        for topic in answer.responses:
            for found in topic.partitions:
                tp = TopicPartition(topic.name, found.partition_index)
                results[tp] = refused_error(found.error_code, f"reassignment of {tp}", found.error_message)
        return _in_request_order(results, list(targets), "reassignment")

    def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition] | None = None, deadline: Deadline | None = None
    ) -> dict[TopicPartition, Reassignment]:
        """The reassignments in progress, of these partitions or of all."""
        deadline = deadline or self._cluster.deadline()
        topic_type = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
        asked = None
        if partitions is not None:
            asked = [topic_type(name=name, partition_indexes=p) for name, p in _by_topic(partitions).items()]
        answer = self._cluster.send_request(
            ApiKey.LIST_PARTITION_REASSIGNMENTS,
            lambda _: ListPartitionReassignmentsRequest(topics=asked, timeout_ms=timeout_ms(deadline)),
            ListPartitionReassignmentsResponse,
            node=CONTROLLER,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, "reassignments", answer.error_message),
        )
        return {
            TopicPartition(topic.name, found.partition_index): Reassignment(
                tuple(found.replicas), tuple(found.adding_replicas), tuple(found.removing_replicas)
            )
            for topic in answer.topics
            for found in topic.partitions
        }


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    by_topic: dict[str, list[int]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return by_topic


def _in_request_order(
    results: Mapping[TopicPartition, ClientError | None], wanted: Sequence[TopicPartition], what: str
) -> dict[TopicPartition, ClientError | None]:
    """Results in the order of the request. Raises MalformedReplyError if one is missing."""
    missing = [tp for tp in wanted if tp not in results]
    if missing:
        raise MalformedReplyError(f"the response to the {what} request has no result for {missing[0]}")
    return {tp: results[tp] for tp in wanted}
