"""`ottla consume` without a group: the records between two offsets of each partition.

Zone: real. Resolves the offsets and decides when all is read; the consumer fetches.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.cli.options import print_note
from ottla.cli.reading.outage import PatientPoll
from ottla.cli.views.printer import Printer
from ottla.cli.views.progress import Progress

if TYPE_CHECKING:
    from ottla.cli.reading.offset_grammar import Bound, OffsetRange
    from ottla.client import Consumer, ConsumerRecord, TopicPartition

_POLL_S = 1.0


class RangeReading:
    """One run."""

    def __init__(self, consumer: Consumer, printer: Printer, patience_s: float) -> None:
        """patience_s: how long to wait without a record; 0: for ever."""
        self._consumer = consumer
        self._printer = printer
        self._patience_s = patience_s
        self._until: dict[TopicPartition, int | None] = {}
        """Partitions that are still read, and the first offset that is not wanted; None: no end."""

    def read_range(
        self, names: Sequence[str], chosen: Sequence[int], bounds: OffsetRange, *, exit_at_end: bool
    ) -> None:
        """Read topics until the count or the end is reached, or until Ctrl-C. Raises ClientError.

        chosen: numbers of partitions, of each topic; none: all of them.
        """
        first = self._resolve_bounds(names, chosen, bounds, exit_at_end=exit_at_end)
        self._consumer.assign(self._until)
        for tp in self._until:
            self._consumer.seek(tp, first[tp])
        with Progress("read", shown=not sys.stdout.isatty()) as progress:
            awaited = f"waiting for new records of {', '.join(names[:3])} (Ctrl-C stops; -e would stop at the end)"
            self._read_until_done(PatientPoll(self._consumer, names[0], lambda: awaited), progress)

    def _resolve_bounds(
        self, names: Sequence[str], chosen: Sequence[int], bounds: OffsetRange, *, exit_at_end: bool
    ) -> dict[TopicPartition, int]:
        """The first offset of every partition; sets `_until` for those that have records in the range."""
        from ottla.cli.reading.offset_grammar import END
        from ottla.client import TopicPartition

        where = [tp for name in names for tp in self._consumer.partitions_for_topic(name)]
        if chosen:
            where = [TopicPartition(name, number) for name in names for number in dict.fromkeys(chosen)]
        offsets = PartitionOffsets(self._consumer, where)
        first = {each: offsets.resolve_bound(bounds.first, each) for each in where}
        last = bounds.until or (END if exit_at_end else None)
        self._until = {each: None if last is None else offsets.resolve_bound(last, each) for each in where}
        self._drop_partitions(
            [each for each, until in self._until.items() if until is not None and first[each] >= until]
        )
        return first

    def _drop_partitions(self, ended: Sequence[TopicPartition]) -> None:
        for tp in ended:
            del self._until[tp]

    def _read_until_done(self, patient: PatientPoll, progress: Progress) -> None:
        from ottla.client import DeadlineError
        from ottla.client.retry import Deadline

        silence = Deadline.after_ms(self._patience_s * 1_000)
        while self._until and not self._printer.is_full:
            if self._patience_s and silence.expired:
                raise DeadlineError(f"no record came for {self._patience_s:g} s")
            records = patient.poll(min(_POLL_S, self._patience_s or _POLL_S))
            count, size = self._print_records(records)
            progress.add_progress(count, size)
            self._drop_ended()
            if count:
                silence = Deadline.after_ms(self._patience_s * 1_000)

    def _print_records(self, records: Sequence[ConsumerRecord]) -> tuple[int, int]:
        """Print the records in range. Returns how many there were before filtering, and the bytes of their values."""
        # Records past the end are skipped here rather than not fetched: a poll returns what a response contains.
        count = size = 0
        printer, until = self._printer, self._until
        for each in records:
            if printer.is_full:
                break
            last = until[each[:2]]  # type: ignore[index]  # a TopicPartition is its two fields
            if last is None or each.offset < last:
                count += 1
                size += len(each.value or b"")
                printer.print_record(each.topic, each.partition, each)
        printer.flush_output()
        return count, size

    def _drop_ended(self) -> None:
        """Unassign the partitions that are read to their end: the position is there, or past it after a gap."""
        known = self._consumer.positions()
        ended = [
            tp for tp, until in self._until.items() if until is not None and tp in known and known[tp].offset >= until
        ]
        if ended:
            self._drop_partitions(ended)
            self._consumer.assign(self._until)


class PartitionOffsets:
    """Resolves bounds with the starts, ends and timestamps of partitions."""

    def __init__(self, consumer: Consumer, where: Sequence[TopicPartition]) -> None:
        """Raises ClientError."""
        self._consumer = consumer
        self._where = where
        self._start = consumer.beginning_offsets(where)
        self._end = consumer.end_offsets(where)
        self._times: dict[int, dict[TopicPartition, int | None]] = {}

    def resolve_bound(self, bound: Bound, tp: TopicPartition) -> int:
        """The offset of a bound in a partition; one outside of the log is moved, with a note. Raises ClientError."""
        from ottla.cli.reading.offset_grammar import Base

        start, end = self._start[tp], self._end[tp]
        offset = bound.resolve_offset(start, end, lambda time: self._offset_at(time, tp))
        if bound.base is Base.ZERO and offset != bound.number:
            print_note(f"offset {bound.number} of {tp} is outside of {start} to {end}: using {offset}")
        return offset

    def _offset_at(self, time: int, tp: TopicPartition) -> int:
        if time not in self._times:
            self._times[time] = self._consumer.offsets_for_times(dict.fromkeys(self._where, time))
        found = self._times[time][tp]
        return self._end[tp] if found is None else found
