"""ShareFetch (key 78): records for a member of a share group.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.seams import Part
from ottla.wire.schema import (
    Message,
    Struct,
    array,
    boolean,
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


class ShareFetchRequest(Message, api_key=78, versions="1-2", flexible="0+"):
    """Partitions to acquire records from, with acknowledgements of earlier ones (KIP-932).

    v1: limits on records. v2: renewals and strict limits (KIP-1222, KIP-1206).
    """

    class AcknowledgementBatch(Struct):
        first_offset: int = int64("1+")
        last_offset: int = int64("1+")
        acknowledge_types: list[int] = array("1+", "int8")

    class FetchPartition(Struct):
        partition_index: int = int32("1+")
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = array("1+")

    class FetchTopic(Struct):
        topic_id: bytes = uuid("1+")
        partitions: list[ShareFetchRequest.FetchPartition] = array("1+")

    class ForgottenTopic(Struct):
        topic_id: bytes = uuid("1+")
        partitions: list[int] = array("1+", "int32")

    group_id: str | None = nullable_string("1+", "1+", None)
    member_id: str | None = nullable_string("1+", "1+", "")
    share_session_epoch: int = int32("1+")
    max_wait_ms: int = int32("1+")
    min_bytes: int = int32("1+")
    max_bytes: int = int32("1+", 0x7FFFFFFF)
    max_records: int = int32("1+")
    batch_size: int = int32("1+")
    share_acquire_mode: int = int8("2+", ignorable=True)
    is_renew_ack: bool = boolean("2+")
    topics: list[FetchTopic] = array("1+")
    forgotten_topics_data: list[ForgottenTopic] = array("1+")


class ShareFetchResponse(Message, api_key=78, versions="1-2", flexible="0+"):
    """Records and the ranges that were acquired, with their delivery counts."""

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("1+")
        leader_epoch: int = int32("1+")

    class AcquiredRecords(Struct):
        first_offset: int = int64("1+")
        last_offset: int = int64("1+")
        delivery_count: int = int16("1+")

    class PartitionData(Struct):
        partition_index: int = int32("1+")
        error_code: int = int16("1+")
        error_message: str | None = nullable_string("1+", "1+", None)
        acknowledge_error_code: int = int16("1+")
        acknowledge_error_message: str | None = nullable_string("1+", "1+", None)
        current_leader: ShareFetchResponse.LeaderIdAndEpoch = struct("1+")
        records: Part | None = record_data("1+")
        acquired_records: list[ShareFetchResponse.AcquiredRecords] = array("1+")

    class ShareFetchableTopicResponse(Struct):
        topic_id: bytes = uuid("1+")
        partitions: list[ShareFetchResponse.PartitionData] = array("1+")

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = int32("1+")
        rack: str | None = nullable_string("1+", "1+", None)

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("1+")
    error_message: str | None = nullable_string("1+", "1+", None)
    acquisition_lock_timeout_ms: int = int32("1+")
    responses: list[ShareFetchableTopicResponse] = array("1+")
    node_endpoints: list[NodeEndpoint] = array("1+")
