"""Computes how many segments, from the oldest on, need not be kept.

Zone: pure. Arithmetic of the three rules on plain numbers; the log takes the largest result, limited to the segments
that may be removed at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def before_start(bases: Sequence[int], start_offset: int) -> int:
    """Segments wholly below the log start: those whose successor begins at or below it. The last one has none."""
    return sum(1 for following in bases[1:] if following <= start_offset)


def beyond_size(sizes: Sequence[int], keep_bytes: int) -> int:
    """Oldest segments without which the log still has at least `keep_bytes` (retention.bytes; below 0: no limit)."""
    if keep_bytes < 0:
        return 0
    spare = sum(sizes) - keep_bytes
    count = 0
    for size in sizes:
        spare -= size
        if spare < 0:
            break
        count += 1
    return count


def beyond_age(largest_timestamps: Iterable[int], now_ms: int, keep_ms: int) -> int:
    """Oldest segments whose every record is older than `keep_ms` (retention.ms; below 0: no limit)."""
    if keep_ms < 0:
        return 0
    count = 0
    for timestamp in largest_timestamps:
        if now_ms - timestamp <= keep_ms:
            break
        count += 1
    return count
