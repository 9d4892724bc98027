"""Remembers where the newest batches of a log begin.

Zone: pure. Two parallel arrays; a reader near the end of the log finds its place here and reads no header.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Final

KEPT: Final = 128


class BatchPositionCache:
    """Base offsets and positions of the last batches of the active segment: at most twice `KEPT`."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("q")
        self.positions = array("q")

    def trim_older(self) -> None:
        """Drop the older half."""
        del self.offsets[:KEPT]
        del self.positions[:KEPT]

    def clear_positions(self) -> None:
        """Drop all entries: another segment, or a truncation."""
        del self.offsets[:]
        del self.positions[:]

    def position_of(self, offset: int) -> int:
        """Position of the batch that holds `offset`, or of the last one for a higher offset; -1 when not known."""
        slot = bisect_right(self.offsets, offset) - 1
        return self.positions[slot] if slot >= 0 else -1

    def boundary_below(self, start: int, bound: int) -> int:
        """The largest remembered position in (start, bound]; -1 when there is none."""
        slot = bisect_right(self.positions, bound) - 1
        if slot < 0:
            return -1
        position = self.positions[slot]
        return position if position > start else -1
