"""DescribeCluster (key 60), UnregisterBroker (key 64), DescribeQuorum (key 55): the cluster and its members.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import (
    Message,
    Struct,
    array,
    boolean,
    int8,
    int16,
    int32,
    int64,
    nullable_string,
    string,
    uint16,
    uuid,
)


class DescribeClusterRequest(Message, api_key=60, versions="0-2", flexible="0+"):
    """Asks for brokers (KIP-700). v1: or controllers (KIP-919). v2: also fenced brokers (KIP-1073)."""

    include_cluster_authorized_operations: bool = boolean("0+")
    endpoint_type: int = int8("1+", 1)
    include_fenced_brokers: bool = boolean("2+")


class DescribeClusterResponse(Message, api_key=60, versions="0-2", flexible="0+"):
    """Cluster id, controller and endpoints."""

    class DescribeClusterBroker(Struct):
        broker_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = nullable_string("0+", "0+", None)
        is_fenced: bool = boolean("2+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", None)
    endpoint_type: int = int8("1+", 1)
    cluster_id: str = string("0+")
    controller_id: int = int32("0+", -1)
    brokers: list[DescribeClusterBroker] = array("0+")
    cluster_authorized_operations: int = int32("0+", -2147483648)


class UnregisterBrokerRequest(Message, api_key=64, versions="0", flexible="0+"):
    """The broker to forget (KIP-500)."""

    broker_id: int = int32("0+")


class UnregisterBrokerResponse(Message, api_key=64, versions="0", flexible="0+"):
    """Whether the broker was unregistered."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")


class DescribeQuorumRequest(Message, api_key=55, versions="0-2", flexible="0+"):
    """Partitions of a Raft quorum (KIP-595); a broker without one responds with an error."""

    class PartitionData(Struct):
        partition_index: int = int32("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[DescribeQuorumRequest.PartitionData] = array("0+")

    topics: list[TopicData] = array("0+")


class DescribeQuorumResponse(Message, api_key=55, versions="0-2", flexible="0+"):
    """Leader, voters and observers. v2: directory ids and listeners (KIP-853)."""

    class ReplicaState(Struct):
        replica_id: int = int32("0+")
        replica_directory_id: bytes = uuid("2+")
        log_end_offset: int = int64("0+")
        last_fetch_timestamp: int = int64("1+", -1)
        last_caught_up_timestamp: int = int64("1+", -1)

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("2+", "2+", "")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+")
        high_watermark: int = int64("0+")
        current_voters: list[DescribeQuorumResponse.ReplicaState] = array("0+")
        observers: list[DescribeQuorumResponse.ReplicaState] = array("0+")

    class TopicData(Struct):
        topic_name: str = string("0+")
        partitions: list[DescribeQuorumResponse.PartitionData] = array("0+")

    class Listener(Struct):
        name: str = string("2+")
        host: str = string("2+")
        port: int = uint16("2+")

    class Node(Struct):
        node_id: int = int32("2+")
        listeners: list[DescribeQuorumResponse.Listener] = array("2+")

    error_code: int = int16("0+")
    error_message: str | None = nullable_string("2+", "2+", "")
    topics: list[TopicData] = array("0+")
    nodes: list[Node] = array("2+")
