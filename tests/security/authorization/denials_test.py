"""A client without any permission gets the declared error from every API, in every version, and changes nothing.

Zone: real.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.security.authorization.guarded import Guarded, errors_in

from ottla.errors import ErrorCode
from ottla.requests import NOT_ASKED
from ottla.wire import messages as m
from ottla.wire.apis import API_TABLE, ApiKey

TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
TRANSACTION = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
NAMES = ("t", "absent")
"""Errors must not differ between a topic that exists and one that does not."""
EVE = "User:eve"


@pytest.fixture(scope="module")
def node() -> Guarded:
    """A broker with the topic t, and the group g with an offset."""
    made = Guarded()
    made.create("t", 2)
    partition = m.OffsetCommitRequest.OffsetCommitRequestPartition(committed_offset=0, committed_metadata="")
    topic = m.OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[partition])
    made.ask(m.FindCoordinatorRequest(key="g"), 3)
    for _ in range(100):
        response = made.ask(m.OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic]), 8)
        if not any(errors_in(response)):
            return made
        made.pass_ms(100)
    raise AssertionError("the offset could not be committed")


def produce(node: Guarded, version: int, **transaction: Any) -> m.ProduceRequest:
    request = node.produce_request("t", b"x", acks=1, **transaction)
    request.topic_data[0].topic_id = node.topic_id("t")
    if version < 13:
        other = node.produce_request("absent", b"x", acks=1, **transaction)
        request.topic_data += other.topic_data
    return request


def fetch(node: Guarded, version: int) -> m.FetchRequest:
    if version >= 13:
        return node.fetch_request("", 0, topic_id=node.topic_id("t"))
    request = node.fetch_request("t", 0)
    request.topics += node.fetch_request("absent", 0).topics
    return request


def by_topic(kind: Any, partition: Any, field: str = "name", **more: Any) -> list[Any]:
    """A topic that exists, and one that does not, with one partition each."""
    return [kind(**{field: name}, partitions=[partition], **more) for name in NAMES]


def offset_commit(node: Guarded, version: int, kind: Any = m.OffsetCommitRequest, **fields: Any) -> Any:
    name = kind.__name__
    partition = getattr(kind, f"{name}Partition")(committed_offset=5, committed_metadata="")
    topic = getattr(kind, f"{name}Topic")
    return kind(group_id="g", topics=[topic(name="t", topic_id=node.topic_id("t"), partitions=[partition])], **fields)


def offset_fetch(_node: Guarded, version: int) -> m.OffsetFetchRequest:
    if version >= 8:
        asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
        return m.OffsetFetchRequest(groups=[asked])
    topic = m.OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    return m.OffsetFetchRequest(group_id="g", topics=[topic])


def find_coordinator(version: int, kind: int) -> m.FindCoordinatorRequest:
    return m.FindCoordinatorRequest(
        key_type=kind, key="" if version >= 4 else "x", coordinator_keys=["x", "y"] if version >= 4 else []
    )


def configs(kind: Any, *resources: tuple[int, str], **more: Any) -> list[Any]:
    return [kind(resource_type=number, resource_name=name, **more) for number, name in resources]


TOPICS = ((2, "t"), (2, "absent"))
BROKERS = ((4, "1"), (4, ""), (8, "1"), (16, "x"))
GROUPS = ((32, "g"),)
Replicas = m.AlterReplicaLogDirsRequest
Markers = m.WriteTxnMarkersRequest
Quotas = m.AlterClientQuotasRequest

REQUESTS: dict[str, list[tuple[ErrorCode, Any]]] = {
    "Produce": [
        (TOPIC, produce),
        (TRANSACTION, lambda node, version: None if version < 3 else with_id(produce(
            node, version, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))),
    ],
    "Fetch": [(TOPIC, fetch)],
    "ListOffsets": [(TOPIC, lambda *_: m.ListOffsetsRequest(topics=by_topic(
        m.ListOffsetsRequest.ListOffsetsTopic, m.ListOffsetsRequest.ListOffsetsPartition(timestamp=-1))))],
    "Metadata": [(TOPIC, lambda *_: m.MetadataRequest(
        topics=[m.MetadataRequest.MetadataRequestTopic(name=name) for name in NAMES]))],
    "LeaderAndIsr": [(CLUSTER, lambda *_: m.LeaderAndIsrRequest())],
    "StopReplica": [(CLUSTER, lambda *_: m.StopReplicaRequest())],
    "UpdateMetadata": [(CLUSTER, lambda *_: m.UpdateMetadataRequest())],
    "ControlledShutdown": [(CLUSTER, lambda *_: m.ControlledShutdownRequest(broker_id=1))],
    "AlterPartition": [(CLUSTER, lambda *_: m.AlterPartitionRequest(broker_id=1))],
    "UpdateFeatures": [(CLUSTER, lambda *_: m.UpdateFeaturesRequest(
        feature_updates=[m.UpdateFeaturesRequest.FeatureUpdateKey(feature="transaction.version")]))],
    "AllocateProducerIds": [(CLUSTER, lambda *_: m.AllocateProducerIdsRequest(broker_id=1))],
    "OffsetCommit": [(GROUP, offset_commit)],
    "OffsetFetch": [(GROUP, offset_fetch)],
    "OffsetDelete": [(GROUP, lambda *_: m.OffsetDeleteRequest(group_id="g"))],
    "FindCoordinator": [
        (GROUP, lambda _, version: find_coordinator(version, 0)),
        (TRANSACTION, lambda _, version: find_coordinator(version, 1) if version else None),
    ],
    "JoinGroup": [(GROUP, lambda *_: m.JoinGroupRequest(
        group_id="g", session_timeout_ms=10_000, rebalance_timeout_ms=10_000, protocol_type="consumer"))],
    "Heartbeat": [(GROUP, lambda *_: m.HeartbeatRequest(group_id="g", member_id="x"))],
    "LeaveGroup": [(GROUP, lambda *_: m.LeaveGroupRequest(group_id="g"))],
    "SyncGroup": [(GROUP, lambda *_: m.SyncGroupRequest(group_id="g"))],
    "DescribeGroups": [(GROUP, lambda *_: m.DescribeGroupsRequest(groups=["g", "absent"]))],
    "DeleteGroups": [(GROUP, lambda *_: m.DeleteGroupsRequest(groups_names=["g", "absent"]))],
    "CreateTopics": [(TOPIC, lambda *_: m.CreateTopicsRequest(topics=[
        m.CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in NAMES]))],
    "DeleteTopics": [
        (TOPIC, lambda _, version: m.DeleteTopicsRequest(
            topic_names=list(NAMES) if version < 6 else [],
            topics=[m.DeleteTopicsRequest.DeleteTopicState(name=name) for name in NAMES if version >= 6])),
        (TOPIC, lambda node, version: None if version < 6 else m.DeleteTopicsRequest(
            topics=[m.DeleteTopicsRequest.DeleteTopicState(name=None, topic_id=node.topic_id("t"))])),
    ],
    "DeleteRecords": [(TOPIC, lambda *_: m.DeleteRecordsRequest(topics=by_topic(
        m.DeleteRecordsRequest.DeleteRecordsTopic, m.DeleteRecordsRequest.DeleteRecordsPartition(offset=-1))))],
    "CreatePartitions": [(TOPIC, lambda *_: m.CreatePartitionsRequest(topics=[
        m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=9, assignments=None) for name in NAMES]))],
    "InitProducerId": [
        (TRANSACTION, lambda *_: m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=1000)),
        (CLUSTER, lambda *_: m.InitProducerIdRequest(transactional_id=None)),
    ],
    "OffsetForLeaderEpoch": [(TOPIC, lambda *_: m.OffsetForLeaderEpochRequest(topics=by_topic(
        m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic,
        m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(), "topic")))],
    "AddPartitionsToTxn": [
        (TRANSACTION, lambda _, version: None if version >= 4 else add_partitions()),
        (CLUSTER, lambda _, version: None if version < 4 else m.AddPartitionsToTxnRequest(
            transactions=[m.AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(transactional_id="x")])),
    ],
    "AddOffsetsToTxn": [(TRANSACTION, lambda *_: m.AddOffsetsToTxnRequest(transactional_id="x", group_id="g"))],
    "EndTxn": [(TRANSACTION, lambda *_: m.EndTxnRequest(transactional_id="x"))],
    "WriteTxnMarkers": [(CLUSTER, lambda *_: m.WriteTxnMarkersRequest(markers=[Markers.WritableTxnMarker(
        producer_id=1, topics=[Markers.WritableTxnMarkerTopic(name="t", partition_indexes=[0])])]))],
    "TxnOffsetCommit": [(TRANSACTION, lambda node, version: offset_commit(
        node, version, m.TxnOffsetCommitRequest, transactional_id="x"))],
    "DescribeAcls": [(CLUSTER, lambda *_: m.DescribeAclsRequest(
        resource_type_filter=1, operation=1, permission_type=1))],
    "CreateAcls": [(CLUSTER, lambda *_: m.CreateAclsRequest(creations=[m.CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", principal=EVE, host="*", operation=2, permission_type=3)]))],
    "DeleteAcls": [(CLUSTER, lambda *_: m.DeleteAclsRequest(filters=[m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=1, operation=1, permission_type=1)]))],
    "DescribeConfigs": [
        (error, lambda *_, named=named: m.DescribeConfigsRequest(resources=configs(
            m.DescribeConfigsRequest.DescribeConfigsResource, *named, configuration_keys=None)))
        for error, named in ((TOPIC, TOPICS), (CLUSTER, BROKERS), (GROUP, GROUPS))
    ],
    "AlterConfigs": [
        (error, lambda *_, named=named: m.AlterConfigsRequest(
            resources=configs(m.AlterConfigsRequest.AlterConfigsResource, *named)))
        for error, named in ((TOPIC, TOPICS), (CLUSTER, BROKERS), (GROUP, GROUPS))
    ],
    "IncrementalAlterConfigs": [
        (error, lambda *_, named=named: m.IncrementalAlterConfigsRequest(
            resources=configs(m.IncrementalAlterConfigsRequest.AlterConfigsResource, *named)))
        for error, named in ((TOPIC, TOPICS), (CLUSTER, BROKERS), (GROUP, GROUPS))
    ],
    "ListConfigResources": [(CLUSTER, lambda *_: m.ListConfigResourcesRequest())],
    "DescribeClientQuotas": [(CLUSTER, lambda *_: m.DescribeClientQuotasRequest())],
    "AlterClientQuotas": [(CLUSTER, lambda *_: m.AlterClientQuotasRequest(entries=[Quotas.EntryData(
        entity=[Quotas.EntityData(entity_type="user", entity_name="eve")],
        ops=[Quotas.OpData(key="producer_byte_rate", value=1.0)])]))],
    "DescribeUserScramCredentials": [(CLUSTER, lambda *_: m.DescribeUserScramCredentialsRequest(users=None))],
    "AlterUserScramCredentials": [(CLUSTER, lambda *_: m.AlterUserScramCredentialsRequest(deletions=[
        m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="eve", mechanism=1)]))],
    "AlterReplicaLogDirs": [(CLUSTER, lambda *_: Replicas(dirs=[Replicas.AlterReplicaLogDir(
        path="data", topics=[Replicas.AlterReplicaLogDirTopic(name="t", partitions=[0])])]))],
    "DescribeLogDirs": [(CLUSTER, lambda _, version: m.DescribeLogDirsRequest(topics=None) if version >= 3 else None)],
    "ElectLeaders": [(CLUSTER, lambda *_: m.ElectLeadersRequest(
        topic_partitions=[m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])]))],
    "AlterPartitionReassignments": [(CLUSTER, lambda *_: m.AlterPartitionReassignmentsRequest())],
    "ListPartitionReassignments": [(CLUSTER, lambda *_: m.ListPartitionReassignmentsRequest(topics=None))],
    "DescribeProducers": [(TOPIC, lambda *_: m.DescribeProducersRequest(topics=[
        m.DescribeProducersRequest.TopicRequest(name=name, partition_indexes=[0]) for name in NAMES]))],
    "DescribeTransactions": [(TRANSACTION, lambda *_: m.DescribeTransactionsRequest(transactional_ids=["x", "y"]))],
    "DescribeTopicPartitions": [(TOPIC, lambda *_: m.DescribeTopicPartitionsRequest(
        topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in NAMES],
        response_partition_limit=10))],
}  # fmt: skip
"""API → (error, request for a version or None) of each kind of request."""
TOKENS = {f"{verb}DelegationToken" for verb in ("Create", "Renew", "Expire", "Describe")}
"""They need a login (`tests.security.tokens`)."""
OPEN = {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "GetTelemetrySubscriptions", "PushTelemetry", *TOKENS}
"""APIs without a permission."""
FILTERED = {"ListGroups", "ListTransactions", "DescribeCluster"}
"""APIs that leave out what the client may not see."""


def with_id(request: m.ProduceRequest) -> m.ProduceRequest:
    request.transactional_id = "x"
    return request


def add_partitions(*names: str) -> m.AddPartitionsToTxnRequest:
    topic = m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
    return m.AddPartitionsToTxnRequest(
        v3_and_below_transactional_id="x",
        v3_and_below_topics=[topic(name=name, partitions=[0]) for name in names or ("t",)],
    )


def test_every_api_has_a_rule(node: Guarded) -> None:
    served = {API_TABLE[ApiKey(each.api_key)].name for each in node.broker._dispatch.all_declarations()}
    assert served <= set(REQUESTS) | OPEN | FILTERED, "add what a client without permissions gets from the API"
    assert set(REQUESTS) <= served


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_client_without_permissions_gets_the_error_of_the_api(node: Guarded, name: str) -> None:
    key = next(key for key, api in API_TABLE.items() if api.name == name)
    low, high = node.broker._dispatch.version_ranges()[key]
    before = state_of(node)
    for expected, request_for in REQUESTS[name]:
        tried = 0
        for version in range(low, high + 1):
            request = request_for(node, version)
            if request is not None:
                tried += 1
                errors = set(errors_in(node.ask_as(EVE, request, version)))
                assert errors - {ErrorCode.NONE} == {expected}, (version, errors)
        assert tried, expected
    assert state_of(node) == before


def state_of(node: Guarded) -> tuple[Any, ...]:
    """What a request could have changed."""
    node.pass_ms(100)
    image = node.broker.cluster.image
    topics = {name: (len(topic.partitions), dict(topic.overrides)) for name, topic in image.topics.items()}
    ends = {str(each.tp): (each.log.start_offset, each.log.end_offset) for each in node.broker.hosted}
    groups = node.ask(m.DescribeGroupsRequest(groups=["g"]), 5).groups[0].group_state
    asked = m.OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=None)
    offsets = node.ask(m.OffsetFetchRequest(groups=[asked]), 8).groups[0].topics
    layers = node.broker.cluster.layers
    return (
        topics, ends, groups, [each.partitions[0].committed_offset for each in offsets], node.listed(),
        dict(layers.shared), dict(layers.own),
    )  # fmt: skip


def test_lists_leave_out_what_a_client_may_not_see(node: Guarded) -> None:
    assert [each.group_id for each in node.ask(m.ListGroupsRequest(), 4).groups] == ["g"]
    assert node.ask_as(EVE, m.ListGroupsRequest(), 4).groups == []
    assert node.ask_as(EVE, m.ListTransactionsRequest(), 0).transaction_states == []
    assert node.ask_as(EVE, m.MetadataRequest(topics=None), 9).topics == []
    assert len(node.ask(m.MetadataRequest(topics=None), 9).topics) >= 1
    page = node.ask_as(EVE, m.DescribeTopicPartitionsRequest(response_partition_limit=10), 0)
    assert (page.topics, page.next_cursor) == ([], None)
    for version in (1, 2):
        assert node.ask_as(EVE, m.DescribeLogDirsRequest(topics=None), version).results == []


def test_the_cluster_is_described_without_its_operations(node: Guarded) -> None:
    request = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert node.ask_as(EVE, request, 0).cluster_authorized_operations == 0
    asked = m.MetadataRequest(topics=[], include_cluster_authorized_operations=True)
    assert node.ask_as(EVE, asked, 10).cluster_authorized_operations == 0
    assert node.ask_as(EVE, m.MetadataRequest(topics=[]), 10).cluster_authorized_operations == NOT_ASKED
    assert node.ask(asked, 10).cluster_authorized_operations not in (0, NOT_ASKED)
    assert len(node.ask_as(EVE, request, 0).brokers) == 1


def test_a_denied_topic_is_not_created(node: Guarded) -> None:
    topic = m.MetadataRequest.MetadataRequestTopic(name="fresh")
    node.ask_as(EVE, m.MetadataRequest(topics=[topic], allow_auto_topic_creation=True), 9)
    node.pass_ms(1000)
    assert "fresh" not in node.broker.cluster.image.topics
