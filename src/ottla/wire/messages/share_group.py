"""ShareGroupHeartbeat (key 76) and ShareGroupDescribe (key 77): members of share groups.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, nullable_string, string, struct, uuid


class ShareGroupHeartbeatRequest(Message, api_key=76, versions="1", flexible="0+"):
    """A member's state, only what changed (KIP-932). Member epoch 0 joins, -1 leaves."""

    group_id: str = string("1+")
    member_id: str = string("1+")
    member_epoch: int = int32("1+")
    rack_id: str | None = nullable_string("1+", "1+", None)
    subscribed_topic_names: list[str] | None = array("1+", "string", nullable="1+", null=True)


class ShareGroupHeartbeatResponse(Message, api_key=76, versions="1", flexible="0+"):
    """The member's epoch, the next heartbeat, and the assignment when it changed."""

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("1+")
        partitions: list[int] = array("1+", "int32")

    class Assignment(Struct):
        topic_partitions: list[ShareGroupHeartbeatResponse.TopicPartitions] = array("1+")

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("1+")
    error_message: str | None = nullable_string("1+", "1+", None)
    member_id: str | None = nullable_string("1+", "1+", None)
    member_epoch: int = int32("1+")
    heartbeat_interval_ms: int = int32("1+")
    assignment: Assignment | None = struct("1+", nullable="1+")


class ShareGroupDescribeRequest(Message, api_key=77, versions="1", flexible="0+"):
    """Share groups to describe (KIP-932)."""

    group_ids: list[str] = array("1+", "string")
    include_authorized_operations: bool = boolean("1+")


class ShareGroupDescribeResponse(Message, api_key=77, versions="1", flexible="0+"):
    """Epochs, assignor and members."""

    class TopicPartitions(Struct):
        topic_id: bytes = uuid("1+")
        topic_name: str = string("1+")
        partitions: list[int] = array("1+", "int32")

    class Assignment(Struct):
        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = array("1+")

    class Member(Struct):
        member_id: str = string("1+")
        rack_id: str | None = nullable_string("1+", "1+", None)
        member_epoch: int = int32("1+")
        client_id: str = string("1+")
        client_host: str = string("1+")
        subscribed_topic_names: list[str] = array("1+", "string")
        assignment: ShareGroupDescribeResponse.Assignment = struct("1+")

    class DescribedGroup(Struct):
        error_code: int = int16("1+")
        error_message: str | None = nullable_string("1+", "1+", None)
        group_id: str = string("1+")
        group_state: str = string("1+")
        group_epoch: int = int32("1+")
        assignment_epoch: int = int32("1+")
        assignor_name: str = string("1+")
        members: list[ShareGroupDescribeResponse.Member] = array("1+")
        authorized_operations: int = int32("1+", -2147483648)

    throttle_time_ms: int = int32("1+")
    groups: list[DescribedGroup] = array("1+")
