"""Which neighbouring segments are rewritten into one.

Zone: pure. Arithmetic on plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.storage.index import MAX_RELATIVE_OFFSET


class Extent(NamedTuple):
    """A segment, as far as grouping asks."""

    base_offset: int
    end_offset: int
    """Where the next one begins."""
    size: int
    """Bytes of its log file."""
    index_size: int
    """Bytes of the larger of its indexes."""


def groups(segments: Sequence[Extent], segment_bytes: int, index_bytes: int) -> list[list[Extent]]:
    """Runs of neighbours that fit one segment in bytes, in bytes of index and in relative offsets, in order."""
    found: list[list[Extent]] = []
    size = index_size = 0
    for segment in segments:
        size, index_size = size + segment.size, index_size + segment.index_size
        fits = found and size <= segment_bytes and index_size <= index_bytes
        if fits and segment.end_offset - 1 - found[-1][0].base_offset <= MAX_RELATIVE_OFFSET:
            found[-1].append(segment)
        else:
            found.append([segment])
            size, index_size = segment.size, segment.index_size
    return found
