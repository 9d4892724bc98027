"""Dead letters of a table: the records that are not rows of it, each written once.

Zone: real. Letters are written in a transaction before the table's commit, and name their record. The transaction also
stores, as the offsets of a group, the ends that the topic of dead letters had when the table was last committed. After
a kill between the two commits the letters past these ends are read: their records are not read into the table again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from ottla.client import Consumer, Producer, TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import ProducerFencedError, UsageError
from ottla.retry.headers import Failure, Origin, Trail, read_trail, with_trail
from ottla.tables.errors import ConcurrentWriterError, TableError
from ottla.tables.offsets import TableOffsets

_READER: Final = {"enable.auto.commit": "false", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
_POLL_S: Final = 1.0
Place = tuple[int, int]
"""Partition and offset of a record of the table's topic."""


class DeadLetters:
    """The letters of one table, in a topic that it may share with others. Close it."""

    def __init__(self, settings: Mapping[str, str | int | bool], topic: str, source: str, table: str) -> None:
        """topic: of the letters. source: topic of the table. Raises TableError: the topics are the same one."""
        if topic == source:
            raise TableError(f"{source} cannot be the topic of its own dead letters", "Name another topic")
        self._settings = settings
        self._topic = topic
        self._source = source
        self._table = table
        self._group = ""
        self._marks: dict[TopicPartition, int] = {}
        """The ends at the last commit of the table: later letters may be of records that the table does not have."""
        self._has_news = False
        self.written: frozenset[Place] = frozenset()
        """Records past the table's offsets whose letters are there already."""
        self._producer: Producer | None = None
        self._reader: Consumer | None = None

    def close(self) -> None:
        """Close the connections; aborts a transaction that has not ended."""
        if self._producer is not None:
            self._producer.close()
        if self._reader is not None:
            self._reader.close()

    def begin_table(self, topic_id: str, saved: TableOffsets | None) -> None:
        """End the transactions of an earlier run, and read its letters. Raises ClientError."""
        # The id of the source topic is in the name: offsets of a topic that was created again are other records.
        digest = hashlib.sha256(self._table.encode()).hexdigest()[:16]
        self._group = f"ottla-table-{digest}-{topic_id}"
        self._reader = Consumer({**self._settings, **_READER, "group.id": self._group})
        partitions = self._reader.partitions_for_topic(self._topic)
        self._producer = Producer({**self._settings, "linger.ms": 0, "transactional.id": self._group})
        self._producer.init_transactions()
        found = self._reader.committed(partitions)
        ends = self._reader.end_offsets(partitions)
        known = {tp: each.offset for tp, each in found.items() if each is not None}
        self._marks = {tp: known.get(tp, 0) for tp in partitions} if known else ends
        past = saved.next_offsets if saved is not None else {}
        self.written = frozenset(place for place in self._read_places(ends) if place[1] >= past.get(place[0], 0))
        self._has_news = bool(self.written)

    def _read_places(self, ends: Mapping[TopicPartition, int]) -> Iterator[Place]:
        """The records whose letters this table has written after the marks."""
        reader = self._reader
        assert reader is not None
        starts = reader.beginning_offsets(ends)
        left = {tp for tp, end in ends.items() if max(self._marks[tp], starts[tp]) < end}
        reader.assign(left)
        for tp in left:
            reader.seek(tp, max(self._marks[tp], starts[tp]))
        while left:
            for record in reader.poll(_POLL_S):
                if (place := self._place_of(record)) is not None:
                    yield place
            left = {tp for tp in left if reader.position(tp) < ends[tp]}
        reader.assign([])

    def _place_of(self, record: ConsumerRecord) -> Place | None:
        origin = read_trail(record.headers).origin
        # The group is that of this table: another table of the topic may have other rows.
        if origin is None or origin.topic != self._source or origin.group != self._group:
            return None
        return origin.partition, origin.offset

    def write_letters(self, letters: Sequence[ConsumerRecord], failures: Sequence[Failure]) -> None:
        """Write the letters of records, all or none. Raises ClientError."""
        producer = self._producer
        assert producer is not None
        self._has_news = True
        with self._letter_errors(), producer.transaction():
            for record, failure in zip(letters, failures, strict=True):
                headers = with_trail(record.headers, self._trail_of(record, failure))
                producer.send(self._topic, record.value, key=record.key, headers=headers)
            producer.send_offsets_to_transaction(self._marks, self._group)

    def _trail_of(self, record: ConsumerRecord, failure: Failure) -> Trail:
        origin = Origin(self._source, record.partition, record.offset, record.timestamp, group=self._group)
        # A record that `ottla dlq` sent back keeps the count of that.
        earlier = read_trail(record.headers)
        first_ms = max(0, record.timestamp) if earlier.first_ms is None else earlier.first_ms
        return replace(earlier, attempts=earlier.attempts + 1, first_ms=first_ms, origin=origin, failure=failure)

    @contextmanager
    def _letter_errors(self) -> Iterator[None]:
        try:
            yield
        except ProducerFencedError as error:
            raise ConcurrentWriterError(
                f"{self._table}: another writer began to write its dead letters",
                "Stop one of the two, and start the other again: it continues from the table's offsets",
            ) from error
        except UsageError as error:
            raise TableError(
                f"{self._table}: a dead letter could not be written to {self._topic}: {error}",
                "Its headers make a record larger: raise max.message.bytes of that topic, and max.request.size (-X)",
            ) from error

    def note_commit(self) -> None:
        """The table has the offsets past all letters that are written. Raises ClientError."""
        if self._has_news:
            assert self._reader is not None
            self._marks = self._reader.end_offsets(self._marks)
            self._has_news = False
            self.written = frozenset()
