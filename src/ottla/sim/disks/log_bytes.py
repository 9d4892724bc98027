"""The batches in the bytes of a segment.

Zone: deterministic. Without Ottla's storage code, whose work is checked with it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_POS, MAGIC_V2, header_at
from ottla.record.legacy import SIZE_MIN


def whole_batches(view: memoryview) -> Iterator[memoryview]:
    """Every complete batch in order, of older formats every message; its checksum may be wrong."""
    pos = 0
    while len(view) - pos > MAGIC_POS:
        smallest = HEADER_SIZE if view[pos + MAGIC_POS] == MAGIC_V2 else LOG_OVERHEAD + SIZE_MIN
        size = LOG_OVERHEAD + int.from_bytes(view[pos + 8 : pos + LOG_OVERHEAD])
        if size < smallest or pos + size > len(view):
            return
        yield view[pos : pos + size]
        pos += size


def offsets_of(batch: memoryview) -> tuple[int, int]:
    """The first and the last offset of a batch. A message of an older format names its last one alone, twice here."""
    first = int.from_bytes(batch[:8])
    return first, first + (header_at(batch).last_offset_delta if batch[MAGIC_POS] == MAGIC_V2 else 0)
