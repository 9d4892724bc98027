"""ShareAcknowledge (key 79): what a member did with its records.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import (
    Message,
    Struct,
    array,
    boolean,
    int16,
    int32,
    int64,
    nullable_string,
    string,
    struct,
    uuid,
)


class ShareAcknowledgeRequest(Message, api_key=79, versions="1-2", flexible="0+"):
    """Acknowledgements by offset range: 0 gap, 1 accept, 2 release, 3 reject, 4 renew (v2, KIP-1222)."""

    class AcknowledgementBatch(Struct):
        first_offset: int = int64("1+")
        last_offset: int = int64("1+")
        acknowledge_types: list[int] = array("1+", "int8")

    class AcknowledgePartition(Struct):
        partition_index: int = int32("1+")
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = array("1+")

    class AcknowledgeTopic(Struct):
        topic_id: bytes = uuid("1+")
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = array("1+")

    group_id: str | None = nullable_string("1+", "1+", None)
    member_id: str | None = nullable_string("1+", "1+", "")
    share_session_epoch: int = int32("1+")
    is_renew_ack: bool = boolean("2+")
    topics: list[AcknowledgeTopic] = array("1+")


class ShareAcknowledgeResponse(Message, api_key=79, versions="1-2", flexible="0+"):
    """The outcome for every partition."""

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("1+")
        leader_epoch: int = int32("1+")

    class PartitionData(Struct):
        partition_index: int = int32("1+")
        error_code: int = int16("1+")
        error_message: str | None = nullable_string("1+", "1+", None)
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = struct("1+")

    class ShareAcknowledgeTopicResponse(Struct):
        topic_id: bytes = uuid("1+")
        partitions: list[ShareAcknowledgeResponse.PartitionData] = array("1+")

    class NodeEndpoint(Struct):
        node_id: int = int32("1+")
        host: str = string("1+")
        port: int = int32("1+")
        rack: str | None = nullable_string("1+", "1+", None)

    throttle_time_ms: int = int32("1+")
    error_code: int = int16("1+")
    error_message: str | None = nullable_string("1+", "1+", None)
    acquisition_lock_timeout_ms: int = int32("2+")
    responses: list[ShareAcknowledgeTopicResponse] = array("1+")
    node_endpoints: list[NodeEndpoint] = array("1+")
