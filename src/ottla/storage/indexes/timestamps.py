"""Looks up an offset by time (ListOffsets).

Zone: deterministic. Chooses the segment by its largest timestamp, then uses time index and offset index, and walks over
batches; only batches that may hold the answer, by their headers, are unpacked. Small ones are unpacked here, a few per
turn, larger ones in a worker: a producer may have written a wrong header. Reads are off the loop, so an answer always
comes in a later turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD
from ottla.record.errors import CorruptRecord, ExpandsTooFar
from ottla.record.header_fields import BASE_OFFSET, BATCH_LENGTH, LAST_OFFSET_DELTA, MAX_TIMESTAMP
from ottla.record.inspection import INLINE_EXPANDED, is_small
from ottla.record.log_entries import ENTRY_MIN, entry_at, first_from, is_wrapper
from ottla.record.validation import HeaderTuple
from ottla.seams import Done, Failure, Workers
from ottla.storage.indexes.index import TimestampOffset
from ottla.storage.segments.reader import RECORDS_MAX_BYTES
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segments import SegmentList

READ_BYTES: Final = 64 * 1024
OPENED_IN_TURN: Final = 2
"""Small entries that are unpacked within one turn: more than one when headers claim a timestamp that no record has."""
SEEK_JOB: Final = "ottla.record.log_entries:first_from"


def offset_for(
    segments: SegmentList,
    start_offset: int,
    timestamp: int,
    done: Done[TimestampOffset | None],
    workers: Workers | None = None,
) -> None:
    """The first record at or after `start_offset` whose timestamp is ≥ `timestamp`; None when there is none.

    A Failure also comes in a later turn. Without workers everything is unpacked here.
    """
    try:
        _begin_search(segments, start_offset, timestamp, done, workers)
    except Failure as failure:
        refused = failure.as_value()
        run_later(segments, lambda: done(refused))


def _begin_search(
    segments: SegmentList,
    start_offset: int,
    timestamp: int,
    done: Done[TimestampOffset | None],
    workers: Workers | None,
) -> None:
    for slot, segment in enumerate(segments):
        if (
            segment.size
            and segment.largest_timestamp >= timestamp
            and segments.end_of(slot, start_offset + 1) > start_offset
        ):
            _Search(list(segments)[slot:], start_offset, timestamp, done, workers).begin_search()
            return
    run_later(segments, lambda: done(None))


def offset_of_largest(
    segments: SegmentList, start_offset: int, done: Done[TimestampOffset | None], workers: Workers | None = None
) -> None:
    """The first record at or after `start_offset` with the largest timestamp of all; None when there is none."""
    newest = largest_timestamp(segments)
    if newest < 0:
        run_later(segments, lambda: done(None))
    else:
        offset_for(segments, start_offset, newest, done, workers)


def largest_timestamp(segments: SegmentList) -> int:
    """The largest timestamp of any record, -1 when there is none."""
    newest = -1
    for segment in segments:
        if segment.max_timestamp < 0 and segment.size:
            segment.load_max_timestamp()
        newest = max(newest, segment.max_timestamp)
    return newest


def run_later(segments: SegmentList, action: Callable[[], None]) -> None:
    """Run `action` in a turn of its own: a read of nothing is the shortest way there."""
    segments.active.file.read(0, 0, lambda _: action())


class _Search:
    """One look-up, through one or more segments."""

    __slots__ = ("_done", "_position", "_segment", "_segments", "_start_offset", "_timestamp", "_workers")

    def __init__(
        self,
        segments: list[Segment],
        start_offset: int,
        timestamp: int,
        done: Done[TimestampOffset | None],
        workers: Workers | None,
    ) -> None:
        self._workers = workers
        self._segments = segments
        self._segment = segments[0]
        self._start_offset = start_offset
        self._timestamp = timestamp
        self._done = done
        self._position = 0

    def begin_search(self) -> None:
        """Start in the first segment."""
        segment = self._segment = self._segments.pop(0)
        known = segment.time_index.lookup_timestamp(self._timestamp)
        self._position = segment.index.lookup_offset(max(known.offset, self._start_offset)).position
        self._read_entries(READ_BYTES)

    def _read_entries(self, size: int) -> None:
        self._segment.file.read(self._position, size, self._on_read)

    def _on_read(self, view: memoryview | Failure) -> None:
        if isinstance(view, Failure):
            self._done(view)
            return
        at, got, opened = 0, len(view), 0
        while (header := entry_at(view, at, got)) is not None:
            size = header[BATCH_LENGTH] + LOG_OVERHEAD
            # A header that rules the answer out is skipped; another entry has to be whole in the buffer, and counts
            # against the limit of the turn.
            if self._may_hold(header):
                if at + size > got:
                    break
                opened += 1
                if opened > OPENED_IN_TURN:
                    self._position += at
                    self._read_entries(READ_BYTES)
                    return
                if self._ends_at_entry(view, at, header):
                    return
            at += size
        self._continue_search(at, header, got - at)

    def _ends_at_entry(self, view: memoryview, at: int, header: HeaderTuple) -> bool:
        """Unpack the entry at `at`. Whether the walk ends here: it held the answer, or a worker unpacks it."""
        arguments = (bytes(view[at : at + header[BATCH_LENGTH] + LOG_OVERHEAD]), self._timestamp, self._start_offset)
        try:
            if self._workers is not None and not is_small(header):
                raise ExpandsTooFar("more than is unpacked in a turn")
            limit = RECORDS_MAX_BYTES if self._workers is None else INLINE_EXPANDED
            found = first_from(*arguments, limit)
        except ExpandsTooFar:
            if self._workers is not None:
                self._position += at

                def opened(result: object) -> None:
                    self._on_opened(header, result)

                # The limit is larger in the worker: there the entry blocks no other request.
                self._workers.run_job(SEEK_JOB, (*arguments, RECORDS_MAX_BYTES), opened, self._segment.directory)
                return True
            found = self._unreadable_answer(header)
        except CorruptRecord:
            found = self._unreadable_answer(header)
        if found is not None:
            self._done(TimestampOffset(*found))
        return found is not None

    def _on_opened(self, header: HeaderTuple, result: object) -> None:
        """A worker has unpacked the entry at the position."""
        if isinstance(result, Failure):
            result = self._unreadable_answer(header)
        if isinstance(result, tuple):
            self._done(TimestampOffset(*result))
        else:
            self._position += header[BATCH_LENGTH] + LOG_OVERHEAD
            self._continue_search(0, None, 0)

    def _unreadable_answer(self, header: HeaderTuple) -> tuple[int, int]:
        """The answer for an entry that cannot be unpacked: its first possible offset, so that no record is missed."""
        first = self._segment.base_offset if is_wrapper(header) else header[BASE_OFFSET]
        return header[MAX_TIMESTAMP], max(first, self._start_offset)

    def _may_hold(self, header: HeaderTuple) -> bool:
        return (
            header[MAX_TIMESTAMP] >= self._timestamp
            and header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] >= self._start_offset
        )

    def _continue_search(self, at: int, header: HeaderTuple | None, left: int) -> None:
        """Continue with the entry at `at`, which may be past the bytes that were read, or with the next segment.

        `left`: bytes that were read from there on. If they are enough for a header and show none, the log is damaged.
        """
        self._position += at
        behind = self._segment.size - self._position
        size = READ_BYTES if header is None else header[BATCH_LENGTH] + LOG_OVERHEAD
        # 1. Damage: the look-up ends without an answer. 2. More of this segment is left: read it, at least the whole
        #    entry. 3. The next segment. 4. There is none.
        if header is None and ENTRY_MIN <= min(HEADER_SIZE, behind) <= left:
            self._done(None)
        elif behind >= ENTRY_MIN and (header is None or size <= behind):
            self._read_entries(max(size, READ_BYTES))
        elif self._segments:
            self.begin_search()
        else:
            self._done(None)
