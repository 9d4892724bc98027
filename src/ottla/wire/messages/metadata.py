"""Metadata (key 3): brokers, topics, partitions and their leaders.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, nullable_string, string, uuid


class MetadataRequest(Message, api_key=3, versions="0-13", flexible="9+"):
    """Topics to describe: null means all (in v0 an empty list does).

    v4: topic creation can be forbidden. v8-10: authorized operations. v10: topic ids (asking by id: v12).
    """

    class MetadataRequestTopic(Struct):
        topic_id: bytes = uuid("10+", ignorable=True)
        name: str | None = nullable_string("0+", "10+", "")

    topics: list[MetadataRequestTopic] | None = array("0+", nullable="1+")
    allow_auto_topic_creation: bool = boolean("4+", True)
    include_cluster_authorized_operations: bool = boolean("8-10")
    include_topic_authorized_operations: bool = boolean("8+")


class MetadataResponse(Message, api_key=3, versions="0-13", flexible="9+"):
    """Brokers, controller, and of every topic its partitions with leader, replicas and ISR.

    v5: offline replicas (KIP-112). v7: leader epoch (KIP-320). v10: topic ids. v13: an error for the whole response.
    """

    class MetadataResponseBroker(Struct):
        node_id: int = int32("0+")
        host: str = string("0+")
        port: int = int32("0+")
        rack: str | None = nullable_string("1+", "1+", None)

    class MetadataResponsePartition(Struct):
        error_code: int = int16("0+")
        partition_index: int = int32("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("7+", -1)
        replica_nodes: list[int] = array("0+", "int32")
        isr_nodes: list[int] = array("0+", "int32")
        offline_replicas: list[int] = array("5+", "int32")

    class MetadataResponseTopic(Struct):
        error_code: int = int16("0+")
        name: str | None = nullable_string("0+", "12+", "")
        topic_id: bytes = uuid("10+")
        is_internal: bool = boolean("1+")
        partitions: list[MetadataResponse.MetadataResponsePartition] = array("0+")
        topic_authorized_operations: int = int32("8+", -2147483648)

    throttle_time_ms: int = int32("3+")
    brokers: list[MetadataResponseBroker] = array("0+")
    cluster_id: str | None = nullable_string("2+", "2+", None)
    controller_id: int = int32("1+", -1)
    topics: list[MetadataResponseTopic] = array("0+")
    cluster_authorized_operations: int = int32("8-10", -2147483648)
    error_code: int = int16("13+")
