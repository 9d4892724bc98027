"""Classification of a broker's error for a batch.

Zone: pure. One table of decisions; `partition_queue` and `core` carry them out. Source: Kafka's producer; KIP-98,
KIP-360, KIP-890.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from ottla.errors import ErrorCode


class ErrorClass(Enum):
    """What to do with the batch."""

    DUPLICATE = auto()
    """An earlier attempt is in the log; the broker has forgotten at which offset."""
    SPLIT = auto()
    """The batch is too large for the broker: send its halves."""
    RETRY = auto()
    """Send it again unchanged."""
    REWIND = auto()
    """The broker has lost the producer's state: continue in a new epoch, with sequence numbers from 0 (KIP-360)."""
    FAIL = auto()
    """It will never be accepted."""


MAY_BE_IN_LOG: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors after which the batch may be in the log: with acks=all a broker also answers them if it loses its leadership,
its disk or its replica while an appended batch waits for the followers."""
STALE_METADATA: Final = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
    }
)
"""Errors that may mean that another broker leads the partition."""
FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""A newer producer has the transactional id; the code depends on broker and request (KIP-588)."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_LOST_PLACE: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


def classify_error(
    code: ErrorCode, *, records: int, may_retry: bool, idempotent: bool, transactional: bool, next_in_line: bool
) -> ErrorClass:
    """Classify an error.

    records: number in the batch. may_retry: attempts and time are left. next_in_line: all earlier batches of the
    partition are acknowledged, so none of them can be missing.
    """
    # 1. A duplicate is a success. 2. Too large: only a split helps. 3. No retry is allowed. 4. The broker has lost
    # the sequence. 5. An epoch problem without transactions. 6. By Kafka's retriable flag. Cases 1 and 2 come before
    # 3, because they need no other attempt or change the batch.
    if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and idempotent:
        return ErrorClass.DUPLICATE
    if code in _TOO_LARGE and records > 1:
        return ErrorClass.SPLIT
    if not may_retry:
        return ErrorClass.FAIL
    if idempotent and code in _LOST_PLACE:
        return _lost_place(code, transactional=transactional, next_in_line=next_in_line)
    if idempotent and code is ErrorCode.INVALID_PRODUCER_EPOCH and not transactional:
        # Another producer used our id, or an unclean election lost our last epoch: begin a new one.
        return ErrorClass.REWIND
    return ErrorClass.RETRY if code.retriable else ErrorClass.FAIL


def _lost_place(code: ErrorCode, *, transactional: bool, next_in_line: bool) -> ErrorClass:
    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not next_in_line:
        # An earlier batch is not in the log yet: this one came too early, no batch is lost.
        return ErrorClass.RETRY
    # A transaction would miss records, so it can only be aborted.
    return ErrorClass.FAIL if transactional else ErrorClass.REWIND
