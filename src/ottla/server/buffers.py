"""Memory for requests: a small pool of big buffers, and the bound on all that is held.

Zone: real. Amounts are decided here; which connection waits for memory is decided by `ottla.server.traffic`.
"""

from __future__ import annotations

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

    def take(self, size: int) -> bytearray:
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

    def give(self, buffer: bytearray) -> None:
        """Take a buffer back; nobody may use it any more."""
        if len(buffer) >= STEP and self._kept + len(buffer) <= self._limit:
            self._free.append(buffer)
            self._kept += len(buffer)


class Budget:
    """Bytes held for requests that are not answered yet, over all connections."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def allows(self, size: int) -> bool:
        """Whether so many bytes more stay within the limit."""
        return self.used + size <= self.limit

    def charge(self, size: int) -> None:
        """Count bytes in (or out, with a negative size)."""
        self.used += size
        assert self.used >= 0, "more memory given back than taken"
