"""What counts for a whole request counts although it is handled in parts: names that it has twice, and sums.

Zone: real (it drives a broker by hand).
"""

from __future__ import annotations

from collections import Counter

import pytest

from ottla.broker.slicing import INLINE, SMALL
from ottla.cluster.topics import MAX_PARTITIONS_PER_REQUEST
from ottla.errors import ErrorCode
from ottla.wire.codec import encode_bytes
from ottla.wire.messages import (
    AlterConfigsRequest,
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    IncrementalAlterConfigsRequest,
    ListPartitionReassignmentsRequest,
)

TOPIC = 2
TWICE = ErrorCode.INVALID_REQUEST
COUNTS = (80, 1_000)
"""Elements of a request that is decoded at once, and of one that is decoded slice by slice."""


def names(count):
    """As many, of which the first is also the last."""
    return [*(f"name-{number}" for number in range(count)), "name-0"]


def ask(node, request, version, count):
    size = len(encode_bytes(request, version))
    assert SMALL < size <= INLINE if count == COUNTS[0] else size > INLINE
    return node.ask(request, version)


def creation(wanted, **more):
    topic = CreateTopicsRequest.CreatableTopic
    topics = [topic(name=name, num_partitions=1, replication_factor=1) for name in wanted]
    return CreateTopicsRequest(topics=topics, validate_only=True, timeout_ms=1_000, **more)


@pytest.mark.parametrize("count", COUNTS)
def test_a_topic_to_create_twice_is_refused_once(node, count) -> None:
    topics = ask(node, creation(names(count)), 5, count).topics
    assert [each.error_code for each in topics] == [TWICE, *([0] * (count - 1))]
    assert len({each.name for each in topics}) == count


@pytest.mark.parametrize("count", COUNTS)
def test_a_topic_to_grow_twice_is_refused_once(node, count) -> None:
    topic = CreatePartitionsRequest.CreatePartitionsTopic
    request = CreatePartitionsRequest(topics=[topic(name=name, count=2) for name in names(count)])
    results = ask(node, request, 3, count).results
    assert [each.error_code for each in results] == [TWICE, *([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (count - 1))]


@pytest.mark.parametrize("version", [5, 6])
@pytest.mark.parametrize("count", COUNTS)
def test_a_topic_to_delete_twice_is_refused_once(node, count, version) -> None:
    state = DeleteTopicsRequest.DeleteTopicState
    request = DeleteTopicsRequest(timeout_ms=1_000)
    if version < 6:
        request.topic_names = names(count)
    else:
        request.topics = [state(name=name) for name in names(count)]
    codes = [each.error_code for each in ask(node, request, version, count).responses]
    assert codes == [TWICE, *([ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (count - 1))]


@pytest.mark.parametrize("kind", [AlterConfigsRequest, IncrementalAlterConfigsRequest])
@pytest.mark.parametrize("count", COUNTS)
def test_a_resource_to_alter_twice_is_refused_both_times(node, count, kind) -> None:
    resource = kind.AlterConfigsResource
    request = kind(resources=[resource(resource_type=TOPIC, resource_name=name) for name in names(count)])
    responses = ask(node, request, 1, count).responses
    assert [each.resource_name for each in responses] == names(count)
    unknown = [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * (count - 1)
    assert [each.error_code for each in responses] == [TWICE, *unknown, TWICE]


@pytest.mark.parametrize("count", [300, 3_000])
def test_partitions_named_twice_refuse_the_whole_request(node, count) -> None:
    indexes = [*range(count), 0]
    elect, move = ElectLeadersRequest, AlterPartitionReassignmentsRequest
    moved = [move.ReassignablePartition(partition_index=index, replicas=[1]) for index in indexes]
    listed = ListPartitionReassignmentsRequest
    for request, version in (
        (elect(topic_partitions=[elect.TopicPartitions(topic="t", partitions=indexes)]), 2),
        (move(topics=[move.ReassignableTopic(name="t", partitions=moved)]), 0),
        (listed(topics=[listed.ListPartitionReassignmentsTopics(name="t", partition_indexes=indexes)]), 0),
    ):
        assert node.ask(request, version).error_code == TWICE


def test_the_partitions_of_a_request_are_counted_over_its_parts(node) -> None:
    topic = CreateTopicsRequest.CreatableTopic
    each = MAX_PARTITIONS_PER_REQUEST // 100
    topics = [topic(name=f"n{number}", num_partitions=each, replication_factor=1) for number in range(103)]
    request = CreateTopicsRequest(topics=topics, validate_only=True, timeout_ms=1_000)
    codes = Counter(each.error_code for each in node.ask(request, 5).topics)
    assert codes == {0: 100, ErrorCode.POLICY_VIOLATION: 3}
