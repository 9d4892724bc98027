"""OffsetFetch (key 9): a group reads its positions.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, int64, nullable_string, string, uuid


class OffsetFetchRequest(Message, api_key=9, versions="0-10", flexible="6+"):
    """Groups and partitions whose positions are wanted; null means all (from v2).

    v7: stable positions only (KIP-447). v8: several groups (KIP-709). v9: member epochs (KIP-848). v10: topic ids.
    """

    class OffsetFetchRequestTopic(Struct):
        name: str = string("0-7")
        partition_indexes: list[int] = array("0-7", "int32")

    class OffsetFetchRequestTopics(Struct):
        name: str = string("8-9", ignorable=True)
        topic_id: bytes = uuid("10+", ignorable=True)
        partition_indexes: list[int] = array("8+", "int32")

    class OffsetFetchRequestGroup(Struct):
        group_id: str = string("8+")
        member_id: str | None = nullable_string("9+", "9+", None, ignorable=True)
        member_epoch: int = int32("9+", -1, ignorable=True)
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = array("8+", nullable="8+")

    group_id: str = string("0-7")
    topics: list[OffsetFetchRequestTopic] | None = array("0-7", nullable="2-7")
    groups: list[OffsetFetchRequestGroup] = array("8+")
    require_stable: bool = boolean("7+")


class OffsetFetchResponse(Message, api_key=9, versions="0-10", flexible="6+"):
    """Positions with their leader epoch and metadata; -1 where there is none."""

    class OffsetFetchResponsePartition(Struct):
        partition_index: int = int32("0-7")
        committed_offset: int = int64("0-7")
        committed_leader_epoch: int = int32("5-7", -1)
        metadata: str | None = nullable_string("0-7", "0-7", "")
        error_code: int = int16("0-7")

    class OffsetFetchResponseTopic(Struct):
        name: str = string("0-7")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = array("0-7")

    class OffsetFetchResponsePartitions(Struct):
        partition_index: int = int32("8+")
        committed_offset: int = int64("8+")
        committed_leader_epoch: int = int32("8+", -1)
        metadata: str | None = nullable_string("8+", "8+", "")
        error_code: int = int16("8+")

    class OffsetFetchResponseTopics(Struct):
        name: str = string("8-9")
        topic_id: bytes = uuid("10+")
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = array("8+")

    class OffsetFetchResponseGroup(Struct):
        group_id: str = string("8+")
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = array("8+")
        error_code: int = int16("8+")

    throttle_time_ms: int = int32("3+")
    topics: list[OffsetFetchResponseTopic] = array("0-7")
    error_code: int = int16("2-7")
    groups: list[OffsetFetchResponseGroup] = array("8+")
