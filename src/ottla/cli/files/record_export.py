"""Reads the records of a topic between two offsets of each partition, partition by partition, into a writer.

Zone: real. The offsets are found once, at the start, so that the export ends while producers write.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from ottla.cli.options import print_note
from ottla.cli.reading.offset_grammar import Base, Bound
from ottla.cli.reading.range_reading import PartitionOffsets
from ottla.cli.views.output import Json
from ottla.cli.views.record_text import Shown
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.cli.views.progress import Progress
    from ottla.client import Consumer, ConsumerRecord

_POLL_S = 0.5


class RecordWriter(Protocol):
    """A file of records that is being written."""

    def write_record(self, partition: int, record: Shown) -> None:
        """Write a record."""

    def end_file(self) -> None:
        """Write what is left."""

    def abandon_file(self) -> None:
        """Write nothing more that would make the file look whole."""


class PartitionRange(NamedTuple):
    """The records of a partition from `first` on, up to but without `until`."""

    tp: TopicPartition
    first: int
    until: int


class PartitionExport(NamedTuple):
    """A partition that is in the file."""

    partition: int
    from_offset: int
    to_offset: int
    records: int

    def row_document(self) -> Json:
        """The JSON form."""
        return self._asdict()


def find_ranges(
    consumer: Consumer, topic: str, chosen: Sequence[int], first: Bound, until: Bound
) -> list[PartitionRange]:
    """The offsets of each partition, by number. chosen: these partitions only; none: all. Raises ClientError."""
    places = sorted(consumer.partitions_for_topic(topic))
    if chosen:
        places = [TopicPartition(topic, number) for number in sorted(set(chosen))]
    offsets = PartitionOffsets(consumer, places)
    return [PartitionRange(tp, offsets.resolve_bound(first, tp), offsets.resolve_bound(until, tp)) for tp in places]


class RecordExport:
    """One run of an export."""

    def __init__(self, consumer: Consumer, writer: RecordWriter, progress: Progress, patience_s: float) -> None:
        """patience_s: how long a partition may give no record."""
        self._consumer = consumer
        self._writer = writer
        self._progress = progress
        self._patience_s = patience_s

    def export_partition(self, wanted: PartitionRange, *, from_start: bool) -> PartitionExport:
        """Write the records of a partition. Raises ClientError, OSError.

        from_start: the first record that is left is the first one wanted: retention may delete others meanwhile.
        """
        tp, first, until = wanted
        if from_start and first < until:
            first = self._skip_deleted(wanted)
        count = 0
        if first < until:
            self._consumer.assign([tp])
            self._consumer.seek(tp, first)
            count = self._write_until(tp, first, until)
        return PartitionExport(tp.partition, first, max(first, until), count)

    def _skip_deleted(self, wanted: PartitionRange) -> int:
        start = self._consumer.beginning_offsets([wanted.tp])[wanted.tp]
        if start > wanted.first:
            print_note(f"records {wanted.first} to {start - 1} of {wanted.tp} were deleted before they were exported")
        return max(start, wanted.first)

    def _write_until(self, tp: TopicPartition, position: int, until: int) -> int:
        """Write up to an offset; returns the number of records. Raises ClientError."""
        from ottla.client import DeadlineError
        from ottla.client.retry import Deadline

        count = 0
        silence = Deadline.after_ms(self._patience_s * 1_000)
        while position < until:
            count += self._write_records(self._consumer.poll(_POLL_S), until)
            # Transaction markers and aborted records move the position without a record.
            reached = self._consumer.positions()[tp].offset
            if reached > position:
                position, silence = reached, Deadline.after_ms(self._patience_s * 1_000)
            elif silence.expired:
                raise DeadlineError(f"no record of {tp} came for {self._patience_s:g} s, at offset {position}")
        return count

    def _write_records(self, records: Sequence[ConsumerRecord], until: int) -> int:
        count = size = 0
        for each in records:
            if each.offset >= until:
                break
            self._writer.write_record(each.partition, each)
            count += 1
            size += len(each.value or b"")
        self._progress.add_progress(count, size)
        return count


def is_start(bound: Bound) -> bool:
    """Whether the bound is the start of each partition, wherever that is by then."""
    return bound == Bound(Base.START)
