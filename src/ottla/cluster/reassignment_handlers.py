"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments: what administrators ask of the controller.

Zone: deterministic. Requests become calls of the controller's office, per partition an outcome with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

from ottla.cluster.controller.controller import ElectionType, Reassignment
from ottla.cluster.topic_requests import TopicRequests
from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, Parts, handles
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

MAX_PARTITIONS: Final = 50_000
"""Partitions that one request may name: answering takes the loop's time."""

T = TypeVar("T")


class ReassignmentHandlers:
    """The controller, asked by administrators."""

    def __init__(self, topics: TopicRequests) -> None:
        self._topics = topics

    # -- ElectLeaders ------------------------------------------------------------------------------------------

    @handles(
        ApiKey.ELECT_LEADERS,
        0,
        2,
        resource="Cluster",
        operation="Alter",
        parts=Parts(
            cost_us=20,
            request=(("topic_partitions", "partitions"),),
            response=(("replica_election_results", "partition_result"),),
        ),
    )
    def elect_leaders(self, context: Context, request: ElectLeadersRequest) -> None:
        """Elect the preferred leaders, or uncleanly; null: wherever it is needed."""
        if request.election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"there is no election of type {request.election_type}")
        partitions = None
        if request.topic_partitions is not None:
            partitions = _named((topic.topic, topic.partitions) for topic in request.topic_partitions)

        def elected(outcome: Mapping[TopicPartition, ApiError | None] | ApiError) -> None:
            context.reply(outcome if isinstance(outcome, ApiError) else _elections(outcome))

        self._topics.controller.elect_leaders(ElectionType(request.election_type), partitions, elected)

    # -- reassignments -----------------------------------------------------------------------------------------

    @handles(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        1,
        resource="Cluster",
        operation="Alter",
        parts=Parts(cost_us=50, request=(("topics", "partitions"),), response=(("responses", "partitions"),)),
    )
    def alter_partition_reassignments(self, context: Context, request: AlterPartitionReassignmentsRequest) -> None:
        """Move partitions to other replicas; null: stop moving them."""
        _named((topic.name, [one.partition_index for one in topic.partitions]) for topic in request.topics)
        targets = {
            TopicPartition(topic.name, one.partition_index): None if one.replicas is None else tuple(one.replicas)
            for topic in request.topics
            for one in topic.partitions
        }
        allowed = context.api_version < 1 or request.allow_replication_factor_change

        def recorded(outcome: Mapping[TopicPartition, ApiError | None] | ApiError) -> None:
            context.reply(outcome if isinstance(outcome, ApiError) else _moves(outcome, allowed))

        self._topics.controller.alter_reassignments(targets, allowed, recorded)

    @handles(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, resource="Cluster", operation="Describe")
    def list_partition_reassignments(self, context: Context, request: ListPartitionReassignmentsRequest) -> None:
        """Partitions on the move, among those that are named or (null) all."""
        partitions = None
        if request.topics is not None:
            partitions = _named((topic.name, topic.partition_indexes) for topic in request.topics)

        def listed(outcome: Mapping[TopicPartition, Reassignment] | ApiError) -> None:
            context.reply(outcome if isinstance(outcome, ApiError) else _ongoing(outcome))

        self._topics.controller.list_reassignments(partitions, listed)


def _named(topics: Iterable[tuple[str, Sequence[int]]]) -> list[TopicPartition]:
    """The partitions of a request. Raises ApiError INVALID_REQUEST for too many, and for one that is named twice."""
    found = [TopicPartition(topic, partition) for topic, partitions in topics for partition in partitions]
    if len(found) > MAX_PARTITIONS:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"a request may name {MAX_PARTITIONS} partitions, not {len(found)}")
    if len(dict.fromkeys(found)) != len(found):
        raise ApiError(ErrorCode.INVALID_REQUEST, "the request names a partition more than once")
    return found


def _by_topic(outcomes: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    topics: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), outcome in outcomes.items():
        topics.setdefault(topic, []).append((partition, outcome))
    return topics


def _elections(outcomes: Mapping[TopicPartition, ApiError | None]) -> ElectLeadersResponse:
    result, one = ElectLeadersResponse.ReplicaElectionResult, ElectLeadersResponse.PartitionResult
    return ElectLeadersResponse(
        replica_election_results=[
            result(
                topic=topic,
                partition_result=[
                    one(partition_id=index, error_code=_code(error), error_message=_message(error))
                    for index, error in partitions
                ],
            )
            for topic, partitions in _by_topic(outcomes).items()
        ]
    )


def _moves(
    outcomes: Mapping[TopicPartition, ApiError | None], factor_may_change: bool
) -> AlterPartitionReassignmentsResponse:
    topic_response = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    response = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=factor_may_change,
        error_message=None,
        responses=[
            topic_response(
                name=topic,
                partitions=[
                    response(partition_index=index, error_code=_code(error), error_message=_message(error))
                    for index, error in partitions
                ],
            )
            for topic, partitions in _by_topic(outcomes).items()
        ],
    )


def _ongoing(moves: Mapping[TopicPartition, Reassignment]) -> ListPartitionReassignmentsResponse:
    topic_response = ListPartitionReassignmentsResponse.OngoingTopicReassignment
    response = ListPartitionReassignmentsResponse.OngoingPartitionReassignment
    return ListPartitionReassignmentsResponse(
        error_message=None,
        topics=[
            topic_response(
                name=topic,
                partitions=[
                    response(
                        partition_index=index,
                        replicas=list(move.replicas),
                        adding_replicas=list(move.adding),
                        removing_replicas=list(move.removing),
                    )
                    for index, move in partitions
                ],
            )
            for topic, partitions in _by_topic(moves).items()
        ],
    )


def _code(error: ApiError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


def _message(error: ApiError | None) -> str | None:
    return None if error is None else error.message or None
