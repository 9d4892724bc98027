"""Elections and reassignments: results per partition, errors of the whole request, incomplete responses."""

from __future__ import annotations

import pytest

from ottla.client import (
    Admin,
    Cluster,
    ElectionType,
    MalformedReplyError,
    Reassignment,
    RefusedError,
    TopicPartition,
)
from ottla.errors import ErrorCode
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AlterPartitionReassignmentsResponse,
    ElectLeadersResponse,
    ListPartitionReassignmentsResponse,
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOT_NEEDED = int(ErrorCode.ELECTION_NOT_NEEDED)


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


def elected(*items: tuple[int, int]) -> ElectLeadersResponse:
    result = ElectLeadersResponse.PartitionResult
    parts = [result(partition_id=number, error_code=code, error_message=None) for number, code in items]
    return ElectLeadersResponse(
        replica_election_results=[ElectLeadersResponse.ReplicaElectionResult(topic="t", partition_result=parts)]
    )


def test_elections_of_named_partitions(admin: Admin, broker) -> None:
    broker.on[ApiKey.ELECT_LEADERS] = lambda request: request.reply(elected((1, NOT_NEEDED), (0, 0)))
    results = admin.elect_leaders(ElectionType.PREFERRED, [T0, T1, T0])
    assert list(results) == [T0, T1]
    assert results[T0] is None
    assert isinstance(results[T1], RefusedError)
    assert results[T1].code is ErrorCode.ELECTION_NOT_NEEDED
    (request,) = broker.asked(ApiKey.ELECT_LEADERS)
    message = request.message()
    assert (message.election_type, message.topic_partitions[0].partitions) == (0, [0, 1])


def test_an_election_of_all_partitions_sends_null(admin: Admin, broker) -> None:
    broker.on[ApiKey.ELECT_LEADERS] = lambda request: request.reply(elected((7, 0)))
    assert admin.elect_leaders(ElectionType.UNCLEAN) == {TopicPartition("t", 7): None}
    message = broker.asked(ApiKey.ELECT_LEADERS)[0].message()
    assert (message.election_type, message.topic_partitions) == (1, None)


def test_a_refused_election_is_raised(admin: Admin, broker) -> None:
    code = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    broker.on[ApiKey.ELECT_LEADERS] = lambda request: request.reply(ElectLeadersResponse(error_code=code))
    with pytest.raises(RefusedError) as refused:
        admin.elect_leaders(ElectionType.PREFERRED)
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_elections_are_retried_when_the_controller_moved(admin: Admin, broker) -> None:
    answers = [int(ErrorCode.NOT_CONTROLLER), 0]

    def send_response(request):
        code = answers.pop(0)
        return request.reply(ElectLeadersResponse(error_code=code) if code else elected((0, 0)))

    broker.on[ApiKey.ELECT_LEADERS] = send_response
    assert admin.elect_leaders(ElectionType.PREFERRED, [T0]) == {T0: None}
    assert len(broker.asked(ApiKey.ELECT_LEADERS)) == 2


def reassigned(*items: tuple[int, int]) -> AlterPartitionReassignmentsResponse:
    part = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
    topic = AlterPartitionReassignmentsResponse.ReassignableTopicResponse
    parts = [
        part(partition_index=number, error_code=code, error_message="why" if code else None) for number, code in items
    ]
    return AlterPartitionReassignmentsResponse(responses=[topic(name="t", partitions=parts)])


def test_reassignments_and_cancellations(admin: Admin, broker) -> None:
    none = int(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    broker.on[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = lambda request: request.reply(reassigned((0, 0), (1, none)))
    results = admin.alter_partition_reassignments({T0: [2, 1], T1: None})
    assert results[T0] is None
    assert results[T1].code is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert "why" in str(results[T1])
    (topic,) = broker.asked(ApiKey.ALTER_PARTITION_REASSIGNMENTS)[0].message().topics
    assert [(each.partition_index, each.replicas) for each in topic.partitions] == [(0, [2, 1]), (1, None)]


def test_a_response_without_a_requested_partition_is_malformed(admin: Admin, broker) -> None:
    broker.on[ApiKey.ALTER_PARTITION_REASSIGNMENTS] = lambda request: request.reply(reassigned((0, 0)))
    with pytest.raises(MalformedReplyError, match="t-1"):
        admin.alter_partition_reassignments({T0: [1], T1: [1]})


@pytest.mark.parametrize("asked", [None, [T0]])
def test_reassignments_in_progress_are_listed(admin: Admin, broker, asked) -> None:
    moving = ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
        partition_index=0, replicas=[1, 2, 3], adding_replicas=[3], removing_replicas=[1]
    )
    topic = ListPartitionReassignmentsResponse.OngoingTopicReassignment(name="t", partitions=[moving])
    answer = ListPartitionReassignmentsResponse(topics=[topic])
    broker.on[ApiKey.LIST_PARTITION_REASSIGNMENTS] = lambda request: request.reply(answer)
    assert admin.list_partition_reassignments(asked) == {T0: Reassignment((1, 2, 3), (3,), (1,))}
    topics = broker.asked(ApiKey.LIST_PARTITION_REASSIGNMENTS)[0].message().topics
    assert (topics is None) == (asked is None)
