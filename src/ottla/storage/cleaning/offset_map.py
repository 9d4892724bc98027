"""The latest offset of every key in the part of a log that was not cleaned yet.

Zone: deterministic. First pass of compaction: filled in offset order until its memory is used up, by pieces of a
batch, so that neither a batch of millions of keys nor many batches hold up the loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ottla.record.compaction import Keys

ENTRY_BYTES: Final = 208
"""What an entry costs at most: in a dict a key of up to 16 bytes, its offset, its share of the table; its offset in
the list of all."""
PIECE: Final = 16_384
"""Records that are looked at in one turn."""


class OffsetMap:
    """key → offset, with room for `dedupe_bytes` (log.cleaner.dedupe.buffer.size)."""

    __slots__ = ("_capacity", "_latest", "end_offset", "start_offset")

    def __init__(self, start_offset: int, dedupe_bytes: int) -> None:
        self._capacity = max(1, dedupe_bytes // ENTRY_BYTES)
        self._latest: dict[bytes, int] = {}
        """Of a tombstone ~offset."""
        self.start_offset = start_offset
        """Records below it were not added: what they say is known from the last time."""
        self.end_offset = start_offset
        """Everything below it is in the map; from here on nothing is known, so everything stays."""

    def __len__(self) -> int:
        return len(self._latest)

    @property
    def full(self) -> bool:
        """Whether no more is to be added."""
        return len(self._latest) >= self._capacity

    @property
    def used(self) -> float:
        """Share of the room, 0 to 1; the last piece may go beyond."""
        return len(self._latest) / self._capacity

    def skip(self, last_offset: int) -> None:
        """All up to this offset is known, or counts for nothing: markers, aborted data, what is not there any more."""
        self.end_offset = max(self.end_offset, last_offset + 1)

    def add(self, base_offset: int, keys: Keys) -> None:
        """Records of a batch. They are added whole, so that every pass comes at least a piece further."""
        deltas, latest = keys.deltas, self._latest
        known = bisect_left(deltas, self.end_offset - base_offset)
        if known:
            keys = keys.piece(known, len(deltas))
            deltas = keys.deltas
        for key, delta in zip(keys.keys, deltas, strict=True):
            if key is not None:
                latest[key] = base_offset + delta
        for index in keys.tombstones:
            lone, offset = keys.keys[index], base_offset + deltas[index]
            if lone is not None and latest[lone] == offset:
                latest[lone] = ~offset
        if deltas:
            self.end_offset = base_offset + deltas[-1] + 1

    def kept(self, base_offset: int, keys: Keys) -> bytearray:
        """One byte per record of a batch: 1 where no later record has its key. Records without a key go."""
        latest, end = self._latest, self.end_offset
        offsets = [base_offset + delta for delta in keys.deltas]
        found = [0 if key is None else latest.get(key, 0) for key in keys.keys]
        return bytearray(
            offset >= end or (key is not None and offset >= (last if last >= 0 else ~last))
            for key, offset, last in zip(keys.keys, offsets, found, strict=True)
        )

    def packed(self) -> Iterator[bytes]:
        """All offsets as `sorted_offsets` takes them, piece by piece."""
        offsets = iter(self._latest.values())
        while piece := array("q", islice(offsets, PIECE)):
            yield piece.tobytes()

    def release_memory(self) -> bool:
        """Give some of the memory back; whether there is more. All at once would take as long as filling it."""
        pop = self._latest.popitem
        for _ in range(min(PIECE, len(self._latest))):
            pop()
        return bool(self._latest)
