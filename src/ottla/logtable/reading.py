"""Reads one segment as Arrow record batches: the work of a task.

Zone: real. Runs in Spark's Python workers; needs the file and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from ottla.logtable.columns import BatchPlace, FoundBatch, group_batches, old_rows, rows_from_offset, rows_of
from ottla.logtable.errors import CorruptLog
from ottla.logtable.options import ALL, READ_COMMITTED, LogOptions
from ottla.logtable.segments import find_logs
from ottla.logtable.transactions import ABORTED, Outcomes, first_open_offset, marker_type
from ottla.logtable.walk import Chunk, Old, open_segment, read_chunks
from ottla.record.batch import BatchHeader, crc_ok
from ottla.record.control import ControlType
from ottla.record.errors import CorruptRecord
from ottla.storage.dump.files import BATCH_MAX, BatchFile

ROWS: Final = 1 << 16
"""Rows of one Arrow batch at most: Spark holds a whole one in memory."""
PACKED_BYTES: Final = 1 << 19
"""Compressed bytes that are decompressed in one go."""


class Segment(NamedTuple):
    """The input of one task."""

    place: BatchPlace
    following: tuple[str, ...]
    """The segments after it, in which its transactions may end."""
    isolation: str
    stable: int | None
    """The last stable offset, for READ_COMMITTED; None: the end of the log."""
    skip_corrupt: bool


def segments_of(options: LogOptions) -> list[Segment]:
    """All segments that the options select. Under READ_COMMITTED this reads the headers of all their batches."""
    skip = options.skip_corrupt
    found = []
    for log in find_logs(options):
        stable = first_open_offset(log.files, skip=skip) if options.isolation == READ_COMMITTED else None
        for number, path in enumerate(log.files, 1):
            place = BatchPlace(log.tp, path, log.start)
            found.append(Segment(place, log.files[number:], options.isolation, stable, skip))
    return found


def read_segment(segment: Segment) -> Iterator[pa.RecordBatch]:
    """The rows of a segment, in offset order. Raises CorruptLog, LogChanged."""
    with open_segment(segment.place.segment) as file:
        for batch in _Task(segment, file).read_rows():
            rows = batch if segment.isolation == ALL else rows_from_offset(batch, segment.place.log_start)
            for first in range(0, rows.num_rows, ROWS):
                yield rows.slice(first, ROWS)


class _Task:
    def __init__(self, segment: Segment, file: BatchFile) -> None:
        self._segment = segment
        self._file = file
        self._outcomes: Outcomes | None = None

    def read_rows(self) -> Iterator[pa.RecordBatch]:
        skip = self._segment.skip_corrupt
        for chunk in read_chunks(self._file, last=not self._segment.following, skip=skip):
            if isinstance(chunk, Old):
                yield from self._decode_old_entry(chunk)
                continue
            for group in group_batches(self._visible_batches(chunk), PACKED_BYTES):
                yield from self._decode_group(chunk, group)

    def _visible_batches(self, chunk: Chunk) -> Iterator[FoundBatch]:
        """The batches that the isolation level lets through."""
        for at, header in chunk.batches:
            position = chunk.position + at
            if not crc_ok(chunk.data, at, at + header.size):
                self._report_corrupt(position, f"the batch at offset {header.base_offset} does not match its checksum")
                continue
            control = self._control_name(position, header) if header.is_control else None
            outcome = self._transaction_outcome(header)
            if self._is_visible(header, outcome):
                yield FoundBatch(at, position, header, outcome, control)

    def _is_visible(self, header: BatchHeader, outcome: str | None) -> bool:
        segment = self._segment
        # 1. ALL shows everything in the files, control batches and records below the log start included.
        if segment.isolation == ALL:
            return True
        # 2. No consumer sees control batches or batches below the log start.
        if header.is_control or header.last_offset < segment.place.log_start:
            return False
        # 3. READ_UNCOMMITTED shows the rest; READ_COMMITTED leaves out aborted transactions and everything from the
        #    last stable offset on.
        if segment.isolation != READ_COMMITTED:
            return True
        return outcome != ABORTED and (segment.stable is None or header.base_offset < segment.stable)

    def _transaction_outcome(self, header: BatchHeader) -> str | None:
        if not header.is_transactional:
            return None
        if self._outcomes is None:
            # Made on first use: it reads the headers of the segments that follow, for transactions that end there.
            files = (self._segment.place.segment, *self._segment.following)
            self._outcomes = Outcomes(files, skip=self._segment.skip_corrupt)
        return self._outcomes.outcome_of(header)

    def _control_name(self, position: int, header: BatchHeader) -> str:
        number = marker_type(self._file, position, header, skip=self._segment.skip_corrupt)
        return ControlType(number).name if number in list(ControlType) else f"UNKNOWN({number})"

    def _decode_group(self, chunk: Chunk, group: list[FoundBatch]) -> Iterator[pa.RecordBatch]:
        try:
            yield rows_of(chunk.data, group, self._segment.place)
        except CorruptRecord as error:
            if len(group) == 1:
                self._report_corrupt(group[0].position, error.message)
                return
            # The error does not name the batch, so the group is decoded again, batch by batch.
            for each in group:
                yield from self._decode_group(chunk, [each])

    def _decode_old_entry(self, entry: Old) -> Iterator[pa.RecordBatch]:
        try:
            yield old_rows(entry.data, entry.position, self._segment.place, BATCH_MAX)
        except CorruptRecord as error:
            self._report_corrupt(entry.position, error.message)

    def _report_corrupt(self, position: int, problem: str) -> None:
        """Raises CorruptLog unless such batches are left out."""
        if not self._segment.skip_corrupt:
            raise CorruptLog(self._file.path, position, problem)
