"""InitProducerId (key 22) and DescribeProducers (key 61): identity of idempotent producers.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, int64, nullable_string, string


class InitProducerIdRequest(Message, api_key=22, versions="0-5", flexible="2+"):
    """A producer id wanted, for a transactional id or for idempotence alone (KIP-98).

    v3: the id and epoch held so far, to bump (KIP-360). v4-5: newer errors only.
    """

    transactional_id: str | None = nullable_string("0+", "0+", "")
    transaction_timeout_ms: int = int32("0+")
    producer_id: int = int64("3+", -1)
    producer_epoch: int = int16("3+", -1)


class InitProducerIdResponse(Message, api_key=22, versions="0-5", flexible="2+"):
    """The producer id and epoch to use."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    producer_id: int = int64("0+", -1)
    producer_epoch: int = int16("0+")


class DescribeProducersRequest(Message, api_key=61, versions="0", flexible="0+"):
    """Partitions whose producer state is wanted (KIP-664)."""

    class TopicRequest(Struct):
        name: str = string("0+")
        partition_indexes: list[int] = array("0+", "int32")

    topics: list[TopicRequest] = array("0+")


class DescribeProducersResponse(Message, api_key=61, versions="0", flexible="0+"):
    """Producers with their last sequence and the start of an open transaction."""

    class ProducerState(Struct):
        producer_id: int = int64("0+")
        producer_epoch: int = int32("0+")
        last_sequence: int = int32("0+", -1)
        last_timestamp: int = int64("0+", -1)
        coordinator_epoch: int = int32("0+")
        current_txn_start_offset: int = int64("0+", -1)

    class PartitionResponse(Struct):
        partition_index: int = int32("0+")
        error_code: int = int16("0+")
        error_message: str | None = nullable_string("0+", "0+", None)
        active_producers: list[DescribeProducersResponse.ProducerState] = array("0+")

    class TopicResponse(Struct):
        name: str = string("0+")
        partitions: list[DescribeProducersResponse.PartitionResponse] = array("0+")

    throttle_time_ms: int = int32("0+")
    topics: list[TopicResponse] = array("0+")
