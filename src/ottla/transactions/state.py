"""A transactional id: its producer, its transaction, and the transitions between them.

Zone: pure. Values and transitions; `rules` decides which transition a request causes. Epochs go up to 2^15-1; producers
get at most 2^15-2, so that one epoch is always left to fence them.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple, Protocol

from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP, TopicPartition

MAX_EPOCH: Final = 2**15 - 1
LAST_EPOCH: Final = MAX_EPOCH - 1
"""The highest epoch that a producer gets."""
BUMPED: Final = 2
"""The transaction version (KIP-890) from which on every end of a transaction increments the epoch."""
FLEXIBLE: Final = 1
"""The transaction version from which on records of `__transaction_state` have tagged fields."""
UNBUMPED: Final = 0
_NOWHERE: Final[frozenset[TopicPartition]] = frozenset()
_new = tuple.__new__  # a third of the time of the classes' own, and identities are made and compared all the time


class VersionOfCluster(Protocol):
    """Has the transaction version of the cluster."""

    level: int


class TransactionVersion:
    """The transaction version of the cluster, which changes when another level is finalized.

    An attribute, because it is read for each record of `__transaction_state`.
    """

    __slots__ = ("level",)

    def __init__(self, level: int = BUMPED) -> None:
        self.level = level


class TransactionStatus(IntEnum):
    """The state of a transaction; the numbers are those of Kafka's records."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    ending: bool
    """The end is decided; its markers are being written."""
    resting: bool
    """No transaction is open."""
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
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


class Transaction(NamedTuple):
    """The state of a transactional id: one record of `__transaction_state`."""

    producer_id: int
    epoch: int
    timeout_ms: int
    status: TransactionStatus = TransactionStatus.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    """The wall time at which the current or last transaction began; -1: none."""
    update_ms: int = NO_TIMESTAMP
    """The wall time of the last change, from which the id's expiry counts."""
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    """While ending: the producer id of the next transaction, because the epochs of the present one are used up."""
    last_epoch: int = NO_PRODUCER_EPOCH
    """The previous epoch of the same producer, which may not have received the present one. -1: none."""
    version: int = UNBUMPED
    """The transaction version of the last change."""

    @property
    def identity(self) -> ProducerIdentity:
        """The present producer."""
        return _new(ProducerIdentity, (self.producer_id, self.epoch))

    @property
    def successor(self) -> ProducerIdentity:
        """The identity of the producer once the transaction is complete."""
        fresh_id = self.next_producer_id
        return _new(ProducerIdentity, (self.producer_id, self.epoch) if fresh_id < 0 else (fresh_id, 0))

    @property
    def is_exhausted(self) -> bool:
        """Whether the next epoch needs a new producer id."""
        return self.epoch >= LAST_EPOCH

    def preceded_by(self, identity: ProducerIdentity) -> bool:
        """Whether this is the same producer with its previous epoch, because it has not received the present one."""
        if identity.epoch != self.last_epoch or identity.epoch < 0:
            return False
        # Epoch 0 is the first one of a producer id, so the previous epoch belongs to the previous id.
        return identity.producer_id == (self.previous_producer_id if self.epoch == 0 else self.producer_id)


def new_transaction(producer_id: int, timeout_ms: int, now_ms: int) -> Transaction:
    """The state of a new transactional id."""
    return Transaction(producer_id, 0, timeout_ms, update_ms=now_ms, previous_producer_id=producer_id)


def renew_epoch(txn: Transaction, timeout_ms: int, now_ms: int, bump: bool, last_epoch: int) -> Transaction:
    """A producer starts again under the same producer id. Without a bump this only repeats its last start."""
    assert txn.status.resting, "nothing is renewed while a transaction is open"
    assert not bump or not txn.is_exhausted, "epochs are used up"
    return txn._replace(
        epoch=txn.epoch + bump,
        timeout_ms=timeout_ms,
        status=TransactionStatus.EMPTY,
        start_ms=NO_TIMESTAMP,
        update_ms=now_ms,
        previous_producer_id=txn.producer_id if bump else txn.previous_producer_id,
        last_epoch=last_epoch,
    )


def rotate_producer_id(
    txn: Transaction, producer_id: int, timeout_ms: int, now_ms: int, last_epoch: int
) -> Transaction:
    """A producer starts again under another producer id, because the epochs of the old one are used up."""
    assert txn.status.resting, "nothing is renewed while a transaction is open"
    fresh = new_transaction(producer_id, timeout_ms, now_ms)
    return fresh._replace(previous_producer_id=txn.producer_id, last_epoch=last_epoch, version=txn.version)


def with_partitions(txn: Transaction, partitions: Iterable[TopicPartition], version: int, now_ms: int) -> Transaction:
    """Partitions join the transaction; the first ones begin it."""
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
        # A producer that writes has its epoch: a request with the previous one is late, and not a retry.
        NO_PRODUCER_EPOCH,
        version,
    ))  # fmt: skip


def decide_end(txn: Transaction, commit: bool, now_ms: int) -> Transaction:
    """The producer ends its transaction and keeps its epoch (before KIP-890)."""
    return _decided_state(txn, commit, now_ms, txn.epoch, txn.next_producer_id, txn.last_epoch, UNBUMPED)


def decide_end_and_bump(txn: Transaction, commit: bool, now_ms: int, next_producer_id: int) -> Transaction:
    """The producer ends its transaction, with or without partitions, and continues in another epoch (KIP-890)."""
    assert not txn.is_exhausted or next_producer_id >= 0, "epochs are used up"
    # With the last epoch of a producer the marker has the one that is kept for fencing, and the next transaction
    # another producer id.
    next_producer_id = next_producer_id if txn.is_exhausted else NO_PRODUCER_ID
    return _decided_state(txn, commit, now_ms, min(txn.epoch + 1, MAX_EPOCH), next_producer_id, txn.epoch, BUMPED)


def decide_abort_and_fence(txn: Transaction, now_ms: int, version: int, last_epoch: int) -> Transaction:
    """The coordinator aborts. The epoch grows, so that the marker fences the producer in every partition.

    `last_epoch`: the present epoch if its producer may continue, -1 if another has replaced it.
    """
    epoch = min(txn.epoch + 1, MAX_EPOCH)
    return _decided_state(txn, False, now_ms, epoch, txn.next_producer_id, last_epoch, version)


def _decided_state(
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


def complete_transaction(txn: Transaction, now_ms: int) -> Transaction:
    """All markers are written: the transaction is complete."""
    assert txn.status.ending, "only a decided transaction can be complete"
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
