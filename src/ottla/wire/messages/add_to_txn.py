"""AddPartitionsToTxn (key 24) and AddOffsetsToTxn (key 25): adds partitions or a group to a transaction.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, boolean, int16, int32, int64, string


class AddPartitionsToTxnRequest(Message, api_key=24, versions="0-5", flexible="3+"):
    """Partitions that join a transaction.

    v4: several transactions at once and verification only, between brokers (KIP-890).
    """

    class AddPartitionsToTxnTopic(Struct):
        name: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class AddPartitionsToTxnTransaction(Struct):
        transactional_id: str = string("4+")
        producer_id: int = int64("4+")
        producer_epoch: int = int16("4+")
        verify_only: bool = boolean("4+")
        topics: list[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic] = array("4+")

    transactions: list[AddPartitionsToTxnTransaction] = array("4+")
    v3_and_below_transactional_id: str = string("0-3")
    v3_and_below_producer_id: int = int64("0-3")
    v3_and_below_producer_epoch: int = int16("0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = array("0-3")


class AddPartitionsToTxnResponse(Message, api_key=24, versions="0-5", flexible="3+"):
    """The outcome for every partition. v4: for every transaction."""

    class AddPartitionsToTxnPartitionResult(Struct):
        partition_index: int = int32("0+")
        partition_error_code: int = int16("0+")

    class AddPartitionsToTxnTopicResult(Struct):
        name: str = string("0+")
        results_by_partition: list[AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult] = array("0+")

    class AddPartitionsToTxnResult(Struct):
        transactional_id: str = string("4+")
        topic_results: list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult] = array("4+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("4+")
    results_by_transaction: list[AddPartitionsToTxnResult] = array("4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = array("0-3")


class AddOffsetsToTxnRequest(Message, api_key=25, versions="0-4", flexible="3+"):
    """The group whose positions join a transaction."""

    transactional_id: str = string("0+")
    producer_id: int = int64("0+")
    producer_epoch: int = int16("0+")
    group_id: str = string("0+")


class AddOffsetsToTxnResponse(Message, api_key=25, versions="0-4", flexible="3+"):
    """Whether the group was added."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
