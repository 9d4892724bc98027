"""How long compaction has to wait after it has read or written: log.cleaner.io.max.bytes.per.second.

Zone: pure. Arithmetic; whoever asks tells the time.
"""

from __future__ import annotations

from typing import Final

_SECOND_NS: Final = 1_000_000_000


class Throttle:
    """Bytes per second of all passes together; time that nobody used is lost."""

    __slots__ = ("_free_ns", "rate")

    def __init__(self, rate: float) -> None:
        self.rate = rate
        """Bytes per second."""
        self._free_ns = 0

    def charge(self, size: int, now_ns: int) -> int:
        """So many bytes have moved; the nanoseconds to wait before more do."""
        if self.rate <= 0:
            return _SECOND_NS
        self._free_ns = max(self._free_ns, now_ns) + int(size * _SECOND_NS / self.rate)
        return self._free_ns - now_ns
