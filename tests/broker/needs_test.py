"""The declaration of each request has the permissions that Apache Kafka documents.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.handnode import Node

from ottla.wire.apis import API_TABLE, ApiKey

RESOURCES = {"Topic", "Group", "Cluster", "TransactionalId", "DelegationToken", "User"}
OPERATIONS = {
    "Read", "Write", "Create", "Delete", "Alter", "Describe", "ClusterAction", "DescribeConfigs", "AlterConfigs",
    "IdempotentWrite", "CreateTokens", "DescribeTokens",
}  # fmt: skip
OPEN = {
    "ApiVersions", "SaslAuthenticate", "SaslHandshake", "GetTelemetrySubscriptions", "PushTelemetry",
    "RenewDelegationToken", "ExpireDelegationToken",
}  # fmt: skip
"""Need no permission: some are sent before authentication, others by every client or by the owner of a token."""
NEEDS = {
    # First the resource of the request itself, then others that it may name.
    "Produce": "Write Topic, Write TransactionalId",
    "Fetch": "Read Topic, ClusterAction Cluster",
    "ListOffsets": "Describe Topic",
    "Metadata": "Describe Topic, Create Topic",
    "LeaderAndIsr": "ClusterAction Cluster",
    "StopReplica": "ClusterAction Cluster",
    "UpdateMetadata": "ClusterAction Cluster",
    "ControlledShutdown": "ClusterAction Cluster",
    "OffsetCommit": "Read Group, Read Topic",
    "OffsetFetch": "Describe Group, Describe Topic",
    "FindCoordinator": "Describe Group, Describe TransactionalId",
    "JoinGroup": "Read Group",
    "Heartbeat": "Read Group",
    "LeaveGroup": "Read Group",
    "SyncGroup": "Read Group",
    "DescribeGroups": "Describe Group",
    "ConsumerGroupDescribe": "Describe Group",
    "ListGroups": "Describe Group, Describe Cluster",
    "SaslHandshake": "",
    "SaslAuthenticate": "",
    "ApiVersions": "",
    "GetTelemetrySubscriptions": "",
    "PushTelemetry": "",
    "CreateTopics": "Create Cluster, Create Topic, DescribeConfigs Topic",
    "DeleteTopics": "Delete Topic",
    "DeleteRecords": "Delete Topic",
    "InitProducerId": "Write TransactionalId, IdempotentWrite Cluster",
    "OffsetForLeaderEpoch": "Describe Topic, ClusterAction Cluster",
    "AddPartitionsToTxn": "Write TransactionalId, Write Topic, ClusterAction Cluster",
    "AddOffsetsToTxn": "Write TransactionalId, Read Group",
    "EndTxn": "Write TransactionalId",
    "WriteTxnMarkers": "ClusterAction Cluster",
    "TxnOffsetCommit": "Read Group, Write TransactionalId, Read Topic",
    "DescribeConfigs": "DescribeConfigs Topic, DescribeConfigs Cluster",
    "AlterConfigs": "AlterConfigs Topic, AlterConfigs Cluster",
    "AlterReplicaLogDirs": "Alter Cluster",
    "DescribeLogDirs": "Describe Cluster",
    "CreatePartitions": "Alter Topic",
    "DeleteGroups": "Delete Group",
    "ElectLeaders": "Alter Cluster",
    "IncrementalAlterConfigs": "AlterConfigs Topic, AlterConfigs Cluster",
    "AlterPartitionReassignments": "Alter Cluster",
    "ListPartitionReassignments": "Describe Cluster",
    "OffsetDelete": "Delete Group, Read Topic",
    "AlterPartition": "ClusterAction Cluster",
    "DescribeCluster": "Describe Cluster",
    "DescribeProducers": "Read Topic",
    "DescribeTransactions": "Describe TransactionalId, Describe Topic",
    "ListTransactions": "Describe TransactionalId",
    "AllocateProducerIds": "ClusterAction Cluster",
    "ListConfigResources": "DescribeConfigs Cluster",
    "DescribeTopicPartitions": "Describe Topic",
    # Not served yet (docs/skipped.md): with the row here, a handler needs no change of this file.
    "DescribeAcls": "Describe Cluster",
    "CreateAcls": "Alter Cluster",
    "CreateDelegationToken": "CreateTokens User",
    "RenewDelegationToken": "",
    "ExpireDelegationToken": "",
    "DescribeDelegationToken": "Describe DelegationToken, DescribeTokens User",
    "DeleteAcls": "Alter Cluster",
    "DescribeClientQuotas": "DescribeConfigs Cluster",
    "AlterClientQuotas": "AlterConfigs Cluster",
    "DescribeUserScramCredentials": "Describe Cluster",
    "AlterUserScramCredentials": "Alter Cluster",
    "DescribeQuorum": "Describe Cluster",
    "UpdateFeatures": "Alter Cluster",
    "UnregisterBroker": "Alter Cluster",
}
"""The permissions in Apache Kafka's documentation, "Operations and Resources on Protocols"."""


@pytest.fixture(scope="module")
def needs() -> dict[str, tuple[tuple[str, str], ...]]:
    """API → (resource, operation), of everything that a whole broker serves."""
    return {API_TABLE[ApiKey(each.api_key)].name: each.needs for each in Node().broker._dispatch.all_declarations()}


def test_every_request_declares_its_permissions(needs) -> None:
    """A new handler has to declare its permissions."""
    silent = {name for name, wanted in needs.items() if not wanted}
    assert silent == OPEN
    assert {resource for wanted in needs.values() for resource, _ in wanted} <= RESOURCES
    assert {operation for wanted in needs.values() for _, operation in wanted} <= OPERATIONS


def test_permissions_are_those_of_apache_kafka(needs) -> None:
    declared = {
        name: ", ".join(f"{operation} {resource}" for resource, operation in found) for name, found in needs.items()
    }
    assert declared == {name: NEEDS.get(name, "add its row to NEEDS") for name in needs}
    assert set(NEEDS) <= {api.name for api in API_TABLE.values()}


def test_requests_between_brokers_need_cluster_action(needs) -> None:
    declarations = Node().broker._dispatch.all_declarations()
    for each in declarations:
        if each.inter_broker or each.brokers_from is not None:
            assert ("Cluster", "ClusterAction") in needs[API_TABLE[ApiKey(each.api_key)].name]
