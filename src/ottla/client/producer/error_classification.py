"""What a broker's refusal means for the batch it is about.

Zone: pure. One table of decisions; carrying them out is `partition_queue` and `core`. Source: Kafka's producer; KIP-98,
KIP-360, KIP-890.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from ottla.errors import ErrorCode


class ErrorClass(Enum):
    """What to do with the batch."""

    DUPLICATE = auto()
    """An earlier attempt is in the log; the broker does not remember where."""
    SPLIT = auto()
    """Too large for the broker: send its halves."""
    RETRY = auto()
    """Send it again as it is."""
    REWIND = auto()
    """The broker has lost its place: go on in a new producer epoch, with sequences from 0 (KIP-360)."""
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
"""Answers after which a batch is perhaps in the log all the same: with acks=all a broker answers so, too, when it loses
its leadership, its disk or its replica while a batch that it has written waits for the followers."""
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
"""Answers that say that somebody else leads the partition by now, perhaps."""
FENCED: Final = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
"""Both say that a newer producer has the transactional id; which one depends on broker and request (KIP-588)."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})
_LOST_PLACE: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


def meaning(
    code: ErrorCode, *, records: int, may_retry: bool, idempotent: bool, transactional: bool, next_in_line: bool
) -> ErrorClass:
    """What an error in an answer means.

    records: in the batch. may_retry: attempts and time are left. next_in_line: every batch of the partition before
    this one is acknowledged, so the broker has nothing to miss.
    """
    if code is ErrorCode.DUPLICATE_SEQUENCE_NUMBER and idempotent:
        return ErrorClass.DUPLICATE
    if code in _TOO_LARGE and records > 1:
        return ErrorClass.SPLIT
    if not may_retry:
        return ErrorClass.FAIL
    if idempotent and code in _LOST_PLACE:
        return _lost_place(code, transactional=transactional, next_in_line=next_in_line)
    if idempotent and code is ErrorCode.INVALID_PRODUCER_EPOCH and not transactional:
        # Somebody else's epoch under our id, or our own newer one after an unclean election: begin another.
        return ErrorClass.REWIND
    return ErrorClass.RETRY if code.retriable else ErrorClass.FAIL


def _lost_place(code: ErrorCode, *, transactional: bool, next_in_line: bool) -> ErrorClass:
    if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not next_in_line:
        # What comes before is not in the log yet: an early batch, not a lost one.
        return ErrorClass.RETRY
    # The transaction would have a hole, so only an abort helps there.
    return ErrorClass.FAIL if transactional else ErrorClass.REWIND
