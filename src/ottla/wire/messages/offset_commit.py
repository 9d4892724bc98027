"""OffsetCommit (key 8) and OffsetDelete (key 47): a group commits and deletes its offsets.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, int64, nullable_string, string, uuid


class OffsetCommitRequest(Message, api_key=8, versions="0-10", flexible="8+"):
    """Positions of a group.

    v0 names the group alone; v1 adds the member and a timestamp per partition, v2-4 a retention time instead. v6:
    leader epoch (KIP-320). v7: static members (KIP-345). v9: member epochs (KIP-848). v10: topic ids.
    """

    class OffsetCommitRequestPartition(Struct):
        partition_index: int = int32("0+")
        committed_offset: int = int64("0+")
        committed_leader_epoch: int = int32("6+", -1, ignorable=True)
        commit_timestamp: int = int64("1", -1)
        committed_metadata: str | None = nullable_string("0+", "0+", "")

    class OffsetCommitRequestTopic(Struct):
        name: str = string("0-9", ignorable=True)
        topic_id: bytes = uuid("10+", ignorable=True)
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = array("0+")

    group_id: str = string("0+")
    generation_id_or_member_epoch: int = int32("1+", -1, ignorable=True)
    member_id: str = string("1+", ignorable=True)
    group_instance_id: str | None = nullable_string("7+", "7+", None)
    retention_time_ms: int = int64("2-4", -1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array("0+")


class OffsetCommitResponse(Message, api_key=8, versions="0-10", flexible="8+"):
    """The outcome for every partition."""

    class OffsetCommitResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class OffsetCommitResponseTopic(Struct):
        name: str = string("0-9")
        topic_id: bytes = uuid("10+")
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = array("0+")

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetCommitResponseTopic] = array("0+")


class OffsetDeleteRequest(Message, api_key=47, versions="0"):
    """Positions to drop from a group that does not use them (KIP-496)."""

    class OffsetDeleteRequestPartition(Struct):
        partition_index: int = int32("0+")

    class OffsetDeleteRequestTopic(Struct):
        name: str = string("0+")
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = array("0+")

    group_id: str = string("0+")
    topics: list[OffsetDeleteRequestTopic] = array("0+")


class OffsetDeleteResponse(Message, api_key=47, versions="0"):
    """The outcome for every partition."""

    class OffsetDeleteResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class OffsetDeleteResponseTopic(Struct):
        name: str = string("0+")
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = array("0+")

    error_code: int = int16("0+")
    throttle_time_ms: int = int32("0+")
    topics: list[OffsetDeleteResponseTopic] = array("0+")
