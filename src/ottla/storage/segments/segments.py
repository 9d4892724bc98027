"""The segments of a log, found by offset.

Zone: deterministic. A sorted list and bisection; operations on several segments at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from ottla.seams import Region
from ottla.storage.indexes.txn_index import AbortedTransaction
from ottla.storage.segments.segment import Segment


class SegmentList:
    """Ordered by base offset; the last one is the active one. Never empty once a log is open."""

    __slots__ = ("_bases", "_segments", "slots")

    def __init__(self, segments: list[Segment]) -> None:
        self._segments = segments
        self.slots: Sequence[Segment] = segments
        """All segments, for reading only: every fetch saves a call for each access."""
        self._bases = [segment.base_offset for segment in segments]
        assert self._bases == sorted(set(self._bases))

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def __getitem__(self, slot: int) -> Segment:
        return self._segments[slot]

    @property
    def first(self) -> Segment:
        """The oldest segment."""
        return self._segments[0]

    @property
    def active(self) -> Segment:
        """The segment that is appended to."""
        return self._segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self._segments)

    def floor_slot(self, offset: int) -> int:
        """Slot of the segment with the largest base ≤ `offset`; the first one when there is none."""
        return max(0, bisect_right(self._bases, offset) - 1)

    def end_of(self, slot: int, log_end: int) -> int:
        """The offset after a segment: where the next one begins, or the log's end."""
        return self._bases[slot + 1] if slot + 1 < len(self._bases) else log_end

    def ending_by(self, offset: int, log_end: int) -> int:
        """How many of the oldest segments end at or below `offset`; an empty active one is not counted, as it would
        only be created again."""
        count = 0
        while count < len(self._bases) and self.end_of(count, log_end) <= offset:
            count += 1
        return count - 1 if count == len(self._bases) and not self.active.size else count

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in [start, end), by the offset of their markers."""
        found: list[AbortedTransaction] = []
        for slot in range(self.floor_slot(start), len(self._segments)):
            some, complete = self._segments[slot].txn_index.collect_aborted(start, end)
            found += some
            if complete:
                break
        return found

    def aborted_in(self, region: Region, start: int, limit: int, log_end: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in a region that was read from `start` on, below `limit`.

        The index decides where the region ends, so the result may have some transactions from just after it.
        """
        newest = self._segments[-1]
        # The common case, a consumer at the end of the log: no abort marker is at or above `start` in the last segment.
        if region.file is newest.file and not newest.txn_index.reaches_offset(start):
            return []
        slot = self.floor_slot(start)
        while self._segments[slot].file is not region.file:
            slot += 1
        segment, stop = self._segments[slot], region.pos + region.size
        after = segment.index.offset_from(stop) if stop < segment.size else -1
        end = self.end_of(slot, log_end) if after < 0 else after + 1
        return self.aborted_transactions(start, min(end, limit))

    def add_segment(self, segment: Segment) -> None:
        """Add a new active segment."""
        assert not self._bases or segment.base_offset > self._bases[-1]
        self._segments.append(segment)
        self._bases.append(segment.base_offset)

    def replace_segments(self, old: Sequence[Segment], fresh: Segment) -> None:
        """Replace neighbouring segments by one that has the base offset of the first."""
        slot = self._segments.index(old[0])
        assert self._segments[slot : slot + len(old)] == list(old), "the replaced segments are not neighbours in order"
        assert fresh.base_offset == old[0].base_offset
        self._segments[slot : slot + len(old)] = [fresh]
        self._bases[slot : slot + len(old)] = [fresh.base_offset]

    def drop_first(self, count: int) -> list[Segment]:
        """Remove and return the oldest `count` segments."""
        gone = self._segments[:count]
        del self._segments[:count]
        del self._bases[:count]
        return gone

    def drop_from(self, slot: int) -> list[Segment]:
        """Remove and return the segments from a slot on."""
        gone = self._segments[slot:]
        del self._segments[slot:]
        del self._bases[slot:]
        return gone
