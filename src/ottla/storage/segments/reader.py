"""Finds the bytes that answer a fetch from an offset.

Zone: deterministic. Works on positions: index, remembered tail, a few headers; the bytes stay in the file and are
returned as a region of it. The caller's `limit` is what the reader may see (high watermark, last stable offset).
"""

from __future__ import annotations

from typing import Final

from ottla.record.errors import CorruptRecord
from ottla.record.log_entries import first_offset_at
from ottla.seams import Region
from ottla.storage.errors import Cold
from ottla.storage.indexes.index import OffsetPosition
from ottla.storage.segments.batch_position_cache import BatchPositionCache
from ottla.storage.segments.scan import HeaderScan, ScannedBatch
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segments import SegmentList

RECORDS_MAX_BYTES: Final = 64 * 1024 * 1024
"""The most bytes that an entry is unpacked to in order to find one offset."""
HOT_BYTES: Final = 16 * 1024 * 1024
"""The bytes that were appended last and are certainly in the page cache; others are probed before they are sent."""
_new = tuple.__new__  # a third of the time of the class's own, and every fetch makes one
PROBE_STEP: Final = 512 * 1024
"""Distance of the probes. Pages enter and leave the cache in runs, in the order in which a log is read: a few of them
represent all, and a probe is a system call."""


class LogReader:
    """Finds batches of one log."""

    __slots__ = ("_probe", "_scan", "_segments", "_tail")

    def __init__(self, segments: SegmentList, tail: BatchPositionCache, scan: HeaderScan) -> None:
        self._segments = segments
        self._tail = tail
        self._scan = scan
        self._probe = memoryview(bytearray(1))

    def find_region(
        self, offset: int, max_bytes: int, limit: int, log_end: int, at_least_one: bool, patient: bool
    ) -> Region | None:
        """Whole batches from the one holding `offset` on: below `limit`, at most `max_bytes`, of one segment.

        The first batch may be larger when `at_least_one`. None when there is no such batch. Raises Cold, ApiError
        CORRUPT_MESSAGE.
        """
        segments, slots = self._segments, self._segments.slots
        slot = len(slots) - 1
        if offset < slots[slot].base_offset:
            slot = segments.floor_slot(offset)
        # In a compacted log the batches from `offset` to the end of its segment may be missing: try the next ones.
        start = self._find_position(slot, offset, patient)
        while start < 0:
            slot += 1
            if slot == len(slots):
                return None
            start = self._find_position(slot, offset, patient)
        # The end: of the segment, before the batch that holds `limit`, or where `max_bytes` are reached.
        segment = slots[slot]
        stop = segment.size
        # A limit at or above the end of the segment cuts nothing from it: a consumer at the end of the log skips the
        # search.
        if limit < log_end and limit < segments.end_of(slot, log_end):
            stop = self._find_position(slot, limit, patient)
            if stop < 0:
                stop = segment.size
        size = stop - start
        if size > max_bytes:
            size = self._fit_size(slot, start, max_bytes, at_least_one, patient)
        if size <= 0:
            return None
        region = _new(Region, (segment.file, start, size, segment.file.generation))
        if not patient and start < max(segment.hot_from, segment.size - HOT_BYTES):
            self._check_warm(region)
        return region

    def _find_position(self, slot: int, offset: int, patient: bool) -> int:
        """Where the first batch begins whose last offset is ≥ `offset`; -1 when the segment has none."""
        slots = self._segments.slots
        if slot == len(slots) - 1:
            offsets = self._tail.offsets
            if offsets and offset >= offsets[0]:
                return self._tail.position_of(offset)
        found = self.find_segment(slots[slot], offset, patient)
        return -1 if found is None else found.position

    def find_segment(self, segment: Segment, offset: int, patient: bool) -> ScannedBatch | None:
        """The first batch of a segment whose last offset is ≥ `offset`. Raises Cold, ApiError CORRUPT_MESSAGE."""
        # 1. The batch of the index entry above `offset`. 2. The batch of the entry at or below it. 3. A search from
        #    there on, or from the beginning of the segment when that entry does not match the log.
        entry, above = (segment.open_index or segment.index).place_of(offset)
        if above > entry.position and entry.offset < offset:
            # If every batch has an entry, the batch of the next entry is the wanted one, and one header proves it.
            found = self._scan.batch_at(segment.file, above, segment.size, patient)
            if found is not None and 0 <= found.base_offset <= offset <= found.last_offset:
                return found
        first = self._entry_batch(segment, entry, patient) if entry.position else None
        if first is not None and first.last_offset >= offset:
            return first
        position = 0 if first is None else first.end
        return self._scan.first_reaching(segment.file, position, segment.size, offset, patient)

    def _entry_batch(self, segment: Segment, entry: OffsetPosition, patient: bool) -> ScannedBatch | None:
        """The batch that an index entry points to; None when the index does not match the log: the log is trusted."""
        found = self._scan.batch_at(segment.file, entry.position, segment.size, patient)
        return None if found is None or not found.base_offset <= entry.offset <= found.last_offset else found

    @staticmethod
    def first_offset(segment: Segment, found: ScannedBatch) -> int:
        """The first offset of a batch that was found. A wrapper message is read and unpacked for it, blocking; if that
        fails, its last offset.
        """
        if found.base_offset >= 0:
            return found.base_offset
        content = memoryview(bytearray(found.end - found.position))
        segment.file.read_now(found.position, content)
        try:
            return first_offset_at(content, 0, max_bytes=RECORDS_MAX_BYTES)
        except CorruptRecord:
            return found.last_offset

    def _fit_size(self, slot: int, start: int, max_bytes: int, at_least_one: bool, patient: bool) -> int:
        """The largest size ≤ `max_bytes` (nearly: an index is sparse) that ends where a batch ends."""
        slots = self._segments.slots
        segment = slots[slot]
        # From the cheapest source to the dearest: remembered positions, the index, headers in the file.
        end = -1
        if slot == len(slots) - 1 and self._tail.positions and start + max_bytes >= self._tail.positions[0]:
            end = self._tail.boundary_below(start, start + max_bytes)
        if end <= start:
            end = (segment.open_index or segment.index).floor_of_position(start + max_bytes)
        if end <= start:
            end = self._scan.last_fitting(segment.file, start, segment.size, max_bytes, patient)
        if end <= start and at_least_one:
            # The first batch is returned whole although it is larger, or the consumer would never get past it (KIP-74).
            first = self._scan.first_reaching(segment.file, start, segment.size, -1, patient)
            end = start if first is None else first.end
        return end - start

    def _check_warm(self, region: Region) -> None:
        """Raise Cold when the region does not seem to be in memory: sending it would stall the loop.

        Its beginning is in memory: a header was just read there.
        """
        file, start, size, _ = region
        last = start + size - 1
        for position in (*range(start + PROBE_STEP, last, PROBE_STEP), last):
            if not file.try_read(position, self._probe):
                raise Cold((region,))
