"""ElectLeaders, AlterPartitionReassignments, ListPartitionReassignments: requests of administrators.

Zone: deterministic. Requests become calls of the controller, whose outcomes become responses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Final, TypeVar

from ottla.cluster.controller.controller import Controller, ElectionType, OngoingReassignment
from ottla.cluster.topic_requests import TopicRequests
from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, InParts, Parts, handles
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
from ottla.wire.slices import with_array

_PIECE: Final = 125
"""Partitions in one part of a request for all of them."""

T = TypeVar("T")


class ReassignmentHandlers:
    """Handles requests of administrators to the controller."""

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
            names=lambda topic: ((topic.topic, index) for index in topic.partitions),
        ),
    )
    def elect_leaders(self, context: Context, request: ElectLeadersRequest) -> InParts | None:
        """Elect preferred or unclean leaders. null: for all partitions that need it, some at a time."""
        if request.election_type not in (ElectionType.PREFERRED, ElectionType.UNCLEAN):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown type of election: {request.election_type}")
        controller = self._topics.controller
        if request.topic_partitions is None:
            return InParts(_parts_of_all(request, controller))
        partitions = _named_partitions(context, ((topic.topic, topic.partitions) for topic in request.topic_partitions))
        is_all = context.whole is not None and context.whole.is_all

        def elected(outcome: Mapping[TopicPartition, ApiError | None] | ApiError) -> None:
            context.send_reply(outcome if isinstance(outcome, ApiError) else _elect_response(outcome))

        controller.elect_leaders(
            ElectionType(request.election_type), partitions, context.wrap_step(elected), only_needed=is_all
        )
        return None

    # -- reassignments -----------------------------------------------------------------------------------------

    @handles(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        1,
        resource="Cluster",
        operation="Alter",
        parts=Parts(
            cost_us=50,
            request=(("topics", "partitions"),),
            response=(("responses", "partitions"),),
            names=lambda topic: ((topic.name, one.partition_index) for one in topic.partitions),
        ),
    )
    def alter_partition_reassignments(self, context: Context, request: AlterPartitionReassignmentsRequest) -> None:
        """Move partitions to other replicas; null cancels a move."""
        _named_partitions(
            context, ((topic.name, [one.partition_index for one in topic.partitions]) for topic in request.topics)
        )
        targets = {
            TopicPartition(topic.name, one.partition_index): None if one.replicas is None else tuple(one.replicas)
            for topic in request.topics
            for one in topic.partitions
        }
        allowed = context.api_version < 1 or request.allow_replication_factor_change

        def recorded(outcome: Mapping[TopicPartition, ApiError | None] | ApiError) -> None:
            context.send_reply(outcome if isinstance(outcome, ApiError) else _alter_response(outcome, allowed))

        self._topics.controller.alter_reassignments(targets, allowed, context.wrap_step(recorded))

    @handles(
        ApiKey.LIST_PARTITION_REASSIGNMENTS,
        0,
        0,
        resource="Cluster",
        operation="Describe",
        parts=Parts(
            cost_us=10,
            request=(("topics", "partition_indexes"),),
            response=(("topics", "partitions"),),
            names=lambda topic: ((topic.name, index) for index in topic.partition_indexes),
        ),
    )
    def list_partition_reassignments(
        self, context: Context, request: ListPartitionReassignmentsRequest
    ) -> InParts | None:
        """List the partitions that are being moved, among those named or (null) all."""
        controller = self._topics.controller
        if request.topics is None:
            return InParts(_parts_of_moving(request, controller))
        partitions = _named_partitions(context, ((topic.name, topic.partition_indexes) for topic in request.topics))

        def listed(outcome: Mapping[TopicPartition, OngoingReassignment] | ApiError) -> None:
            context.send_reply(outcome if isinstance(outcome, ApiError) else _list_response(outcome))

        controller.list_reassignments(partitions, context.wrap_step(listed))
        return None


def _named_partitions(context: Context, topics: Iterable[tuple[str, Sequence[int]]]) -> list[TopicPartition]:
    """The partitions of a request. Raises ApiError INVALID_REQUEST if the whole request names one twice."""
    found = [TopicPartition(topic, partition) for topic, partitions in topics for partition in partitions]
    if context.repeated_names(found):
        raise ApiError(ErrorCode.INVALID_REQUEST, "the request names a partition more than once")
    return found


def _parts_of_all(request: ElectLeadersRequest, controller: Controller) -> Iterator[ElectLeadersRequest]:
    """The request split into parts that name some of all partitions; at least one part."""
    named = ElectLeadersRequest.TopicPartitions
    for some in _chunks_by_topic(controller.all_partitions()):
        topics = [named(topic=topic, partitions=partitions) for topic, partitions in some]
        yield with_array(request, "topic_partitions", topics)
    yield with_array(request, "topic_partitions", [])


def _parts_of_moving(
    request: ListPartitionReassignmentsRequest, controller: Controller
) -> Iterator[ListPartitionReassignmentsRequest]:
    """The request split into parts that name some of the partitions being moved; at least one part."""
    named = ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    for some in _chunks_by_topic(controller.moving_partitions()):
        topics = [named(name=topic, partition_indexes=partitions) for topic, partitions in some]
        yield with_array(request, "topics", topics)
    yield with_array(request, "topics", [])


def _chunks_by_topic(partitions: Iterable[TopicPartition]) -> Iterator[list[tuple[str, list[int]]]]:
    """Up to `_PIECE` partitions at a time, by topic."""
    left = iter(partitions)
    while chunk := list(islice(left, _PIECE)):
        yield [(topic, [tp.partition for tp in tps]) for topic, tps in groupby(chunk, key=attrgetter("topic"))]


def _by_topic(outcomes: Mapping[TopicPartition, T]) -> dict[str, list[tuple[int, T]]]:
    topics: dict[str, list[tuple[int, T]]] = {}
    for (topic, partition), outcome in outcomes.items():
        topics.setdefault(topic, []).append((partition, outcome))
    return topics


def _elect_response(outcomes: Mapping[TopicPartition, ApiError | None]) -> ElectLeadersResponse:
    result, one = ElectLeadersResponse.ReplicaElectionResult, ElectLeadersResponse.PartitionResult
    return ElectLeadersResponse(
        replica_election_results=[
            result(
                topic=topic,
                partition_result=[
                    one(partition_id=index, error_code=_error_code(error), error_message=_error_message(error))
                    for index, error in partitions
                ],
            )
            for topic, partitions in _by_topic(outcomes).items()
        ]
    )


def _alter_response(
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
                    response(partition_index=index, error_code=_error_code(error), error_message=_error_message(error))
                    for index, error in partitions
                ],
            )
            for topic, partitions in _by_topic(outcomes).items()
        ],
    )


def _list_response(moves: Mapping[TopicPartition, OngoingReassignment]) -> ListPartitionReassignmentsResponse:
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


def _error_code(error: ApiError | None) -> ErrorCode:
    return ErrorCode.NONE if error is None else error.code


def _error_message(error: ApiError | None) -> str | None:
    return None if error is None else error.message or None
