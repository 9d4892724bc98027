"""TxnOffsetCommit (key 28): offsets of a group that become valid when the transaction commits.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, int64, nullable_string, string, uuid


class TxnOffsetCommitRequest(Message, api_key=28, versions="0-6", flexible="3+"):
    """Positions that count once the transaction commits.

    v2: leader epoch. v3: member, generation, static members (KIP-447). v5: joins the group to the transaction by
    itself (KIP-890). v6: topic ids.
    """

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: int = int32("0+")
        committed_offset: int = int64("0+")
        committed_leader_epoch: int = int32("2+", -1, ignorable=True)
        committed_metadata: str | None = nullable_string("0+", "0+", "")

    class TxnOffsetCommitRequestTopic(Struct):
        name: str = string("0-5", ignorable=True)
        topic_id: bytes = uuid("6+", ignorable=True)
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = array("0+")

    transactional_id: str = string("0+")
    group_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    generation_id_or_member_epoch: int = int32("3+", -1)
    member_id: str = string("3+")
    group_instance_id: str | None = nullable_string("3+", "3+", None)
    topics: list[TxnOffsetCommitRequestTopic] = array("0+")


class TxnOffsetCommitResponse(Message, api_key=28, versions="0-6", flexible="3+"):
    """The outcome for every partition."""

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")

    class TxnOffsetCommitResponseTopic(Struct):
        name: str = string("0-5")
        topic_id: bytes = uuid("6+")
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = array("0+")

    throttle_time_ms: int = int32("0+")
    topics: list[TxnOffsetCommitResponseTopic] = array("0+")
