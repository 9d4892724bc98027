"""Memory for frames: a small pool of big buffers, and anonymous mappings for very large frames.

Zone: real. `ottla.server.connections.request_memory` decides how much memory a connection may take.
"""

from __future__ import annotations

import mmap
from typing import Final

STEP: Final = 64 * 1024
"""The size of a pooled buffer is a multiple of this; a smaller buffer is not kept."""


class BufferPool:
    """Keeps a few big buffers: the page faults of a new one of a megabyte cost more than copying into it."""

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
            # The smallest that is large enough, but none of more than four times the size: it is kept for a large
            # frame.
            if size <= len(buffer) <= 4 * size and (best < 0 or len(buffer) < len(self._free[best])):
                best = n
        if best < 0:
            return bytearray(-(-size // STEP) * STEP)
        found = self._free.pop(best)
        self._kept -= len(found)
        return found

    def give_buffer(self, buffer: bytearray | mmap.mmap) -> None:
        """Return a buffer, which the caller must not use any more; a mapping is not kept."""
        if isinstance(buffer, bytearray) and len(buffer) >= STEP and self._kept + len(buffer) <= self._limit:
            self._free.append(buffer)
            self._kept += len(buffer)


def reserve_room(size: int) -> mmap.mmap:
    """Map `size` bytes, which use memory only as far as they are written to. Raises OSError when there is no memory.

    A bytearray of 100 MB would be filled with zeros first, which takes tens of milliseconds, and growing it copies it.
    """
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
