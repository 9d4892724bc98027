"""Records that were polled for an iteration, and its progress.

Zone: pure. An application may leave an iteration in the middle, or commit there: records that it did not get must not
count as read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import length_hint
from typing import Protocol

from ottla.client.consumer.record import ConsumerRecord
from ottla.client.positions import OffsetAndMetadata
from ottla.types import NO_EPOCH, TopicPartition


class Positions(Protocol):
    """The positions that records are given back to."""

    @property
    def assigned_partitions(self) -> list[TopicPartition]:
        """The partitions that have a position."""

    def seek_partition(self, tp: TopicPartition, offset: int) -> None:
        """Continue from this offset."""


class PrefetchedRecords:
    """The records of one poll."""

    __slots__ = ("_records", "iterator")

    def __init__(self) -> None:
        self._records: list[ConsumerRecord] = []
        self.iterator: Iterator[ConsumerRecord] = iter(())
        """Iterates over the remaining records; a record taken from it counts as read."""

    def __len__(self) -> int:
        return length_hint(self.iterator)

    def put_records(self, records: list[ConsumerRecord]) -> None:
        """Set the next records; the earlier ones must all be taken."""
        self._records = records
        self.iterator = iter(records)

    def take_all(self) -> list[ConsumerRecord]:
        """Take all remaining records; a running iteration finds no more."""
        return list(self.iterator)

    def give_back_to(self, positions: Positions) -> None:
        """Set the positions back to the records that an iteration did not reach."""
        for tp, offset in first_of(self.take_all()).items():
            if tp in positions.assigned_partitions:
                positions.seek_partition(tp, offset)

    def remaining_positions(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The positions of the partitions with remaining records: the offset of the first one of each."""
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
