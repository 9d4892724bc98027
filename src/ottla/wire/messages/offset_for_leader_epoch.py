"""OffsetForLeaderEpoch (key 23): where an epoch ended, to find where two logs diverge.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import OWN_TAG, Message, Struct, array, int16, int32, int64, octets, string


class OffsetForLeaderEpochRequest(Message, api_key=23, versions="0-4", flexible="4+"):
    """Leader epochs whose end is wanted (KIP-101, KIP-279).

    v2: current leader epoch, for fencing (KIP-320). v3: replica id.
    """

    class OffsetForLeaderPartition(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("2+", -1, ignorable=True)
        leader_epoch: int = int32("0+")

    class OffsetForLeaderTopic(Struct):
        topic: str = string("0+")
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = array("0+")

    replica_id: int = int32("3+", -2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array("0+")
    cleaned: bytes = octets("4+", tag=OWN_TAG, ignorable=True)


class OffsetForLeaderEpochResponse(Message, api_key=23, versions="0-4", flexible="4+"):
    """The largest epoch not above the requested one, and the offset where it ended."""

    class EpochEndOffset(Struct):
        error_code: int = int16("0+")
        partition: int = int32("0+")
        leader_epoch: int = int32("1+", -1)
        end_offset: int = int64("0+", -1)

    class OffsetForLeaderTopicResult(Struct):
        topic: str = string("0+")
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = array("0+")

    throttle_time_ms: int = int32("2+")
    topics: list[OffsetForLeaderTopicResult] = array("0+")
    removable: bytes = octets("4+", tag=OWN_TAG, ignorable=True)
