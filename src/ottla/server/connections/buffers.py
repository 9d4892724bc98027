"""Memory for frames: a small pool of big buffers, and rooms for very large frames.

Zone: real. How much a connection may take is decided by `ottla.server.connections.request_memory`.
"""

from __future__ import annotations

import mmap
from typing import Final

STEP: Final = 64 * 1024
"""Big buffers come in multiples of this; smaller ones are not worth keeping."""


class BufferPool:
    """Keeps a few big buffers, because a fresh one of a megabyte costs more in page faults than in copying."""

    __slots__ = ("_free", "_kept", "_limit")

    def __init__(self, limit: int = 16 * 1024 * 1024) -> None:
        self._limit = limit
        self._kept = 0
        self._free: list[bytearray] = []

    def take_buffer(self, size: int) -> bytearray:
        """A buffer of at least `size` bytes, its content undefined."""
        if size < STEP:
            return bytearray(size)
        best = -1
        for n, buffer in enumerate(self._free):
            if size <= len(buffer) <= 4 * size and (best < 0 or len(buffer) < len(self._free[best])):
                best = n
        if best < 0:
            return bytearray(-(-size // STEP) * STEP)
        found = self._free.pop(best)
        self._kept -= len(found)
        return found

    def give(self, buffer: bytearray | mmap.mmap) -> None:
        """Take a buffer back, which must not be used any more; a room is not kept."""
        if isinstance(buffer, bytearray) and len(buffer) >= STEP and self._kept + len(buffer) <= self._limit:
            self._free.append(buffer)
            self._kept += len(buffer)


def reserve_room(size: int) -> mmap.mmap:
    """A room of `size` bytes that costs memory only as far as it is written to. Raises OSError when there is none.

    A bytearray of 100 MB is filled with zeros first, which takes tens of milliseconds, and growing one copies it.
    """
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
