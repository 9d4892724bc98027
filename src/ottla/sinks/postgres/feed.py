"""Records of claimed partitions, written with their offsets: the face for plain consumers.

Zone: real. One transaction per write: what is stored is looked at, the results are written, the offsets are moved under
the optimistic lock. The lock comes last, so that it is held for the length of a commit only and a consumer that stands
still in its own code keeps no successor from claiming.
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
    """A record: anything with these three, as `ottla.client.ConsumerRecord`."""

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
    """The lock was lost in between: look again at what is stored."""


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
        """Take these partitions over; whoever had them can write nothing any more. Raises DatabaseGone."""
        wanted = [TopicPartition(*each) for each in partitions]
        self._mine |= self._database.run(lambda cursor: self._tables.claim(cursor, wanted))

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that others have now; nothing is written."""
        for each in partitions:
            self._mine.pop(TopicPartition(*each), None)

    def write(self, records: Iterable[R], store: Callable[[Cursor, list[R]], object]) -> int:
        """Write what `store` makes of the records, and the offsets behind them, in one transaction.

        Records that are in already are left out; the rest is handed to `store`, which writes with the cursor and
        nothing else, for it runs again when the connection was lost. Returns how many records were new. Raises
        Superseded, OffsetsMoved, DatabaseGone, UsageError (a partition that was not claimed), what `store` raises.
        """
        fresh = [each for each in records if self._is_new(each)]
        if not fresh:
            return 0
        ends: dict[TopicPartition, int] = {}
        for each in fresh:
            tp = TopicPartition(each.topic, each.partition)
            ends[tp] = max(ends.get(tp, 0), each.offset + 1)
        self.write_to(ends, lambda cursor: store(cursor, fresh))
        return len(fresh)

    def write_to(self, offsets: Mapping[TopicPartition, int], store: Callable[[Cursor], object]) -> None:
        """As `write`, for any client: `offsets` are the next ones to read, as in a commit. They must not go back."""
        for tp, offset in offsets.items():
            if tp not in self._mine:
                raise UsageError(
                    f"{tp} was not claimed",
                    "Write records of partitions that this feed has; after an error in a rebalance, start again",
                )
            if offset < (self._mine[tp].next_offset or 0):
                raise UsageError(f"offset {offset} of {tp} is in already", "Write what comes behind `positions`")
        while True:
            try:
                self._database.run(lambda cursor: self._write_rows(cursor, offsets, store))
            except _Changed:
                continue
            break
        self._mine |= {tp: self._mine[tp]._replace(next_offset=offset) for tp, offset in offsets.items()}

    def _write_rows(
        self, cursor: Cursor, after: Mapping[TopicPartition, int], store: Callable[[Cursor], object]
    ) -> None:
        stored = self._tables.offsets(cursor, list(after))
        if all(stored.get(tp) == (offset, self._mine[tp].epoch) for tp, offset in after.items()):
            return  # a commit whose answer was lost had come through
        for tp in after:
            self._check_partition(tp, stored.get(tp))
        store(cursor)
        if not self._tables.move(cursor, self._mine, after):
            raise _Changed

    def _check_partition(self, tp: TopicPartition, stored: Stored | None) -> None:
        mine = self._mine[tp]
        if stored is None:
            raise OffsetsMoved(tp, mine.next_offset, None)
        if stored.epoch > mine.epoch:
            raise Superseded(tp, mine.epoch, stored.epoch)
        if stored != mine:
            raise OffsetsMoved(tp, mine.next_offset, stored.next_offset)

    def _is_new(self, record: HasPlace) -> bool:
        mine = self._mine.get(TopicPartition(record.topic, record.partition))
        return mine is None or record.offset >= (mine.next_offset or 0)


def claim_and_seek(feed: Feed, consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    """Claim partitions of a consumer, and have it go on behind what is stored."""
    feed.claim(partitions)
    positions = feed.positions
    for tp in partitions:
        if (offset := positions[tp]) is not None:
            consumer.seek(tp, offset)
