"""Records that were polled for an iteration, and how far it has come.

Zone: pure. An application may leave an iteration in the middle, or commit there: what it has not been given must not
count as read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import length_hint

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.positions import OffsetAndMetadata
from ottla.types import NO_EPOCH, TopicPartition


class PrefetchedRecords:
    """The records of one poll."""

    __slots__ = ("_records", "iterator")

    def __init__(self) -> None:
        self._records: list[ConsumerRecord] = []
        self.iterator: Iterator[ConsumerRecord] = iter(())
        """Gives out what is left; who takes a record from it has it."""

    def __len__(self) -> int:
        return length_hint(self.iterator)

    def put_records(self, records: list[ConsumerRecord]) -> None:
        """The next records; nothing may be left of those before."""
        self._records = records
        self.iterator = iter(records)

    def take_all(self) -> list[ConsumerRecord]:
        """All that is left; an iteration that is under way finds nothing any more."""
        return list(self.iterator)

    def positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where the partitions go on of which records are left."""
        left = len(self)
        if not left:
            return {}
        given, rest = self._records[:-left], self._records[-left:]
        epochs = {TopicPartition(each.topic, each.partition): each.leader_epoch for each in given}
        return {tp: OffsetAndMetadata(offset, epochs.get(tp, NO_EPOCH)) for tp, offset in first_of(rest).items()}


def first_of(records: Iterable[ConsumerRecord]) -> dict[TopicPartition, int]:
    """The first offset per partition."""
    found: dict[TopicPartition, int] = {}
    for each in records:
        found.setdefault(TopicPartition(each.topic, each.partition), each.offset)
    return found
