"""ListOffsets (key 2): offsets by time, and the ends of a log.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int8, int16, int32, int64, string


class ListOffsetsRequest(Message, api_key=2, versions="0-11", flexible="6+"):
    """Timestamps to look up: -1 is the end, -2 the start, -3 the greatest timestamp (v7, KIP-734), -4 the local start
    (v8, KIP-405), -5 the last tiered offset (v9, KIP-1005), -6 the earliest pending upload (v11, KIP-1023).

    v0 asks for up to n segment starts; v1 for one offset. v2: isolation level. v4: leader epoch. v10: timeout
    (KIP-1075).
    """

    class ListOffsetsPartition(Struct):
        partition_index: int = int32("0+")
        current_leader_epoch: int = int32("4+", -1, ignorable=True)
        timestamp: int = int64("0+")
        max_num_offsets: int = int32("0", 1)

    class ListOffsetsTopic(Struct):
        name: str = string("0+")
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = array("0+")

    replica_id: int = int32("0+")
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array("0+")
    timeout_ms: int = int32("10+", ignorable=True)


class ListOffsetsResponse(Message, api_key=2, versions="0-11", flexible="6+"):
    """The first offset at or after each timestamp, with its own timestamp; -1 when there is none."""

    class ListOffsetsPartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        old_style_offsets: list[int] = array("0", "int64")
        timestamp: int = int64("1+", -1)
        offset: int = int64("1+", -1)
        leader_epoch: int = int32("4+", -1)

    class ListOffsetsTopicResponse(Struct):
        name: str = string("0+")
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = array("0+")

    throttle_time_ms: int = int32("2+")
    topics: list[ListOffsetsTopicResponse] = array("0+")
