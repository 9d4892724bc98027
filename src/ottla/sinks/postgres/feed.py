"""Writes records of claimed partitions with their offsets: the interface for plain consumers.

Zone: real. One transaction per write: it reads the stored offsets, writes the results, and moves the offsets under an
optimistic lock. The lock is taken last, so that it is held only during the commit, and a consumer that hangs in its own
code does not keep a successor from claiming.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from ottla.client.consumer.consumer import Consumer
from ottla.sinks.postgres.database import Cursor, Database
from ottla.sinks.postgres.errors import OffsetsMoved, Superseded, UsageError
from ottla.sinks.postgres.tables import Stored, Tables
from ottla.types import TopicPartition


class HasPlace(Protocol):
    """A record with these three properties, as `ottla.client.ConsumerRecord`."""

    @property
    def topic(self) -> str:
        """The topic."""

    @property
    def partition(self) -> int:
        """The partition."""

    @property
    def offset(self) -> int:
        """The offset."""


R = TypeVar("R", bound=HasPlace)


class _Changed(Exception):
    """The optimistic lock failed: read again what is stored."""


class Feed:
    """The partitions that one consumer has claimed. For one thread."""

    def __init__(self, database: Database, tables: Tables) -> None:
        self._database = database
        self._tables = tables
        self._mine: dict[TopicPartition, Stored] = {}

    @property
    def positions(self) -> dict[TopicPartition, int | None]:
        """The next offset of each claimed partition; None where nothing has been written yet."""
        return {tp: each.next_offset for tp, each in self._mine.items()}

    def claim(self, partitions: Iterable[TopicPartition]) -> None:
        """Take these partitions over; their previous owners can write nothing any more. Raises DatabaseGone."""
        wanted = [TopicPartition(*each) for each in partitions]
        self._mine |= self._database.run_transaction(lambda cursor: self._tables.claim_partitions(cursor, wanted))

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that were revoked; writes nothing."""
        for each in partitions:
            self._mine.pop(TopicPartition(*each), None)

    def write(self, records: Iterable[R], store: Callable[[Cursor, list[R]], object]) -> int:
        """Call `store` with the new records, and move the offsets past them, in one transaction.

        Records that are stored already are left out. `store` must only write, and only with the cursor, because it runs
        again after a lost connection. Returns how many records were new. Raises Superseded, OffsetsMoved, DatabaseGone,
        UsageError (a partition that was not claimed), and errors of `store`.
        """
        fresh = [each for each in records if self._is_new(each)]
        if not fresh:
            return 0
        ends: dict[TopicPartition, int] = {}
        for each in fresh:
            tp = TopicPartition(each.topic, each.partition)
            # Callers may pass the records of a partition in any order.
            ends[tp] = max(ends.get(tp, 0), each.offset + 1)
        self.write_to(ends, lambda cursor: store(cursor, fresh))
        return len(fresh)

    def write_to(self, offsets: Mapping[TopicPartition, int], store: Callable[[Cursor], object]) -> None:
        """As `write`, for any client: `offsets` are the next ones to read, as in a commit. They must not
        decrease."""
        for tp, offset in offsets.items():
            if tp not in self._mine:
                raise UsageError(
                    f"{tp} was not claimed",
                    "Write only records of claimed partitions; after an error in a rebalance, restart the consumer",
                )
            if offset < (self._mine[tp].next_offset or 0):
                raise UsageError(f"offset {offset} of {tp} is stored already", "Write only records from `positions` on")
        while True:
            try:
                self._database.run_transaction(lambda cursor: self._write_rows(cursor, offsets, store))
            except _Changed:
                continue
            break
        # Only after the commit: while its outcome is unknown, a repetition compares the table with the old values.
        self._mine |= {tp: self._mine[tp]._replace(next_offset=offset) for tp, offset in offsets.items()}

    def _write_rows(
        self, cursor: Cursor, after: Mapping[TopicPartition, int], store: Callable[[Cursor], object]
    ) -> None:
        # 1. The offsets are there already: this is a repetition. 2. They are not ours: another claim, or a change by
        #    hand. 3. Write, and take the lock last; if it fails, all is rolled back and looked at again.
        stored = self._tables.read_offsets(cursor, list(after))
        if all(stored.get(tp) == (offset, self._mine[tp].epoch) for tp, offset in after.items()):
            return  # an earlier commit succeeded, and its response was lost
        for tp in after:
            self._check_partition(tp, stored.get(tp))
        store(cursor)
        if not self._tables.move_offsets(cursor, self._mine, after):
            raise _Changed

    def _check_partition(self, tp: TopicPartition, stored: Stored | None) -> None:
        mine = self._mine[tp]
        # The claim inserted the row, so it was deleted since (`forget`, or by hand).
        if stored is None:
            raise OffsetsMoved(tp, mine.next_offset, None)
        # The epoch comes before the offset: another owner moves both, and its claim is the cause to report.
        if stored.epoch > mine.epoch:
            raise Superseded(tp, mine.epoch, stored.epoch)
        if stored != mine:
            raise OffsetsMoved(tp, mine.next_offset, stored.next_offset)

    def _is_new(self, record: HasPlace) -> bool:
        mine = self._mine.get(TopicPartition(record.topic, record.partition))
        return mine is None or record.offset >= (mine.next_offset or 0)


def claim_and_seek(feed: Feed, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    """Claim partitions of a consumer, and seek to their stored offsets."""
    feed.claim(partitions)
    positions = feed.positions
    for tp in partitions:
        if (offset := positions[tp]) is not None:
            consumer.seek(tp, offset)
