"""The administrative APIs over the wire, in every version, with valid and invalid input.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.cluster.conftest import make
from tests.steps import count_steps

from ottla.cluster.handlers.metadata_handlers import MAX_AWAITED
from ottla.cluster.handlers.topic_page_handlers import MAX_NAMED
from ottla.cluster.topic_requests import MAX_BEGUN
from ottla.errors import ApiError, ErrorCode
from ottla.wire.messages import (
    ApiVersionsRequest,
    CreateTopicsRequest,
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    InitProducerIdRequest,
    MetadataRequest,
)

Asked = MetadataRequest.MetadataRequestTopic
New = CreateTopicsRequest.CreatableTopic


# -- Metadata --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(14))
def test_metadata_in_every_version(node, version):
    topic = make(node, "t", 2)
    answer = node.ask(MetadataRequest(topics=[Asked(name="t")]), version)
    (broker,) = answer.brokers
    assert (broker.node_id, broker.host, broker.port) == (1, "here", 9092)
    (found,) = answer.topics
    assert (found.error_code, found.name, len(found.partitions)) == (0, "t", 2)
    assert [p.leader_id for p in found.partitions] == [1, 1]
    if version >= 1:
        assert answer.controller_id == 1
    if version >= 2:
        assert answer.cluster_id == node.cluster.image.cluster_id
    if version >= 10:
        assert found.topic_id == topic.topic_id


def test_metadata_of_all_topics_and_of_none(node):
    make(node, "a")
    make(node, "b")
    assert [t.name for t in node.ask(MetadataRequest(topics=[]), 0).topics] == ["a", "b"]
    assert node.ask(MetadataRequest(topics=[]), 1).topics == []
    assert [t.name for t in node.ask(MetadataRequest(topics=None), 1).topics] == ["a", "b"]


def test_metadata_has_the_addresses_of_the_clients_listener(node):
    assert node.ask(MetadataRequest(topics=[]), 12, "INSIDE").brokers[0].host == "10.0.0.1"
    assert node.ask(MetadataRequest(topics=[]), 12).brokers[0].host == "here"
    assert node.ask(MetadataRequest(topics=[]), 12, "OTHER").brokers == []
    make(node, "t")
    other = node.ask(MetadataRequest(topics=None), 12, "OTHER").topics[0].partitions[0]
    assert other.error_code == ErrorCode.LISTENER_NOT_FOUND


def test_cached_metadata_follows_the_image(node):
    request = MetadataRequest(topics=None)
    assert node.ask(request, 12).topics == []
    make(node, "t")
    assert [t.name for t in node.ask(request, 12).topics] == ["t"]
    assert [t.name for t in node.ask(request, 12).topics] == ["t"]
    node.wait(lambda done: node.topics.delete_topic("t", 1000, done))
    assert node.ask(request, 12).topics == []
    assert node.ask(MetadataRequest(topics=[Asked(name="t")], allow_auto_topic_creation=False), 12).topics[
        0
    ].error_code == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_metadata_creates_a_missing_topic_if_allowed(make_node):
    node = make_node({"num.partitions": "3"})
    for version in (0, 3, 4, 13):
        found = node.ask(MetadataRequest(topics=[Asked(name=f"new-{version}")]), version).topics[0]
        assert (found.error_code, len(found.partitions)) == (0, 3)
    refused = node.ask(MetadataRequest(topics=[Asked(name="no")], allow_auto_topic_creation=False), 4)
    assert refused.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    off = make_node({"auto.create.topics.enable": "false"})
    assert off.ask(MetadataRequest(topics=[Asked(name="no")]), 4).topics[0].error_code == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    )
    assert off.cluster.image.topics == {}


def test_metadata_creates_internal_topics_with_their_settings(node):
    found = node.ask(MetadataRequest(topics=[Asked(name="__consumer_offsets")]), 12).topics[0]
    assert (found.error_code, found.is_internal, len(found.partitions)) == (0, True, 50)


@pytest.mark.slow
def test_metadata_of_many_missing_topics_does_not_create_all(node):
    names = [Asked(name=f"n{number}") for number in range(1_000)]
    answer = node.ask(MetadataRequest(topics=names), 12)
    codes = [topic.error_code for topic in answer.topics]
    assert codes == [ErrorCode.LEADER_NOT_AVAILABLE] * MAX_BEGUN + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 900
    assert len(node.cluster.image.topics) == MAX_BEGUN, "they were created after the answer"
    again = node.ask(MetadataRequest(topics=names[: MAX_BEGUN + 20]), 12)
    assert [topic.error_code for topic in again.topics] == [0] * MAX_BEGUN + [ErrorCode.LEADER_NOT_AVAILABLE] * 20
    assert len(node.cluster.image.topics) == MAX_BEGUN + 20


def test_metadata_waits_for_a_few_missing_topics(node):
    names = [Asked(name=f"n{number}") for number in range(MAX_AWAITED)]
    assert not any(topic.error_code for topic in node.ask(MetadataRequest(topics=names), 12).topics)


def test_descriptions_of_too_many_names_are_refused(node):
    asked = [DescribeTopicPartitionsRequest.TopicRequest(name=f"n{number}") for number in range(MAX_NAMED + 1)]
    found = node.ask(DescribeTopicPartitionsRequest(topics=asked), 0).topics
    assert [(topic.name, topic.error_code) for topic in found] == [
        (topic.name, ErrorCode.INVALID_REQUEST) for topic in asked
    ]


def test_metadata_of_an_invalid_name(node):
    for name in ("", ".", "..", "a/../b", "x" * 250):
        found = node.ask(MetadataRequest(topics=[Asked(name=name), Asked(name=name)]), 12).topics
        assert [topic.error_code for topic in found] == [ErrorCode.INVALID_TOPIC_EXCEPTION]
    assert node.cluster.image.topics == {}


def test_metadata_by_id(node):
    topic = make(node, "t")
    by_id = Asked(name=None, topic_id=topic.topic_id)
    unknown = Asked(name=None, topic_id=bytes([9] * 16))
    found = node.ask(MetadataRequest(topics=[by_id, unknown]), 12).topics
    assert (found[0].name, found[0].error_code) == ("t", 0)
    assert (found[1].name, found[1].error_code) == (None, ErrorCode.UNKNOWN_TOPIC_ID)
    assert isinstance(node.ask(MetadataRequest(topics=[Asked(name=None)]), 12), ApiError)


def test_metadata_with_authorized_operations(node):
    make(node, "t")
    plain = node.ask(MetadataRequest(topics=[Asked(name="t")]), 8)
    assert plain.topics[0].topic_authorized_operations == plain.cluster_authorized_operations == -(2**31)
    asked = MetadataRequest(
        topics=[Asked(name="t")],
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=True,
    )
    answer = node.ask(asked, 8)
    assert answer.topics[0].topic_authorized_operations == 0b1101_1111_1000
    assert answer.cluster_authorized_operations == 0b1_1111_1010_0000


def test_a_failing_disk_is_an_error_in_the_response(node):
    node.drive.capacity = node.drive.used_bytes() + 10
    found = node.ask(MetadataRequest(topics=[Asked(name="t")]), 12).topics[0]
    assert found.error_code == ErrorCode.KAFKA_STORAGE_ERROR


# -- ApiVersions, DescribeCluster, DescribeTopicPartitions -----------------------------------------------------------


@pytest.mark.parametrize("version", range(5))
def test_api_versions_are_those_of_the_handlers(node, version):
    request = ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7.1")
    answer = node.ask(request, version)
    assert answer.error_code == 0
    offered = {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys}
    assert offered == node.broker._dispatch.version_ranges()
    assert (offered[0], offered[3], offered[18]) == ((0, 13), (0, 13), (0, 4))


@pytest.mark.parametrize("version", range(5))
def test_api_versions_are_encoded_once_per_version(node, version):
    request = ApiVersionsRequest(client_software_name="kcat", client_software_version="1.7.1")
    first = count_steps(lambda: node.send(request, version))
    assert count_steps(lambda: node.send(request, version)) < first / 4


@pytest.mark.parametrize("name", ["", "-x", "a b", "x\n"])
def test_api_versions_refuses_an_invalid_client_name(node, name):
    request = ApiVersionsRequest(client_software_name=name, client_software_version="1")
    assert node.ask(request, 3).error_code == ErrorCode.INVALID_REQUEST
    assert node.ask(request, 2).error_code == 0


@pytest.mark.parametrize("version", range(3))
def test_describe_cluster(node, version):
    answer = node.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert (answer.cluster_id, answer.controller_id) == (node.cluster.image.cluster_id, 1)
    assert [(b.broker_id, b.host, b.port) for b in answer.brokers] == [(1, "here", 9092)]
    assert answer.cluster_authorized_operations > 0
    if version:
        refused = node.ask(DescribeClusterRequest(endpoint_type=2), version)
        assert refused.error_code == ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


def test_topic_partitions_come_in_pages(node):
    make(node, "a", 3)
    make(node, "b", 2)
    seen, cursor = [], None
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor)
        answer = node.ask(request, 0)
        seen += [(topic.name, p.partition_index) for topic in answer.topics for p in topic.partitions]
        assert sum(len(topic.partitions) for topic in answer.topics) <= 2
        if answer.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
        )
    assert seen == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1)]
    asked = DescribeTopicPartitionsRequest.TopicRequest
    answer = node.ask(DescribeTopicPartitionsRequest(topics=[asked(name="no"), asked(name="")]), 0)
    assert {topic.name: topic.error_code for topic in answer.topics} == {
        "no": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "": ErrorCode.INVALID_TOPIC_EXCEPTION,
    }
    bad = DescribeTopicPartitionsRequest.Cursor(topic_name="a", partition_index=-1)
    assert isinstance(node.ask(DescribeTopicPartitionsRequest(cursor=bad), 0), ApiError)


# -- FindCoordinator, InitProducerId ---------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(7))
def test_the_coordinator_of_a_group_is_the_leader_of_its_partition(node, version):
    old = FindCoordinatorRequest(key="g")
    request = old if version < 4 else FindCoordinatorRequest(coordinator_keys=["g", "h"])
    answer = node.ask(request, version)
    assert len(node.cluster.image.topic_by_name("__consumer_offsets").partitions) == 50
    if version < 4:
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, 1, "here", 9092)
    else:
        assert [(c.key, c.error_code, c.node_id) for c in answer.coordinators] == [("g", 0, 1), ("h", 0, 1)]


def test_coordinators_of_other_types(node):
    assert node.ask(FindCoordinatorRequest(key="t", key_type=1), 3).node_id == 1
    assert node.cluster.image.topic_by_name("__transaction_state") is not None
    assert node.ask(FindCoordinatorRequest(key="t", key_type=7), 3).error_code == ErrorCode.INVALID_REQUEST
    shares = node.ask(FindCoordinatorRequest(key_type=2, coordinator_keys=["g:t:0"]), 6)
    assert shares.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    assert node.ask(FindCoordinatorRequest(coordinator_keys=[]), 4).coordinators == []


@pytest.mark.parametrize("version", range(6))
def test_idempotent_producers_get_ids(node, version):
    first = node.ask(InitProducerIdRequest(transactional_id=None), version)
    second = node.ask(InitProducerIdRequest(transactional_id=None), version)
    assert (first.error_code, first.producer_id, first.producer_epoch) == (0, 0, 0)
    assert second.producer_id == 1


def test_a_failing_disk_gives_no_producer_ids(node):
    node.drive.capacity = node.drive.used_bytes() + 10
    answer = node.ask(InitProducerIdRequest(transactional_id=None), 4)
    assert answer.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


# -- what Metadata costs ---------------------------------------------------------------------------------------------


def test_metadata_of_many_named_topics_is_a_join_of_what_is_kept(node, encoded):
    topics = [make(node, f"t{number}", 10) for number in range(12)]
    named = MetadataRequest(topics=[Asked(name=topic.name) for topic in topics])
    by_id = MetadataRequest(topics=[Asked(name=None, topic_id=topic.topic_id) for topic in topics])
    everything = MetadataRequest(topics=None, include_cluster_authorized_operations=True)
    for request, version in ((named, 12), (by_id, 12), (everything, 8)):
        before = len(encoded)
        first = node.ask(request, version)
        assert encoded[before:] == ([10] * 12 if request is not by_id else [])
        assert node.ask(request, version) == first
        assert len(encoded) == (before + 12 if request is not by_id else before)


def test_metadata_after_a_change_encodes_what_changed(node, encoded):
    for number in range(12):
        make(node, f"t{number}", 10)
    request = MetadataRequest(topics=None)
    node.ask(request, 12)
    encoded.clear()
    make(node, "new", 3)
    node.wait(lambda done: node.topics.delete_topic("t5", 1000, done))
    assert len(node.ask(request, 12).topics) == 12
    assert encoded == [3]
    kept = node.cluster.kept_topics.size
    node.wait(lambda done: node.topics.delete_topic("t6", 1000, done))
    assert node.cluster.kept_topics.size < kept
