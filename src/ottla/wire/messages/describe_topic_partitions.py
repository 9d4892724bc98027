"""DescribeTopicPartitions (key 75): topics in pages.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, nullable_string, string, struct, uuid


class DescribeTopicPartitionsRequest(Message, api_key=75, versions="0", flexible="0+"):
    """Topics, a limit on partitions, and where to continue (KIP-966)."""

    class TopicRequest(Struct):
        name: str = string("0+")

    class Cursor(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    topics: list[TopicRequest] = array("0+")
    response_partition_limit: int = int32("0+", 2000)
    cursor: Cursor | None = struct("0+", nullable="0+")


class DescribeTopicPartitionsResponse(Message, api_key=75, versions="0", flexible="0+"):
    """One page, with a cursor when more is left."""

    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code: int = int16("0+")
        partition_index: int = int32("0+")
        leader_id: int = int32("0+")
        leader_epoch: int = int32("0+", -1)
        replica_nodes: list[int] = array("0+", "int32")
        isr_nodes: list[int] = array("0+", "int32")
        eligible_leader_replicas: list[int] | None = array("0+", "int32", nullable="0+", null=True)
        last_known_elr: list[int] | None = array("0+", "int32", nullable="0+", null=True)
        offline_replicas: list[int] = array("0+", "int32")

    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code: int = int16("0+")
        name: str | None = nullable_string("0+", "0+", "")
        topic_id: bytes = uuid("0+")
        is_internal: bool = boolean("0+")
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = array("0+")
        topic_authorized_operations: int = int32("0+", -2147483648)

    class Cursor(Struct):
        topic_name: str = string("0+")
        partition_index: int = int32("0+")

    throttle_time_ms: int = int32("0+")
    topics: list[DescribeTopicPartitionsResponseTopic] = array("0+")
    next_cursor: Cursor | None = struct("0+", nullable="0+")
