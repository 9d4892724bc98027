"""Records of `__consumer_offsets`: offsets, classic groups, consumer groups (KIP-848).

Zone: pure. Declarations only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ottla.record.internal.parsing import RecordType
from ottla.wire.schema import (
    Message,
    Struct,
    array,
    int8,
    int32,
    int64,
    nullable_string,
    octets,
    string,
    struct,
    uuid,
)


class OffsetCommitKey(Message, versions="0"):
    """Types 0 and 1: a committed offset. Both have the same fields; 0 was written before Kafka 0.9."""

    group: str = string("0")
    topic: str = string("0")
    partition: int = int32("0")


class OffsetCommitValue(Message, versions="0-4", flexible="4+"):
    """The offset with its metadata."""

    offset: int = int64("0+")
    leader_epoch: int = int32("3+", default=-1, ignorable=True)
    metadata: str = string("0+")
    commit_timestamp: int = int64("0+")
    expire_timestamp: int = int64("1", default=-1, ignorable=True)
    topic_id: bytes = uuid("4+", tag=0, ignorable=True)


class GroupMetadataKey(Message, versions="0"):
    """Type 2: a classic group."""

    group: str = string("0")


class GroupMetadataValue(Message, versions="0-4", flexible="4+"):
    """Its state and members."""

    class MemberMetadata(Struct):
        """A member; `subscription` and `assignment` are in the protocol of its group (`consumer_protocol`)."""

        member_id: str = string("0+")
        group_instance_id: str | None = nullable_string("3+", "3+", default=None, ignorable=True)
        client_id: str = string("0+")
        client_host: str = string("0+")
        rebalance_timeout: int = int32("1+", ignorable=True)
        session_timeout: int = int32("0+")
        subscription: bytes = octets("0+")
        assignment: bytes = octets("0+")

    protocol_type: str = string("0+")
    generation: int = int32("0+")
    protocol: str | None = nullable_string("0+", "0+", default="")
    leader: str | None = nullable_string("0+", "0+", default="")
    current_state_timestamp: int = int64("2+", default=-1, ignorable=True)
    members: list[GroupMetadataValue.MemberMetadata] = array("0+")


class ConsumerGroupMetadataKey(Message, versions="0"):
    """Type 3: a consumer group."""

    group_id: str = string("0")


class ConsumerGroupMetadataValue(Message, versions="0", flexible="0+"):
    """Its epoch."""

    epoch: int = int32("0+")
    metadata_hash: int = int64("0+", tag=0)


class ConsumerGroupMemberMetadataKey(Message, versions="0"):
    """Type 5: a member of a consumer group."""

    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupMemberMetadataValue(Message, versions="0", flexible="0+"):
    """What the member reported about itself."""

    class ClassicProtocol(Struct):
        """A protocol that it supports."""

        name: str = string("0+")
        metadata: bytes = octets("0+")

    class ClassicMemberMetadata(Struct):
        """A member that still speaks the classic protocol."""

        session_timeout_ms: int = int32("0+")
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = array("0+")

    instance_id: str | None = nullable_string("0+", "0+", default="")
    rack_id: str | None = nullable_string("0+", "0+", default="")
    client_id: str = string("0+")
    client_host: str = string("0+")
    subscribed_topic_names: list[str] = array("0+", of="string")
    subscribed_topic_regex: str | None = nullable_string("0+", "0+", default="")
    rebalance_timeout_ms: int = int32("0+", default=-1)
    server_assignor: str | None = nullable_string("0+", "0+", default="")
    classic_member_metadata: ConsumerGroupMemberMetadataValue.ClassicMemberMetadata | None = struct(
        "0+", nullable="0+", tag=0
    )


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions="0"):
    """Type 6: the target assignment of a group."""

    group_id: str = string("0")


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions="0", flexible="0+"):
    """Its epoch, and when it was computed."""

    assignment_epoch: int = int32("0+")
    assignment_timestamp: int = int64("0+", tag=0, ignorable=True)


class ConsumerGroupTargetAssignmentMemberKey(Message, versions="0"):
    """Type 7: a member's part of the target assignment."""

    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupTargetAssignmentMemberValue(Message, versions="0", flexible="0+"):
    """Partitions that it should get."""

    class TopicPartition(Struct):
        """Partitions of a topic."""

        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", of="int32")

    topic_partitions: list[ConsumerGroupTargetAssignmentMemberValue.TopicPartition] = array("0+")


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions="0"):
    """Type 8: a member's present assignment."""

    group_id: str = string("0")
    member_id: str = string("0")


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions="0", flexible="0+"):
    """Partitions that it has, and those it must give back."""

    class TopicPartitions(Struct):
        """Partitions of a topic; `assignment_epochs` has one entry for each of them (KIP-1251)."""

        topic_id: bytes = uuid("0+")
        partitions: list[int] = array("0+", of="int32")
        assignment_epochs: list[int] | None = array("0+", of="int32", nullable="0+", tag=0)

    member_epoch: int = int32("0+")
    previous_member_epoch: int = int32("0+")
    state: int = int8("0+")
    assigned_partitions: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = array("0+")
    partitions_pending_revocation: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions] = array("0+")


GROUP_RECORDS: Final[Mapping[int, RecordType]] = MappingProxyType(
    {
        # A key of type 0 has the same fields as one of type 1: both are offsets.
        0: RecordType(OffsetCommitKey, OffsetCommitValue),
        1: RecordType(OffsetCommitKey, OffsetCommitValue),
        2: RecordType(GroupMetadataKey, GroupMetadataValue),
        3: RecordType(ConsumerGroupMetadataKey, ConsumerGroupMetadataValue),
        5: RecordType(ConsumerGroupMemberMetadataKey, ConsumerGroupMemberMetadataValue),
        6: RecordType(ConsumerGroupTargetAssignmentMetadataKey, ConsumerGroupTargetAssignmentMetadataValue),
        7: RecordType(ConsumerGroupTargetAssignmentMemberKey, ConsumerGroupTargetAssignmentMemberValue),
        8: RecordType(ConsumerGroupCurrentMemberAssignmentKey, ConsumerGroupCurrentMemberAssignmentValue),
    }
)
"""The record types of `__consumer_offsets` that are known here."""
