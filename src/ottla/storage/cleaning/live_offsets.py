"""The offsets, in the part of a log that the first pass has read, of the latest record of each key.

Zone: pure. Made from the map of keys when it is complete: after that no key of that part has to be read again.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left


class LiveOffsets:
    """Offsets, rising, of [start_offset, end_offset)."""

    __slots__ = ("_offsets", "_tombstones", "end_offset", "start_offset")

    def __init__(self, start_offset: int, end_offset: int, offsets: bytes, tombstones: bytes) -> None:
        """`offsets` and `tombstones`: as `record.compaction.sorted_offsets` returns them."""
        self.start_offset = start_offset
        self.end_offset = end_offset
        self._offsets: array[int] = array("q")
        self._offsets.frombytes(offsets)
        self._tombstones: array[int] = array("q")
        self._tombstones.frombytes(tombstones)

    def offsets_within(self, base_offset: int, last_offset: int) -> array[int]:
        """The live offsets of a batch."""
        return _offsets_between(self._offsets, base_offset, last_offset)

    def has_tombstones(self, base_offset: int, last_offset: int) -> bool:
        """Whether any live record of a batch is a tombstone."""
        return bool(_offsets_between(self._tombstones, base_offset, last_offset))


def _offsets_between(offsets: array[int], first: int, last: int) -> array[int]:
    start = bisect_left(offsets, first)
    return offsets[start : bisect_left(offsets, last + 1, start)]
