"""The latest offset of every key in the part of a log that was not cleaned yet.

Zone: deterministic. The first pass of compaction fills it in offset order until its memory is used up, in pieces of a
batch, so that neither a batch of millions of keys nor many batches block the loop.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Final

from ottla.record.compaction import Keys

ENTRY_BYTES: Final = 208
"""The most bytes of memory for an entry: in a dict, a key of up to 16 bytes, its offset and its share of the table; and
its offset in the list of all."""
PIECE: Final = 16_384
"""Records that are examined in one turn."""


class OffsetMap:
    """key → offset, with room for `dedupe_bytes` (log.cleaner.dedupe.buffer.size)."""

    __slots__ = ("_capacity", "_latest", "end_offset", "start_offset")

    def __init__(self, start_offset: int, dedupe_bytes: int) -> None:
        self._capacity = max(1, dedupe_bytes // ENTRY_BYTES)
        self._latest: dict[bytes, int] = {}
        """Key → offset; ~offset for a tombstone."""
        self.start_offset = start_offset
        """Records below it were not added: the last pass has cleaned them."""
        self.end_offset = start_offset
        """Everything below it is in the map; from here on no key is known, so all records stay."""

    def __len__(self) -> int:
        return len(self._latest)

    @property
    def is_full(self) -> bool:
        """Whether the memory is used up."""
        return len(self._latest) >= self._capacity

    @property
    def used_share(self) -> float:
        """The share of the memory that is used, 0 to 1; the last piece may exceed it."""
        return len(self._latest) / self._capacity

    def skip_to_offset(self, last_offset: int) -> None:
        """Mark all offsets up to this one as known: the rest is markers, aborted data, or was removed before."""
        self.end_offset = max(self.end_offset, last_offset + 1)

    def add_keys(self, base_offset: int, keys: Keys) -> None:
        """Add records of a batch. A piece is always added whole, so that every pass advances by one at least."""
        deltas, latest = keys.deltas, self._latest
        # A batch that was added in part, or that begins below the dirty part, adds only its records from there on.
        known = bisect_left(deltas, self.end_offset - base_offset)
        if known:
            keys = keys.slice_records(known, len(deltas))
            deltas = keys.deltas
        for key, delta in zip(keys.keys, deltas, strict=True):
            if key is not None:
                latest[key] = base_offset + delta
        for index in keys.tombstones:
            lone, offset = keys.keys[index], base_offset + deltas[index]
            if lone is not None and latest[lone] == offset:
                # Its complement, which is negative, marks a tombstone without a second table. A later record of the
                # same key in this batch has replaced the offset already, hence the comparison.
                latest[lone] = ~offset
        if deltas:
            self.end_offset = base_offset + deltas[-1] + 1

    def kept_records(self, base_offset: int, keys: Keys) -> bytearray:
        """One byte per record of a batch: 1 where no later record has its key. Records without a key are removed."""
        latest, end = self._latest, self.end_offset
        offsets = [base_offset + delta for delta in keys.deltas]
        found = [0 if key is None else latest.get(key, 0) for key in keys.keys]
        return bytearray(
            offset >= end or (key is not None and offset >= (last if last >= 0 else ~last))
            for key, offset, last in zip(keys.keys, offsets, found, strict=True)
        )

    def packed_offsets(self) -> Iterator[bytes]:
        """All offsets, piece by piece, in the form that `sorted_offsets` takes."""
        offsets = iter(self._latest.values())
        while piece := array("q", islice(offsets, PIECE)):
            yield piece.tobytes()

    def release_memory(self) -> bool:
        """Free some of the memory; whether there is more. All at once would take as long as filling it."""
        pop = self._latest.popitem
        for _ in range(min(PIECE, len(self._latest))):
            pop()
        return bool(self._latest)
