"""One file of a simulated drive: the bytes that processes see, and those on the platter.

Zone: deterministic. The seam `File` allows appends and truncations only, so the bytes that are not yet durable always
form one tail, from `synced` to the end:

    0 ........ synced ............ len(data)
    |  durable   |   dirty pages     |

A power loss decides the fate of every dirty 4 KiB page separately (`PageFate`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from ottla.sim.entropy import Stream

PAGE: Final = 4096
SECTOR: Final = 512


class PageFate(Enum):
    """The effect of a power loss on a dirty page."""

    KEPT = 1
    DROPPED = 2
    """Zeros, or the old bytes of the platter."""
    TORN = 3
    """Some of its sectors of 512 bytes were written, others not."""


class LossPattern(Enum):
    """How the fates of pages in one power loss depend on each other."""

    EACH = 1
    """Each page is independent."""
    ALL = 2
    """The kernel had just written everything back."""
    NONE = 3
    """The kernel had written nothing back."""
    PREFIX = 4
    """Pages up to some point, the next one torn."""


class Inode:
    """Contents of one file."""

    __slots__ = ("data", "generation", "lost", "modified_ms", "sealed", "shadow", "synced", "syncing")

    def __init__(self) -> None:
        self.data = bytearray()
        """The bytes that all processes see (the page cache)."""
        self.synced = 0
        """The platter has data[:synced], except the ranges in `lost`."""
        self.shadow = b""
        """Bytes that the platter still has from `synced` on, although they were cut since the last sync."""
        self.lost: list[tuple[int, int]] = []
        """Ranges that a failed sync left clean in the cache and missing on the platter."""
        self.generation = 0
        self.modified_ms = 0
        self.syncing: list[list[int]] = []
        """Sizes at submit of the syncs in flight, one cell each; a truncate lowers them."""
        self.sealed: bytes | None = None
        """The immutable copy handed out by `view`."""

    def append(self, parts: list[bytes | bytearray | memoryview], wall_ms: int) -> int:
        """Add bytes at the end. Returns the position of the first."""
        position = len(self.data)
        for part in parts:
            self.data += part
        self.modified_ms = wall_ms
        self.sealed = None
        return position

    def truncate(self, size: int, wall_ms: int) -> None:
        """Cut to `size`. Durable bytes beyond it stay on the platter until the next sync."""
        assert 0 <= size <= len(self.data), (size, len(self.data))
        if size < self.synced:
            self.shadow = bytes(self.data[size : self.synced]) + self.shadow
            self.synced = size
        del self.data[size:]
        self.lost = [(start, min(end, size)) for start, end in self.lost if start < size]
        for cell in self.syncing:
            cell[0] = min(cell[0], size)
        self.generation += 1
        self.modified_ms = wall_ms
        self.sealed = None

    def start_sync(self) -> list[int]:
        """A sync begins; `end_sync` or `fail_sync` takes the cell."""
        cell = [len(self.data)]
        self.syncing.append(cell)
        return cell

    def end_sync(self, cell: list[int]) -> None:
        """The sync of that cell is complete."""
        self._drop_cell(cell)
        if cell[0] >= self.synced:
            self.synced = cell[0]
            self.shadow = b""

    def fail_sync(self, cell: list[int]) -> None:
        """The device refused: the pages are clean in the cache now, and their bytes are not on the platter."""
        self._drop_cell(cell)
        if cell[0] > self.synced:
            self.lost.append((self.synced, cell[0]))

    def _drop_cell(self, cell: list[int]) -> None:
        self.syncing = [other for other in self.syncing if other is not cell]

    @property
    def durable(self) -> int:
        """Bytes from the beginning that a power loss cannot touch."""
        return min([self.synced, *(start for start, _ in self.lost)])

    def on_process_gone(self) -> None:
        """The process died: syncs in flight have no receiver any more."""
        self.syncing = []

    def evict_lost(self) -> None:
        """Read the ranges of failed syncs from the platter again: they become zeros."""
        for start, end in self.lost:
            self.data[start:end] = bytes(end - start)
        self.lost = []
        self.sealed = None

    def power_loss(self, pattern: LossPattern, random: Stream) -> None:
        """Keep the bytes of the platter, and dirty pages according to their fates."""
        # 1. Ranges that a failed sync lost become zeros.
        # 2. Bytes that were cut, but not yet on the platter, may come back.
        # 3. Each dirty page is kept, torn or dropped.
        self.evict_lost()
        base = bytearray(self.data[: self.synced])
        if self.shadow and random.chance(0.5):
            base += self.shadow
        self._overlay_pages(base, pattern, random)
        self.data = base
        self.synced = len(base)
        self.shadow = b""
        self.syncing = []
        self.sealed = None

    def _overlay_pages(self, base: bytearray, pattern: LossPattern, random: Stream) -> None:
        size = len(self.data)
        first, last = self.synced // PAGE, (size + PAGE - 1) // PAGE
        prefix = random.between(first, last) if pattern is LossPattern.PREFIX else 0
        for page in range(first, last):
            start, end = max(page * PAGE, self.synced), min((page + 1) * PAGE, size)
            fate = _page_fate(page, pattern, prefix, random)
            if start < end and fate is not PageFate.DROPPED:
                _write_page(base, start, self.data[start:end], fate, random)
        if len(base) < size and random.chance(0.3):
            base.extend(bytes(size - len(base)))  # the new length reached the platter before the pages did


def _page_fate(page: int, pattern: LossPattern, prefix: int, random: Stream) -> PageFate:
    if pattern is LossPattern.ALL:
        return PageFate.KEPT
    if pattern is LossPattern.NONE:
        return PageFate.DROPPED
    if pattern is LossPattern.PREFIX:
        if page == prefix:
            return PageFate.TORN
        return PageFate.KEPT if page < prefix else PageFate.DROPPED
    draw = random.random_below(10)
    if draw < 4:
        return PageFate.KEPT
    return PageFate.DROPPED if draw < 7 else PageFate.TORN


def _write_page(base: bytearray, start: int, new: bytearray, fate: PageFate, random: Stream) -> None:
    if len(base) < start:
        base.extend(bytes(start - len(base)))
    if fate is not PageFate.TORN:
        base[start : start + len(new)] = new
        return
    end = start + len(new)
    for sector in range(start - start % SECTOR, end, SECTOR):
        if random.chance(0.5):
            low, high = max(sector, start), min(sector + SECTOR, end)
            if len(base) < low:
                base.extend(bytes(low - len(base)))
            base[low:high] = new[low - start : high - start]
