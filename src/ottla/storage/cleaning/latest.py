"""The latest offset of every key in the part of a log that was not cleaned yet.

Zone: deterministic. First pass of compaction: filled batch by batch, in offset order, until its memory is used up.
"""

from __future__ import annotations

from typing import Final

from ottla.record.compaction import Keys

ENTRY_BYTES: Final = 192
"""What an entry of a dict costs at most: a key of up to 16 bytes, its offset, its share of the table."""


class LatestOffsets:
    """key → offset, with room for `dedupe_bytes` (log.cleaner.dedupe.buffer.size)."""

    __slots__ = ("_capacity", "_latest", "end_offset")

    def __init__(self, start_offset: int, dedupe_bytes: int) -> None:
        self._capacity = max(1, dedupe_bytes // ENTRY_BYTES)
        self._latest: dict[bytes, int] = {}
        self.end_offset = start_offset
        """Everything below it is in the map; from here on nothing is known, so everything stays."""

    def __len__(self) -> int:
        return len(self._latest)

    @property
    def full(self) -> bool:
        """Whether another batch may not be added."""
        return len(self._latest) >= self._capacity

    def skip(self, last_offset: int) -> None:
        """A batch whose records count for nothing: markers, aborted data."""
        self.end_offset = last_offset + 1

    def add(self, base_offset: int, last_offset: int, keys: Keys) -> None:
        """A batch. One is always added whole, so that every pass comes at least one batch further."""
        assert last_offset >= self.end_offset, "batches come in offset order"
        for key, delta in zip(keys.keys, keys.deltas, strict=True):
            if key is not None:
                self._latest[key] = base_offset + delta
        self.end_offset = last_offset + 1

    def kept(self, base_offset: int, keys: Keys) -> bytearray:
        """One byte per record of a batch: 1 where no later record has its key. Records without a key go."""
        latest, end = self._latest, self.end_offset
        offsets = [base_offset + delta for delta in keys.deltas]
        return bytearray(
            offset >= end or (key is not None and offset >= latest.get(key, -1))
            for key, offset in zip(keys.keys, offsets, strict=True)
        )
