"""A transactional id: its producer, its transaction, and the transitions between them.

Zone: pure. Values and how one follows from another; which transition a request asks for, and whether it may, is
`rules`'. Epochs go up to 2^15-1; producers get at most 2^15-2, so that there is always one left to fence them with.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

MAX_EPOCH: Final = 2**15 - 1
LAST_EPOCH: Final = MAX_EPOCH - 1
"""The highest epoch that a producer gets."""
BUMPED: Final = 2
"""The transaction version (KIP-890) from which on the epoch grows with every end of a transaction."""
UNBUMPED: Final = 0
_NOWHERE: Final[frozenset[TopicPartition]] = frozenset()
_new = tuple.__new__  # a third of the time of the classes' own, and identities are made and compared all the time


class TransactionStatus(IntEnum):
    """Where a transaction stands; the numbers are those of the records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    ending: bool
    """Decided; its markers are being written."""
    resting: bool
    """Nothing is open."""
    commits: bool
    """Whether the end was, or is going to be, a commit."""

    def __init__(self, number: int) -> None:
        self.ending = number in (2, 3)
        self.resting = number in (0, 4, 5)
        self.commits = number in (2, 4)

    @property
    def label(self) -> str:
        """Kafka's name, as administrators see it."""
        return self.name.title().replace("_", "")


class ProducerIdentity(NamedTuple):
    """A producer id, and which of its lives."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """What is known of a transactional id: one record of `__transaction_state`."""

    producer_id: int
    epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    """Wall time at which the present or last transaction began; -1: none."""
    update_ms: int = NO_TIMESTAMP
    """Wall time of the last change: what expiry counts from."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """While ending: the producer id to go on with, because the epochs of the present one are used up."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The epoch of the same producer before the present one: it may not have heard of the change. -1: nobody's."""
    version: int = UNBUMPED
    """The transaction version of whoever changed it."""

    @property
    def identity(self) -> ProducerIdentity:
        """The producer of now."""
        return _new(ProducerIdentity, (self.producer_id, self.epoch))

    @property
    def successor(self) -> ProducerIdentity:
        """The producer that goes on once the transaction is complete."""
        fresh_id = self.next_producer_id
        return _new(ProducerIdentity, (self.producer_id, self.epoch) if fresh_id < 0 else (fresh_id, 0))

    @property
    def exhausted(self) -> bool:
        """Whether the next change of the epoch needs a new producer id."""
        return self.epoch >= LAST_EPOCH

    def preceded_by(self, identity: ProducerIdentity) -> bool:
        """Whether this is the producer itself that has not heard of its last change."""
        if identity.epoch != self.last_epoch or identity.epoch < 0:
            return False
        # Another epoch than the first one belongs to the same producer id.
        return identity.producer_id == (self.previous_producer_id if self.epoch == 0 else self.producer_id)


def opened(producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """A transactional id that was not known."""
    return Transaction(producer_id, 0, timeout_ms, update_ms=now_ms, previous_producer_id=producer_id)


def renewed(txn: Transaction, timeout_ms: int, now_ms: int, bump: bool, last_epoch: int) -> Transaction:
    """A producer starts anew under the same producer id; without a bump it only repeats itself."""
    assert txn.status.resting, "nothing is renewed while a transaction is open"
    assert not bump or not txn.exhausted, "epochs are used up"
    return txn._replace(
        epoch=txn.epoch + bump,
        timeout_ms=timeout_ms,
        status=TransactionStatus.EMPTY,
        start_ms=NO_TIMESTAMP,
        update_ms=now_ms,
        previous_producer_id=txn.producer_id if bump else txn.previous_producer_id,
        last_epoch=last_epoch,
    )


def rotated(txn: Transaction, producer_id: int, timeout_ms: int, now_ms: int, last_epoch: int) -> Transaction:
    """A producer starts anew under another producer id, because the epochs of the old one are used up."""
    assert txn.status.resting, "nothing is renewed while a transaction is open"
    fresh = opened(producer_id, timeout_ms, now_ms)
    return fresh._replace(previous_producer_id=txn.producer_id, last_epoch=last_epoch, version=txn.version)


def widened(txn: Transaction, partitions: Iterable[TopicPartition], version: int, now_ms: int) -> Transaction:
    """More partitions; the first ones begin a transaction."""
    assert not txn.status.ending, "a transaction that ends gets no partitions"
    ongoing = txn.status is TransactionStatus.ONGOING
    return _new(Transaction, (
        txn.producer_id,
        txn.epoch,
        txn.timeout_ms,
        TransactionStatus.ONGOING,
        txn.partitions.union(partitions),
        txn.start_ms if ongoing else now_ms,
        now_ms,
        txn.producer_id,
        txn.next_producer_id,
        # A producer that writes has heard of its epoch: an older request of the same producer is only late.
        NO_PRODUCER_EPOCH,
        version,
    ))  # fmt: skip


def ended(txn: Transaction, commit: bool, now_ms: int) -> Transaction:
    """The producer ends its transaction and keeps its epoch (before KIP-890)."""
    return _decided(txn, commit, now_ms, txn.epoch, txn.next_producer_id, txn.last_epoch, UNBUMPED)


def ended_and_bumped(txn: Transaction, commit: bool, now_ms: int, next_producer_id: int) -> Transaction:
    """The producer ends its transaction, with or without partitions, and goes on with another epoch (KIP-890)."""
    assert not txn.exhausted or next_producer_id >= 0, "epochs are used up"
    next_producer_id = next_producer_id if txn.exhausted else NO_PRODUCER_ID
    return _decided(txn, commit, now_ms, min(txn.epoch + 1, MAX_EPOCH), next_producer_id, txn.epoch, BUMPED)


def given_up(txn: Transaction, now_ms: int, version: int, last_epoch: int) -> Transaction:
    """The coordinator aborts: the epoch grows, so that the marker fences the producer in every partition.

    `last_epoch`: the present epoch if its producer may come back, -1 if another has taken its place.
    """
    epoch = min(txn.epoch + 1, MAX_EPOCH)
    return _decided(txn, False, now_ms, epoch, txn.next_producer_id, last_epoch, version)


def _decided(
    txn: Transaction, commit: bool, now_ms: int, epoch: int, next_producer_id: int, last_epoch: int, version: int
) -> Transaction:
    return _new(Transaction, (
        txn.producer_id,
        epoch,
        txn.timeout_ms,
        TransactionStatus.PREPARE_COMMIT if commit else TransactionStatus.PREPARE_ABORT,
        txn.partitions,
        txn.start_ms if txn.status is TransactionStatus.ONGOING else now_ms,
        now_ms,
        txn.producer_id,
        next_producer_id,
        last_epoch,
        version,
    ))  # fmt: skip


def completed(txn: Transaction, now_ms: int) -> Transaction:
    """All markers are written."""
    assert txn.status.ending, "only what was decided is complete"
    producer_id, epoch = txn.successor
    return _new(Transaction, (
        producer_id,
        epoch,
        txn.timeout_ms,
        TransactionStatus.COMPLETE_COMMIT if txn.status.commits else TransactionStatus.COMPLETE_ABORT,
        _NOWHERE,
        txn.start_ms,
        now_ms,
        txn.producer_id,
        NO_PRODUCER_ID,
        txn.last_epoch,
        txn.version,
    ))  # fmt: skip
