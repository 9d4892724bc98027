"""The state of a log's idempotent and transactional producers.

Zone: deterministic. Sequences, duplicates, fencing by epoch, open transactions; computed from batch headers alone, so
that replaying the log gives the same. Snapshots of it are files of the log's directory (`checkpoints`).

Per producer id the last five batches are kept (KIP-98: as many as a client has in flight), so that a repeated batch is
recognised and answered with its first offset. Sequences count records, per producer epoch, from 0, and wrap from 2^31-1
to 0. The oldest open transaction bounds what read_committed may see; one that has ended bounds it until its marker is
below the high watermark.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CONTROL, TRANSACTIONAL, records_of
from ottla.record.control import Marker, parse_marker
from ottla.record.errors import CorruptRecord
from ottla.record.header_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    LAST_OFFSET_DELTA,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
)
from ottla.record.validation import HeaderTuple
from ottla.storage.indexes.txn_index import AbortedTransaction
from ottla.storage.producers.producer_expiry import ProducerExpiry
from ottla.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_EPOCH, NO_SEQUENCE, NO_TIMESTAMP

BATCHES_KEPT: Final = 5
SEQUENCE_MASK: Final = 0x7FFFFFFF
_HALF: Final = 2**30
_MARKER_MAX_BYTES: Final = 64 * 1024


class Duplicate(NamedTuple):
    """A batch that is in the log already, and its place there."""

    base_offset: int
    last_offset: int
    timestamp: int
    """Largest timestamp of the batch as it was written, ms."""


Batch = tuple[int, int, int, int]
"""The kept fields of a batch: last sequence, last offset, offset delta, largest timestamp.

A plain tuple: one is created per append, and a named one would cost a call."""


_new = tuple.__new__  # a third of the time of the class's own
_SWEEP: Final = 100
"""Completed transactions that are kept before those below the high watermark are removed."""
_NO_BATCH: Final[Batch] = (NO_SEQUENCE, NO_OFFSET, 0, NO_TIMESTAMP)


class SnapshotEntry(NamedTuple):
    """A producer as a snapshot file holds it, in the order of its bytes."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int
    coordinator_epoch: int
    current_txn_first_offset: int
    """-1: no open transaction."""


class Producer:
    """One producer id in one partition."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "floor",
        "producer_id",
        "timestamp",
        "txn_first_offset",
        "wall_ms",
    )

    def __init__(self, producer_id: int, epoch: int) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.floor = 0
        """First sequence seen in this epoch, or since records of the log were lost: below it, nothing is known."""
        self.batches: deque[Batch] = deque(maxlen=BATCHES_KEPT)
        self.coordinator_epoch = NO_EPOCH
        self.timestamp = NO_TIMESTAMP
        """The timestamp of the last batch or marker."""
        self.wall_ms = 0
        """When its last batch or marker arrived; its expiry counts from then."""
        self.txn_first_offset = NO_OFFSET

    def find_batch(self, base_sequence: int, last_sequence: int) -> Duplicate | None:
        """The place of the kept batch with exactly these sequences; None when there is none."""
        for last, last_offset, delta, timestamp in self.batches:
            if last == last_sequence and (last - delta) & SEQUENCE_MASK == base_sequence:
                return Duplicate(last_offset - delta, last_offset, timestamp)
        return None

    def to_snapshot_entry(self) -> SnapshotEntry:
        """The entry of a snapshot file."""
        last_sequence, last_offset, delta, _ = self.batches[-1] if self.batches else _NO_BATCH
        return _new(SnapshotEntry, (
            self.producer_id, self.epoch, last_sequence, last_offset, delta, self.timestamp,
            self.coordinator_epoch, self.txn_first_offset,
        ))  # fmt: skip


class CompletedTransaction(NamedTuple):
    """A transaction whose marker is written, but perhaps not yet below the high watermark."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the marker."""
    aborted: bool


class Frozen:
    """The producers of a state as they were at an offset, while the state takes later batches.

    Their entries are taken some at a time; a producer that changes before its turn is copied by `keep_entry`.
    """

    __slots__ = ("_kept", "_left", "count", "offset")

    def __init__(self, producers: dict[int, Producer], offset: int) -> None:
        self._left = producers.copy()
        self._kept: list[SnapshotEntry] = []
        self.count = len(producers)
        self.offset = offset

    def keep_entry(self, producer_id: int) -> None:
        """Copy the entry of a producer that is about to change."""
        producer = self._left.pop(producer_id, None)
        if producer is not None:
            self._kept.append(producer.to_snapshot_entry())

    def take_entries(self, most: int) -> list[SnapshotEntry]:
        """About `most` more entries, in any order; none when all were taken."""
        taken, self._kept = self._kept, []
        taken += [
            self._left.popitem()[1].to_snapshot_entry() for _ in range(min(len(self._left), max(0, most - len(taken))))
        ]
        return taken


class ProducerState:
    """All producers of a log, up to `end_offset`."""

    __slots__ = (
        "__weakref__",
        "_calendar",
        "_due",
        "_is_noted",
        "_producers",
        "_sweep_at",
        "cautious",
        "completed",
        "end_offset",
        "frozen",
        "ongoing",
    )

    def __init__(self) -> None:
        self._producers: dict[int, Producer] = {}
        self._due: list[tuple[int, int]] = []
        """A heap with one entry per producer: the arrival of its last batch as of the last visit, and its id."""
        self._calendar: ProducerExpiry | None = None
        self._is_noted = False
        """Whether the calendar has an entry of this state."""
        self.frozen: Frozen | None = None
        """Set while a snapshot of an earlier state is written."""
        self.ongoing: dict[int, int] = {}
        """Producer id → first offset of its open transaction. Opened in offset order: the first is the oldest."""
        self.completed: list[CompletedTransaction] = []
        self._sweep_at = _SWEEP
        self.end_offset = 0
        """The state includes the batches below this offset."""
        self.cautious = False
        """Whether an unknown producer has to begin at sequence 0; otherwise it may begin anywhere (KIP-360)."""

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def get(self, producer_id: int) -> Producer | None:
        """The producer with this id; None when it is not known."""
        return self._producers.get(producer_id)

    # -- before an append ----------------------------------------------------------------------------------------------

    def check_batch(self, header: HeaderTuple) -> Duplicate | None:
        """Whether a client's batch may be appended; a Duplicate when it is in the log already.

        Raises ApiError INVALID_PRODUCER_EPOCH (fenced by a newer epoch), OUT_OF_ORDER_SEQUENCE_NUMBER (a gap, or
        indistinguishable from one), DUPLICATE_SEQUENCE_NUMBER (certainly written, longer ago than the kept batches),
        INVALID_TXN_STATE (its transaction is open, and the batch is not of it).
        """
        # 1. An unknown producer may begin anywhere, unless the state is cautious.
        # 2. Outside a transaction nothing is written while one of the producer is open.
        # 3. An older epoch is fenced, a newer one begins at sequence 0.
        # 4. In its epoch: the expected sequence is the rule, `_check_sequence` decides about anything else.
        producer = self._producers.get(header[PRODUCER_ID])
        if producer is None:
            if self.cautious and header[BASE_SEQUENCE]:
                raise _unknown_producer_error(header[PRODUCER_ID], header[BASE_SEQUENCE])
            return None
        if producer.txn_first_offset >= 0 and not header[ATTRIBUTES] & TRANSACTIONAL:
            raise ApiError(ErrorCode.INVALID_TXN_STATE, f"producer {producer.producer_id} has an open transaction here")
        epoch, first = header[PRODUCER_EPOCH], header[BASE_SEQUENCE]
        if epoch < producer.epoch:
            raise _fenced_error(producer, epoch)
        if epoch > producer.epoch:
            if first != 0:
                raise _out_of_order(producer, first, 0)
            return None
        last = (first + header[LAST_OFFSET_DELTA]) & SEQUENCE_MASK
        batches = producer.batches
        expected = (batches[-1][0] + 1) & SEQUENCE_MASK if batches else 0
        if first == expected:
            return None
        return _check_sequence(producer, first, last, expected)

    def is_open(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction in that epoch."""
        producer = self._producers.get(producer_id)
        return producer is not None and producer.txn_first_offset >= 0 and producer.epoch == epoch

    def check_coordinator(self, producer_id: int, coordinator_epoch: int) -> None:
        """Raise ApiError TRANSACTION_COORDINATOR_FENCED for a marker of an older coordinator than the last one's."""
        producer = self._producers.get(producer_id)
        if producer is not None and coordinator_epoch < producer.coordinator_epoch:
            raise ApiError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of coordinator epoch {coordinator_epoch}, there is one of {producer.coordinator_epoch}",
            )

    def needs_marker(self, producer_id: int, epoch: int, bumped: bool) -> bool:
        """Whether a marker has to be written; False: the log has it already.

        `bumped`: its epoch is above that of the records of its transaction (transaction version 2, KIP-890), so that a
        late marker cannot end a later transaction; one with an equal epoch and nothing open was written before
        (KAFKA-19999). Raises ApiError INVALID_PRODUCER_EPOCH.
        """
        # 1. A new producer or epoch. 2. An older epoch is fenced; so is, with `bumped`, one whose transaction is open
        #    in the same epoch. 3. The same epoch, nothing open: with `bumped` the marker was written before.
        producer = self._producers.get(producer_id)
        if producer is None or epoch > producer.epoch:
            return True
        if epoch < producer.epoch or (bumped and producer.txn_first_offset >= 0):
            raise _fenced_error(producer, epoch)
        return not bumped

    # -- with an append, and when replaying ----------------------------------------------------------------------------

    def note_batch(self, header: HeaderTuple, base_offset: int, wall_ms: int) -> None:
        """Note a data batch of a producer, written at `base_offset`."""
        producer_id, epoch, first_sequence = header[PRODUCER_ID], header[PRODUCER_EPOCH], header[BASE_SEQUENCE]
        if self.frozen is not None:
            self.frozen.keep_entry(producer_id)
        producer = self._producers.get(producer_id)
        if producer is None or producer.epoch != epoch or not producer.batches:
            producer = self._begin_producer(producer, producer_id, epoch, first_sequence, wall_ms)
        delta, timestamp = header[LAST_OFFSET_DELTA], header[MAX_TIMESTAMP]
        last_offset = base_offset + delta
        last_sequence = (first_sequence + delta) & SEQUENCE_MASK if first_sequence >= 0 else NO_SEQUENCE
        producer.batches.append((last_sequence, last_offset, delta, timestamp))
        producer.timestamp = timestamp
        producer.wall_ms = wall_ms
        if header[ATTRIBUTES] & TRANSACTIONAL and producer.txn_first_offset < 0:
            producer.txn_first_offset = self.ongoing[producer_id] = base_offset
        self.end_offset = last_offset + 1

    def _begin_producer(
        self, producer: Producer | None, producer_id: int, epoch: int, first_sequence: int, wall_ms: int
    ) -> Producer:
        """Add a new producer, or begin a new epoch of a known one."""
        if producer is None:
            producer = self._add_producer_id(producer_id, epoch, wall_ms)
            producer.floor = first_sequence
        elif producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
            producer.floor = first_sequence
        return producer

    def _add_producer_id(self, producer_id: int, epoch: int, wall_ms: int) -> Producer:
        producer = self._producers[producer_id] = Producer(producer_id, epoch)
        heapq.heappush(self._due, (wall_ms, producer_id))
        if not self._is_noted:
            self.schedule_expiry()
        return producer

    def end_transaction(
        self, header: HeaderTuple, base_offset: int, marker: Marker, wall_ms: int, high_watermark: int = 0
    ) -> AbortedTransaction | None:
        """Note a transaction marker; returns the entry for the transaction index, if the transaction was aborted.

        `high_watermark`: transactions that ended below it are dropped when there are many: without a reader of
        committed records, `first_unstable_offset` may never be called.
        """
        producer_id, epoch = header[PRODUCER_ID], header[PRODUCER_EPOCH]
        if self.frozen is not None:
            self.frozen.keep_entry(producer_id)
        producer = self._producers.get(producer_id) or self._add_producer_id(producer_id, epoch, wall_ms)
        if producer.epoch != epoch:
            producer.epoch = epoch
            producer.batches.clear()
            producer.floor = 0
        producer.coordinator_epoch = max(producer.coordinator_epoch, marker.coordinator_epoch)
        producer.timestamp, producer.wall_ms = header[MAX_TIMESTAMP], wall_ms
        self.end_offset = base_offset + header[LAST_OFFSET_DELTA] + 1
        first = producer.txn_first_offset
        if first < 0:
            return None
        producer.txn_first_offset = NO_OFFSET
        del self.ongoing[producer_id]
        completed = _new(CompletedTransaction, (producer_id, first, base_offset, not marker.commit))
        self.completed.append(completed)
        if len(self.completed) >= self._sweep_at:
            self._drop_completed(high_watermark)
            self._sweep_at = 2 * len(self.completed) + _SWEEP
        return self._aborted_transaction(completed) if completed.aborted else None

    def _aborted_transaction(self, completed: CompletedTransaction) -> AbortedTransaction:
        oldest = next(iter(self.ongoing.values()), completed.last_offset + 1)
        return AbortedTransaction(completed.producer_id, completed.first_offset, completed.last_offset, oldest)

    # -- what read_committed may see -----------------------------------------------------------------------------------

    def _drop_completed(self, high_watermark: int) -> None:
        self.completed = [txn for txn in self.completed if txn.last_offset >= high_watermark]

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """The first offset of the oldest transaction that is open, or whose marker is not below the high watermark."""
        if self.completed:
            self._drop_completed(high_watermark)
        oldest = next(iter(self.ongoing.values()), None)
        if not self.completed:
            return oldest
        firsts = [txn.first_offset for txn in self.completed]
        return min(firsts) if oldest is None else min(oldest, *firsts)

    def has_late_transaction(self, now_ms: int, after_ms: int) -> bool:
        """Whether a transaction is open whose producer has sent nothing for longer than `after_ms`."""
        return any(now_ms - self._producers[producer_id].wall_ms > after_ms for producer_id in self.ongoing)

    # -- life ----------------------------------------------------------------------------------------------------------

    def attach_expiry(self, calendar: ProducerExpiry) -> None:
        """Schedule the expiry of the producers in this calendar."""
        self._calendar = calendar
        self._is_noted = False
        self.schedule_expiry()

    def schedule_expiry(self) -> None:
        """Add the time when the first producer may be due to the calendar, which has no entry of this state."""
        self._is_noted = bool(self._due) and self._calendar is not None
        if self._due and self._calendar is not None:
            self._calendar.add_state(self, self._due[0][0])

    def expire_producers(self, now_ms: int, after_ms: int) -> int:
        """Drop producers without an open transaction that sent nothing for `after_ms`. Returns how many."""
        return self.expire_some(now_ms, after_ms, len(self._due))[1]

    def expire_some(self, now_ms: int, after_ms: int, most: int) -> tuple[int, int]:
        """As `expire_producers`, but visits at most `most` producers: (how many were visited, how many were
        dropped)."""
        due, looked, gone = self._due, 0, 0
        while looked < most and due and due[0][0] <= now_ms - after_ms:
            looked += 1
            producer_id = due[0][1]
            producer = self._producers[producer_id]
            # 1. It sent something since its last visit. 2. Its transaction is open: visit it again after a whole
            #    period. 3. It has expired.
            if now_ms - producer.wall_ms < after_ms:
                heapq.heapreplace(due, (producer.wall_ms, producer_id))
            elif producer.txn_first_offset >= 0:
                heapq.heapreplace(due, (now_ms, producer_id))
            else:
                heapq.heappop(due)
                del self._producers[producer_id]
                gone += 1
        return looked, gone

    def freeze_producers(self) -> Frozen:
        """The producers for a snapshot at the present end. A snapshot in progress is given up."""
        self.frozen = Frozen(self._producers, self.end_offset)
        return self.frozen

    def snapshot_entries(self) -> list[SnapshotEntry]:
        """The entries of a snapshot file, by producer id."""
        return [self._producers[producer_id].to_snapshot_entry() for producer_id in sorted(self._producers)]

    def load_entries(self, entries: Iterable[SnapshotEntry], end_offset: int, wall_ms: int) -> None:
        """Replace the state by that of a snapshot. Expiry counts from `wall_ms`, the present time."""
        self._producers.clear()
        self.frozen = None
        self.ongoing.clear()
        self.completed.clear()
        self.end_offset = end_offset
        for entry in entries:
            self._load_one(entry, wall_ms)
        self._due = [(wall_ms, producer_id) for producer_id in sorted(self._producers)]
        if not self._is_noted:
            self.schedule_expiry()
        oldest_first = sorted(self.ongoing.items(), key=lambda item: item[1])
        self.ongoing = dict(oldest_first)

    def _load_one(self, entry: SnapshotEntry, wall_ms: int) -> None:
        producer = self._producers[entry.producer_id] = Producer(entry.producer_id, entry.producer_epoch)
        if entry.last_offset >= 0:
            producer.batches.append((entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp))
        producer.timestamp, producer.wall_ms = entry.timestamp, wall_ms
        producer.coordinator_epoch = entry.coordinator_epoch
        producer.txn_first_offset = entry.current_txn_first_offset
        if producer.txn_first_offset >= 0:
            self.ongoing[entry.producer_id] = producer.txn_first_offset


def replay_batch(
    state: ProducerState, header: HeaderTuple, marker: Marker | None, wall_ms: int
) -> AbortedTransaction | None:
    """Note a batch that was read from the log. `marker`: the content of a control batch, None for other records."""
    if header[PRODUCER_ID] < 0 or header[ATTRIBUTES] & CONTROL:
        state.end_offset = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
        if header[PRODUCER_ID] < 0 or marker is None:
            return None
        return state.end_transaction(header, header[BASE_OFFSET], marker, wall_ms)
    state.note_batch(header, header[BASE_OFFSET], wall_ms)
    return None


def marker_of(view: memoryview, pos: int) -> Marker | None:
    """The transaction marker in the control batch at `pos`; None when it holds another record, or is damaged."""
    try:
        for record in records_of(view, pos, max_bytes=_MARKER_MAX_BYTES):
            return parse_marker(record.key, record.value)
    except CorruptRecord:
        return None
    return None


def _check_sequence(producer: Producer, first: int, last: int, expected: int) -> Duplicate:
    """Decide about a batch with an unexpected sequence.

    1. It is one of the kept batches: a duplicate, answered with its first offset.
    2. It ends before the expected sequence, and begins where this epoch was seen: written, but not kept any more.
    3. Otherwise it is a gap, or cannot be distinguished from one.
    """
    duplicate = producer.find_batch(first, last)
    if duplicate is not None:
        return duplicate
    behind = (expected - first) & SEQUENCE_MASK
    whole = (expected - 1 - last) & SEQUENCE_MASK
    known = (expected - producer.floor) & SEQUENCE_MASK
    if producer.batches and behind <= min(known, _HALF) and whole < behind:
        raise ApiError(
            ErrorCode.DUPLICATE_SEQUENCE_NUMBER,
            f"sequence {first} of producer {producer.producer_id} was written before, the next one is {expected}",
        )
    raise _out_of_order(producer, first, expected)


def _out_of_order(producer: Producer, sequence: int, expected: int) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"sequence {sequence} of producer {producer.producer_id} (epoch {producer.epoch}) where {expected} is due",
    )


def _unknown_producer_error(producer_id: int, sequence: int) -> ApiError:
    return ApiError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"the unknown producer {producer_id} begins at sequence {sequence}, where 0 is due",
    )


def _fenced_error(producer: Producer, epoch: int) -> ApiError:
    assert producer.epoch != NO_PRODUCER_EPOCH, "a producer without an epoch cannot fence another"
    return ApiError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer.producer_id} writes with epoch {epoch}, there is one with epoch {producer.epoch}",
    )
