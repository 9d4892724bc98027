"""Produce (key 0): records from a producer to partition leaders.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.seams import Part
from ottla.wire.schema import (
    Message,
    Struct,
    array,
    int16,
    int32,
    int64,
    nullable_string,
    record_data,
    string,
    struct,
    uuid,
)


class ProduceRequest(Message, api_key=0, versions="0-13", flexible="9+"):
    """Record batches for partitions of several topics.

    v3: batches of format v2, transactional id (KIP-98). v7: zstd allowed (KIP-110). v9: flexible. v12: adds its
    partitions to the transaction by itself (KIP-890). v13: topic ids in place of names (KIP-516).
    """

    class PartitionProduceData(Struct):
        index: int = int32("0+")
        records: Part | None = record_data("0+", "0+")

    class TopicProduceData(Struct):
        name: str = string("0-12", ignorable=True)
        topic_id: bytes = uuid("13+", ignorable=True)
        partition_data: list[ProduceRequest.PartitionProduceData] = array("0+")

    transactional_id: str | None = nullable_string("3+", "3+", None)
    acks: int = int16("0+")
    timeout_ms: int = int32("0+")
    topic_data: list[TopicProduceData] = array("0+")


class ProduceResponse(Message, api_key=0, versions="0-13", flexible="9+"):
    """Base offset or error of every partition; nothing is sent back for acks=0.

    v2: append time. v5: log start offset. v8: which records were wrong (KIP-467). v10: the new leader's address
    (KIP-951). v13: topic ids.
    """

    class BatchIndexAndErrorMessage(Struct):
        batch_index: int = int32("8+")
        batch_index_error_message: str | None = nullable_string("8+", "8+", None)

    class LeaderIdAndEpoch(Struct):
        leader_id: int = int32("10+", -1)
        leader_epoch: int = int32("10+", -1)

    class PartitionProduceResponse(Struct):
        index: int = int32("0+")
        error_code: int = int16("0+")
        base_offset: int = int64("0+")
        log_append_time_ms: int = int64("2+", -1)
        log_start_offset: int = int64("5+", -1)
        record_errors: list[ProduceResponse.BatchIndexAndErrorMessage] = array("8+")
        error_message: str | None = nullable_string("8+", "8+", None)
        current_leader: ProduceResponse.LeaderIdAndEpoch = struct("10+", tag=0)

    class TopicProduceResponse(Struct):
        name: str = string("0-12")
        topic_id: bytes = uuid("13+")
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = array("0+")

    class NodeEndpoint(Struct):
        node_id: int = int32("10+")
        host: str = string("10+")
        port: int = int32("10+")
        rack: str | None = nullable_string("10+", "10+", None)

    responses: list[TopicProduceResponse] = array("0+")
    throttle_time_ms: int = int32("1+")
    node_endpoints: list[NodeEndpoint] = array("10+", tag=0)
