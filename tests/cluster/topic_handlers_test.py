"""Topics created, grown and deleted over the wire, in every version, with valid and invalid input.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.cluster.conftest import make

from ottla.errors import ErrorCode
from ottla.wire.messages import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

New = CreateTopicsRequest.CreatableTopic
Setting = CreateTopicsRequest.CreatableTopicConfig
Assignment = CreateTopicsRequest.CreatableReplicaAssignment


@pytest.mark.parametrize("version", range(8))
def test_create_describe_delete_in_every_version(node, version):
    new = New(name="t", num_partitions=2, replication_factor=1, configs=[Setting(name="retention.ms", value="5")])
    (made,) = node.ask(CreateTopicsRequest(topics=[new]), version).topics
    assert (made.name, made.error_code) == ("t", 0)
    if version >= 5:
        assert (made.num_partitions, made.replication_factor) == (2, 1)
        configs = {one.name: (one.value, one.config_source) for one in made.configs}
        assert configs["retention.ms"] == ("5", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
    (again,) = node.ask(CreateTopicsRequest(topics=[new]), version).topics
    assert again.error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    if version < 7:
        old = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
        new = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="t")], timeout_ms=1000)
        request = old if version < 6 else new
        (gone,) = node.ask(request, version).responses
        assert (gone.name, gone.error_code) == ("t", 0)
        (gone,) = node.ask(request, version).responses
        assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_broker_defaults_and_manual_assignments(make_node):
    node = make_node({"num.partitions": "4"})
    answer = node.ask(
        CreateTopicsRequest(
            topics=[
                New(name="default", num_partitions=-1, replication_factor=-1),
                New(
                    name="by-hand",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[Assignment(partition_index=0, broker_ids=[1])],
                ),
                New(
                    name="twice",
                    num_partitions=-1,
                    replication_factor=-1,
                    assignments=[Assignment(partition_index=0, broker_ids=[1])] * 2,
                ),
                New(
                    name="null",
                    num_partitions=1,
                    replication_factor=1,
                    configs=[Setting(name="retention.ms", value=None)],
                ),
            ]
        ),
        7,
    )
    assert {topic.name: (topic.error_code, topic.num_partitions) for topic in answer.topics} == {
        "default": (0, 4),
        "by-hand": (0, 1),
        "twice": (ErrorCode.INVALID_REPLICA_ASSIGNMENT, -1),
        "null": (ErrorCode.INVALID_CONFIG, -1),
    }


def test_a_topic_named_twice_or_too_many_partitions_are_refused(node):
    answer = node.ask(
        CreateTopicsRequest(
            topics=[
                New(name="a", num_partitions=1, replication_factor=1),
                New(name="a", num_partitions=2, replication_factor=1),
                New(name="b", num_partitions=9_999, replication_factor=1),
                New(name="c", num_partitions=2, replication_factor=1),
                New(name="d", num_partitions=2**31 - 1, replication_factor=1),
            ],
            validate_only=True,
        ),
        4,
    )
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "a": ErrorCode.INVALID_REQUEST,
        "b": 0,
        "c": ErrorCode.POLICY_VIOLATION,
        "d": ErrorCode.POLICY_VIOLATION,
    }
    assert all(topic.error_message for topic in answer.topics if topic.error_code)
    assert node.cluster.image.topics == {}


def test_more_partitions_are_refused_by_the_length_of_their_assignments_too(node):
    """Whatever number of partitions the request names."""
    make(node, "t")
    grown = CreatePartitionsRequest.CreatePartitionsTopic(name="t", count=2)
    given = CreatePartitionsRequest.CreatePartitionsAssignment(broker_ids=list(range(12)))
    for length, code in ((10_000, ErrorCode.INVALID_REPLICA_ASSIGNMENT), (10_001, ErrorCode.POLICY_VIOLATION)):
        grown.assignments = [given] * length
        assert node.ask(CreatePartitionsRequest(topics=[grown]), 3).results[0].error_code == code


def test_delete_by_id_and_refused_deletions(node):
    topic = make(node, "t")
    state = DeleteTopicsRequest.DeleteTopicState
    answer = node.ask(
        DeleteTopicsRequest(
            timeout_ms=1000,
            topics=[
                state(name=None, topic_id=topic.topic_id),
                state(name=None, topic_id=bytes([5] * 16)),
                state(name=None),
                state(name="t", topic_id=topic.topic_id),
                state(name="double"),
                state(name="double"),
            ],
        ),
        6,
    )
    assert [one.error_code for one in answer.responses] == [
        0,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.INVALID_REQUEST,
    ]
    assert answer.responses[0].name == "t"
    assert node.cluster.image.topics == {}


def test_deletion_can_be_disabled(make_node):
    node = make_node({"delete.topic.enable": "false"})
    make(node, "t")
    request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    assert node.ask(request, 3).responses[0].error_code == ErrorCode.TOPIC_DELETION_DISABLED
    assert node.ask(request, 2).responses[0].error_code == ErrorCode.INVALID_REQUEST
    assert "t" in node.cluster.image.topics


@pytest.mark.parametrize("version", range(4))
def test_create_partitions(node, version):
    make(node, "t", 1)
    topic, assignment = (
        CreatePartitionsRequest.CreatePartitionsTopic,
        CreatePartitionsRequest.CreatePartitionsAssignment,
    )
    request = CreatePartitionsRequest(
        timeout_ms=1000,
        topics=[
            topic(name="t", count=3, assignments=[assignment(broker_ids=[1]), assignment(broker_ids=[1])]),
            topic(name="no", count=3, assignments=None),
            topic(name="x", count=3, assignments=None),
            topic(name="x", count=4, assignments=None),
        ],
    )
    answer = node.ask(request, version)
    assert {one.name: one.error_code for one in answer.results} == {
        "t": 0,
        "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "x": ErrorCode.INVALID_REQUEST,
    }
    assert len(node.cluster.image.topic_by_name("t").partitions) == 3
