"""ConsumerGroupHeartbeat (key 68) and ConsumerGroupDescribe (key 69): the consumer protocol of KIP-848.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int8, int16, int32, nullable_string, string, struct, uuid


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions="0-1", flexible="0+"):
    """A member's state, in full when it joins and then only what changed (KIP-848).

    Member epoch 0 joins, -1 leaves, -2 leaves for a while (static). v1: subscription by regular expression.
    """

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    group_id: str = string("0+")
    member_id: str = string("0+")
    member_epoch: int = int32("0+")
    instance_id: str | None = nullable_string("0+", "0+", None)
    rack_id: str | None = nullable_string("0+", "0+", None)
    rebalance_timeout_ms: int = int32("0+", -1)
    subscribed_topic_names: list[str] | None = array("0+", "string", nullable="0+", null=True)
    subscribed_topic_regex: str | None = nullable_string("1+", "1+", None)
    server_assignor: str | None = nullable_string("0+", "0+", None)
    topic_partitions: list[TopicPartitions] | None = array("0+", nullable="0+", null=True)


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions="0-1", flexible="0+"):
    """The member's epoch, the next heartbeat, and the assignment when it changed."""

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", "int32")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = array("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", None)
    member_id: str | None = nullable_string("0+", "0+", None)
    member_epoch: int = int32("0+")
    heartbeat_interval_ms: int = int32("0+")
    assignment: Assignment | None = struct("0+", nullable="0+")


class ConsumerGroupDescribeRequest(Message, api_key=69, versions="0-1", flexible="0+"):
    """Groups of the consumer protocol to describe (KIP-848)."""

    group_ids: list[str] = array("0+", "string")
    include_authorized_operations: bool = boolean("0+")


class ConsumerGroupDescribeResponse(Message, api_key=69, versions="0-1", flexible="0+"):
    """Epochs, assignor and members with present and target assignment. v1: member type."""

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("0+")
        topic_name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = array("0+")

    class Member(Struct):
        member_id: str = string("0+")
        instance_id: str | None = nullable_string("0+", "0+", None)
        rack_id: str | None = nullable_string("0+", "0+", None)
        member_epoch: int = int32("0+")
        client_id: str = string("0+")
        client_host: str = string("0+")
        subscribed_topic_names: list[str] = array("0+", "string")
        subscribed_topic_regex: str | None = nullable_string("0+", "0+", None)
        assignment: ConsumerGroupDescribeResponse.Assignment = struct("0+")
        target_assignment: ConsumerGroupDescribeResponse.Assignment = struct("0+")
        member_type: int = int8("1+", -1)

    class DescribedGroup(Struct):
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)
        group_id: str = string("0+")
        group_state: str = string("0+")
        group_epoch: int = int32("0+")
        assignment_epoch: int = int32("0+")
        assignor_name: str = string("0+")
        members: list[ConsumerGroupDescribeResponse.Member] = array("0+")
        authorized_operations: int = int32("0+", -2147483648)

    throttle_time_ms: int = int32("0+")
    groups: list[DescribedGroup] = array("0+")
