"""Records of `__transaction_state`.

Zone: pure. Declarations only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ottla.record.internal.parsing import RecordType
from ottla.wire.schema import Message, Struct, array, int8, int16, int32, int64, string


class TransactionLogKey(Message, versions="0"):
    """Type 0: a transactional id."""

    transactional_id: str = string("0")


class TransactionLogValue(Message, versions="0-1", flexible="1+"):
    """The state of its producer and of its transaction."""

    class PartitionsSchema(Struct):
        """Partitions of a topic in the transaction."""

        topic: str = string("0+")
        partition_ids: list[int] = array("0+", of="int32")

    producer_id: int = int64("0+")
    previous_producer_id: int = int64("1+", default=-1, tag=0)
    next_producer_id: int = int64("1+", default=-1, tag=1)
    producer_epoch: int = int16("0+")
    transaction_timeout_ms: int = int32("0+")
    transaction_status: int = int8("0+")
    transaction_partitions: list[TransactionLogValue.PartitionsSchema] | None = array("0+", nullable="0+")
    transaction_last_update_timestamp_ms: int = int64("0+")
    transaction_start_timestamp_ms: int = int64("0+")
    client_transaction_version: int = int16("1+", tag=2)
    last_producer_epoch: int = int16("1+", default=-1, tag=4)
    """Since KAFKA-20357; older readers skip it. Without it a producer whose coordinator fails between a change of
    its epoch and the answer would be fenced."""


TRANSACTION_RECORDS: Final[Mapping[int, RecordType]] = MappingProxyType(
    {0: RecordType(TransactionLogKey, TransactionLogValue)}
)
"""The record types of `__transaction_state`."""
