"""The rules of transactional ids: the transition that a request causes, or the error that refuses it.

Zone: pure. Each rule takes the state and the request and returns the next state, or the same one when nothing changes.
All raise ApiError. A producer with a past epoch never changes anything (KIP-98, KIP-890).

Kafka's coordinator refuses requests while a record of the transactional id is being replicated. Here the record is
applied at once; an error that depends on it is answered once the record is committed (`machine`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.transactions.commands import AddPartitions, EndTransaction, InitProducerId, VerifyPartitions
from ottla.transactions.state import (
    BUMPED,
    MAX_EPOCH,
    UNBUMPED,
    ProducerIdentity,
    Transaction,
    TransactionStatus,
    decide_abort_and_fence,
    decide_end,
    decide_end_and_bump,
    new_transaction,
    renew_epoch,
    rotate_producer_id,
    with_partitions,
)
from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.utf8 import encode_text

MAX_ID_BYTES: Final = 2**15 - 1
MAX_PARTITIONS_BYTES: Final = 1_000_000
"""The most bytes of the partitions in a record; a batch of `__transaction_state` may have 1,048,588 bytes."""
# The name, 4 bytes of the index, and `_PER_TOPIC`.
_LONGEST_PARTITION: Final = 265
"""The most bytes of one partition: the only one of a topic with a name of 249 bytes."""
_PER_TOPIC: Final = 12


class FreshIdNeeded(Exception):
    """The request needs an unused producer id (`fresh_id`)."""


def check_id(transactional_id: str) -> None:
    """Raises ApiError INVALID_REQUEST for an empty transactional id, and for one too long for a record's key."""
    if not transactional_id:
        raise ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    # A character has at most four bytes in UTF-8, so a shorter id need not be encoded.
    if len(transactional_id) > MAX_ID_BYTES // 4 and len(encode_text(transactional_id)) > MAX_ID_BYTES:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"the transactional id has more than {MAX_ID_BYTES} bytes")


def check_size(txn: Transaction) -> None:
    """Raises ApiError MESSAGE_TOO_LARGE for partitions that one record cannot hold.

    The limit leaves room in the batch, so that the end of a transaction always fits when its partitions did.
    """
    # The cheap bound is enough for nearly all transactions.
    if len(txn.partitions) * _LONGEST_PARTITION <= MAX_PARTITIONS_BYTES:
        return
    topics = {tp.topic for tp in txn.partitions}
    size = 4 * len(txn.partitions) + sum(len(encode_text(topic)) + _PER_TOPIC for topic in topics)
    if size > MAX_PARTITIONS_BYTES:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{len(txn.partitions)} partitions are too many for a transaction")


# -- InitProducerId ----------------------------------------------------------------------------------------------------


def init_producer(txn: Transaction | None, request: InitProducerId, now_ms: int, version: int) -> Transaction:
    """A producer starts, or continues. If a transaction is open, it is aborted, and the producer has to ask again.

    `version`: the transaction version of this broker. Raises FreshIdNeeded; ApiError PRODUCER_FENCED (another producer
    has the id now), CONCURRENT_TRANSACTIONS (its last transaction is not complete yet).
    """
    # 1. An unknown id.
    if txn is None:
        return new_transaction(_require_fresh_id(request.fresh_id), request.timeout_ms, now_ms)
    # 2. The end of its last transaction is in progress: the producer has to wait for it.
    if txn.status.ending:
        raise _still_ending_error(request.transactional_id)
    # 3. A new instance, which fences the one before.
    if request.expected is None:
        return _take_over(txn, request, now_ms, version)
    # 4. The present instance recovers from an error (KIP-360).
    if request.expected == txn.identity:
        return _continue_producer(txn, request, now_ms, version)
    # 5. The same, but the response with its last epoch was lost.
    if txn.status.resting and txn.preceded_by(request.expected):
        return _repeat_start(txn, request, now_ms)
    raise _fenced_error(request.transactional_id, txn, request.expected)


def _take_over(txn: Transaction, request: InitProducerId, now_ms: int, version: int) -> Transaction:
    """A producer that sends only the transactional id takes it over: all earlier instances are fenced."""
    if txn.status is TransactionStatus.ONGOING:
        return decide_abort_and_fence(txn, now_ms, version, NO_PRODUCER_EPOCH)
    if txn.is_exhausted:
        return rotate_producer_id(
            txn, _require_fresh_id(request.fresh_id), request.timeout_ms, now_ms, NO_PRODUCER_EPOCH
        )
    return renew_epoch(txn, request.timeout_ms, now_ms, bump=True, last_epoch=NO_PRODUCER_EPOCH)


def _continue_producer(txn: Transaction, request: InitProducerId, now_ms: int, version: int) -> Transaction:
    """The present producer asks for a new epoch (KIP-360)."""
    if txn.status is TransactionStatus.ONGOING:
        return decide_abort_and_fence(txn, now_ms, version, txn.epoch)
    if txn.is_exhausted:
        return rotate_producer_id(txn, _require_fresh_id(request.fresh_id), request.timeout_ms, now_ms, txn.epoch)
    return renew_epoch(txn, request.timeout_ms, now_ms, bump=True, last_epoch=txn.epoch)


def _repeat_start(txn: Transaction, request: InitProducerId, now_ms: int) -> Transaction:
    """The producer does not have its new epoch: the response was lost, or its transaction timed out (KIP-588)."""
    last_epoch = txn.last_epoch
    if txn.status is TransactionStatus.EMPTY:
        return renew_epoch(txn, request.timeout_ms, now_ms, bump=False, last_epoch=last_epoch)
    # Markers carry the present epoch and may arrive late: no records may be written in that epoch.
    if txn.is_exhausted:
        return rotate_producer_id(txn, _require_fresh_id(request.fresh_id), request.timeout_ms, now_ms, last_epoch)
    return renew_epoch(txn, request.timeout_ms, now_ms, bump=True, last_epoch=last_epoch)


# -- AddPartitionsToTxn, AddOffsetsToTxn -------------------------------------------------------------------------------


def add_partitions(txn: Transaction | None, request: AddPartitions, now_ms: int) -> Transaction:
    """Partitions join a transaction, or begin one.

    Raises ApiError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS, MESSAGE_TOO_LARGE.
    """
    known = _check_writer(txn, request.transactional_id, request.identity)
    # Most producers write to the same partitions all the time; nothing is journaled for a partition that is known.
    if known.status is TransactionStatus.ONGOING and known.partitions.issuperset(request.partitions):
        return known
    after = with_partitions(known, request.partitions, request.version, now_ms)
    check_size(after)
    return after


def verify_partitions(txn: Transaction | None, request: VerifyPartitions) -> Mapping[TopicPartition, ErrorCode]:
    """NONE for partitions of the transaction, TRANSACTION_ABORTABLE for others. Raises the errors of
    `add_partitions`."""
    known = _check_writer(txn, request.transactional_id, request.identity)
    return {
        tp: ErrorCode.NONE if tp in known.partitions else ErrorCode.TRANSACTION_ABORTABLE for tp in request.partitions
    }


def _check_writer(txn: Transaction | None, transactional_id: str, identity: ProducerIdentity) -> Transaction:
    """The transaction, if this producer may write in it now. Raises ApiError."""
    txn = _require_known(txn, transactional_id)
    # While a transaction of version 2 ends, there are two identities: the successor may not write yet, and gets an
    # error that it retries; the one that ended it is fenced.
    if identity != txn.successor:
        raise _wrong_producer_error(transactional_id, txn, identity)
    if txn.status.ending:
        raise _still_ending_error(transactional_id)
    return txn


# -- EndTxn ------------------------------------------------------------------------------------------------------------


def end_transaction(txn: Transaction | None, request: EndTransaction, now_ms: int) -> Transaction:
    """Commit or abort.

    Raises FreshIdNeeded; ApiError INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, CONCURRENT_TRANSACTIONS (it is ending),
    INVALID_TXN_STATE (there is nothing to end, or it ended the other way).
    """
    known = _require_known(txn, request.transactional_id)
    return _end_bumped(known, request, now_ms) if request.version >= BUMPED else _end_unbumped(known, request, now_ms)


def _end_unbumped(txn: Transaction, request: EndTransaction, now_ms: int) -> Transaction:
    if request.identity != txn.identity:
        raise _wrong_producer_error(request.transactional_id, txn, request.identity)
    if txn.status is TransactionStatus.ONGOING:
        return decide_end(txn, request.commit, now_ms)
    return _end_again(txn, request)


def _end_bumped(txn: Transaction, request: EndTransaction, now_ms: int) -> Transaction:
    """End a transaction under version 2, where each end gives the producer another epoch (KIP-890).

    The present epoch ends the present transaction; the previous one can only repeat the end of the last transaction.
    """
    # 1. The present epoch. An abort without a transaction is allowed: the producer may not know that it has none.
    if not txn.status.ending and request.identity == txn.identity:
        if txn.status is TransactionStatus.ONGOING or not request.commit:
            fresh_id = _require_fresh_id(request.fresh_id) if txn.is_exhausted else NO_PRODUCER_ID
            return decide_end_and_bump(txn, request.commit, now_ms, fresh_id)
        raise _nothing_to_end_error(txn, request)
    # 2. The previous epoch: the response to this end was lost. Not when the coordinator aborted in the last epoch: the
    #    producer has no next epoch to continue in, and needs InitProducerId.
    decided = txn.status not in (TransactionStatus.EMPTY, TransactionStatus.ONGOING)
    if decided and txn.preceded_by(request.identity) and txn.successor.epoch != MAX_EPOCH:
        return _end_again(txn, request)
    # 3. The next epoch, before the end of the last one is complete.
    if txn.status.ending and request.identity == txn.successor:
        raise _still_ending_error(request.transactional_id)
    raise _wrong_producer_error(request.transactional_id, txn, request.identity)


def _end_again(txn: Transaction, request: EndTransaction) -> Transaction:
    """A producer repeats the end of its transaction. The same decision again succeeds, the other one is an error."""
    if txn.status is TransactionStatus.EMPTY or txn.status.commits != request.commit:
        raise _nothing_to_end_error(txn, request)
    if txn.status.ending:
        raise _still_ending_error(request.transactional_id)
    return txn


# -- time --------------------------------------------------------------------------------------------------------------


def has_timed_out(txn: Transaction, now_ms: int) -> bool:
    """Whether an open transaction has exceeded its producer's time-out."""
    return txn.status is TransactionStatus.ONGOING and txn.start_ms + txn.timeout_ms < now_ms


def has_expired(txn: Transaction, now_ms: int, after_ms: int) -> bool:
    """Whether a transactional id was not used for `after_ms`."""
    return txn.status.resting and txn.update_ms + after_ms <= now_ms


def abort_timed_out(txn: Transaction, now_ms: int, version: int) -> Transaction:
    """Abort a transaction that has timed out. Its producer is fenced, but may continue in a new epoch (KIP-588)."""
    return decide_abort_and_fence(txn, now_ms, version, txn.epoch)


def version_of_aborts(version: int) -> int:
    """The transaction version under which a coordinator of that version aborts."""
    return BUMPED if version >= BUMPED else UNBUMPED


# -- errors ------------------------------------------------------------------------------------------------------------


def _require_fresh_id(producer_id: int) -> int:
    if producer_id < 0:
        raise FreshIdNeeded
    return producer_id


def _require_known(txn: Transaction | None, transactional_id: str) -> Transaction:
    if txn is None:
        check_id(transactional_id)
        raise ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, f"transactional id {transactional_id!r} is not known")
    return txn


def _wrong_producer_error(transactional_id: str, txn: Transaction, identity: ProducerIdentity) -> ApiError:
    if identity.producer_id not in (txn.producer_id, txn.successor.producer_id):
        return ApiError(
            ErrorCode.INVALID_PRODUCER_ID_MAPPING,
            f"transactional id {transactional_id!r} belongs to producer {txn.producer_id}, not {identity.producer_id}",
        )
    return _fenced_error(transactional_id, txn, identity)


def _fenced_error(transactional_id: str, txn: Transaction, identity: ProducerIdentity) -> ApiError:
    return ApiError(
        ErrorCode.PRODUCER_FENCED,
        f"transactional id {transactional_id!r} is in epoch {txn.epoch} of producer {txn.producer_id}; "
        f"epoch {identity.epoch} of producer {identity.producer_id} is over",
    )


def _still_ending_error(transactional_id: str) -> ApiError:
    return ApiError(
        ErrorCode.CONCURRENT_TRANSACTIONS,
        f"the last transaction of {transactional_id!r} is not complete yet; try again",
    )


def _nothing_to_end_error(txn: Transaction, request: EndTransaction) -> ApiError:
    wanted = "commit" if request.commit else "abort"
    return ApiError(
        ErrorCode.INVALID_TXN_STATE,
        f"transactional id {request.transactional_id!r} is {txn.status.label}: there is nothing to {wanted}",
    )
