"""Fetch (key 1): records from a leader to consumers and followers.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.seams import Part
from ottla.wire.schema import (
    Message,
    Struct,
    array,
    int8,
    int16,
    int32,
    int64,
    nullable_string,
    record_data,
    string,
    struct,
    uuid,
)


class FetchRequest(Message, api_key=1, versions="0-18", flexible="12+"):
    """Positions to read from, in order of preference.

    v3: a limit for the whole response (KIP-74). v4: isolation level (KIP-98). v5: the follower's log start. v7:
    incremental sessions (KIP-227). v9: leader epochs (KIP-320). v11: rack (KIP-392). v12: flexible, divergence by
    epoch (KIP-595). v13: topic ids (KIP-516). v15: replica state with broker epoch (KIP-903). v17: directory id
    (KIP-853). v18: the follower's high watermark (KIP-1166).
    """

    class ReplicaState(Struct):
        replica_id: int = int32("15+", -1)
        replica_epoch: int = int64("15+", -1)

    class FetchPartition(Struct):
        partition: int = int32("0+")
        current_leader_epoch: int = int32("9+", -1, ignorable=True)
        fetch_offset: int = int64("0+")
        last_fetched_epoch: int = int32("12+", -1)
        log_start_offset: int = int64("5+", -1, ignorable=True)
        partition_max_bytes: int = int32("0+")
        replica_directory_id: bytes = uuid("17+", tag=0, ignorable=True)
        high_watermark: int = int64("18+", 2**63 - 1, tag=1, ignorable=True)

    class FetchTopic(Struct):
        topic: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partitions: list[FetchRequest.FetchPartition] = array("0+")

    class ForgottenTopic(Struct):
        topic: str = string("7-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partitions: list[int] = array("7+", "int32")

    cluster_id: str | None = nullable_string("12+", "12+", None, tag=0, ignorable=True)
    replica_id: int = int32("0-14", -1)
    replica_state: ReplicaState = struct("15+", tag=1)
    max_wait_ms: int = int32("0+")
    min_bytes: int = int32("0+")
    max_bytes: int = int32("3+", 0x7FFFFFFF, ignorable=True)
    isolation_level: int = int8("4+", ignorable=True)
    session_id: int = int32("7+", ignorable=True)
    session_epoch: int = int32("7+", -1, ignorable=True)
    topics: list[FetchTopic] = array("0+")
    forgotten_topics_data: list[ForgottenTopic] = array("7+")
    rack_id: str = string("11+", ignorable=True)


class FetchResponse(Message, api_key=1, versions="0-18", flexible="12+"):
    """Batches as they are in the log, and the offsets of each log.

    v1: throttle time. v4: aborted transactions and last stable offset. v7: sessions. v11: preferred replica. v12:
    diverging epoch and current leader. v13: topic ids. v16: addresses of new leaders (KIP-951).
    """

    class EpochEndOffset(Struct):
        epoch: int = int32("12+", -1)
        end_offset: int = int64("12+", -1)

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("12+", -1)
        leader_epoch: int = int32("12+", -1)

    class SnapshotId(Struct):
        end_offset: int = int64("0+", -1)
        epoch: int = int32("0+", -1)

    class AbortedTransaction(Struct):
        producer_id: int = int64("4+")
        first_offset: int = int64("4+")

    class PartitionData(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        high_watermark: int = int64("0+")
        last_stable_offset: int = int64("4+", -1)
        log_start_offset: int = int64("5+", -1)
        diverging_epoch: FetchResponse.EpochEndOffset = struct("12+", tag=0)
        current_leader: FetchResponse.LeaderIdAndEpoch = struct("12+", tag=1)
        snapshot_id: FetchResponse.SnapshotId = struct("12+", tag=2)
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = array("4+", nullable="4+")
        preferred_read_replica: int = int32("11+", -1)
        records: Part | None = record_data("0+", "0+")

    class FetchableTopicResponse(Struct):
        topic: str = string("0-12")
        topic_id: bytes = uuid("13+")
        partitions: list[FetchResponse.PartitionData] = array("0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("16+")
        host: str = string("16+")
        port: int = int32("16+")
        rack: str | None = nullable_string("16+", "16+", None)

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("7+")
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array("0+")
    node_endpoints: list[NodeEndpoint] = array("16+", tag=0)
