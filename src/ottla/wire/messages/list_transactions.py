"""DescribeTransactions (key 65) and ListTransactions (key 66): transactions as an administrator sees them.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, Struct, array, int16, int32, int64, nullable_string, string


class DescribeTransactionsRequest(Message, api_key=65, versions="0", flexible="0+"):
    """Transactional ids to describe (KIP-664)."""

    transactional_ids: list[str] = array("0+", "string")


class DescribeTransactionsResponse(Message, api_key=65, versions="0", flexible="0+"):
    """State, producer and partitions of every transaction."""

    class TopicData(Struct):
        topic: str = string("0+")
        partitions: list[int] = array("0+", "int32")

    class TransactionState(Struct):
        error_code: int = int16("0+")
        transactional_id: str = string("0+")
        transaction_state: str = string("0+")
        transaction_timeout_ms: int = int32("0+")
        transaction_start_time_ms: int = int64("0+")
        producer_id: int = int64("0+")
        producer_epoch: int = int16("0+")
        topics: list[DescribeTransactionsResponse.TopicData] = array("0+")

    throttle_time_ms: int = int32("0+")
    transaction_states: list[TransactionState] = array("0+")


class ListTransactionsRequest(Message, api_key=66, versions="0-2", flexible="0+"):
    """Filters: state, producer id, v1 duration (KIP-994), v2 a pattern of ids (KIP-1152)."""

    state_filters: list[str] = array("0+", "string", most=1_000)
    producer_id_filters: list[int] = array("0+", "int64", most=10_000)
    duration_filter: int = int64("1+", -1)
    transactional_id_pattern: str | None = nullable_string("2+", "2+", None)


class ListTransactionsResponse(Message, api_key=66, versions="0-2", flexible="0+"):
    """The transactions this broker coordinates."""

    class TransactionState(Struct):
        transactional_id: str = string("0+")
        producer_id: int = int64("0+")
        transaction_state: str = string("0+")

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    unknown_state_filters: list[str] = array("0+", "string")
    transaction_states: list[TransactionState] = array("0+")
