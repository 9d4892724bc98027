"""Finds which part of a log can be compacted now, and which of several logs has the highest dirty ratio.

Zone: pure. Plain numbers, as a log knows them; the rules are those of Kafka's LogCleanerManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

K = TypeVar("K")


class SegmentFacts(NamedTuple):
    """A segment, oldest first in a log; the last one is active."""

    base_offset: int
    size: int
    """Bytes."""
    largest_timestamp: int
    """Ms, as retention counts it."""


class CompactionRules(NamedTuple):
    """A topic's configuration."""

    min_dirty_ratio: float
    """min.cleanable.dirty.ratio"""
    min_lag_ms: int
    """min.compaction.lag.ms: younger records stay as they are."""
    max_lag_ms: int
    """max.compaction.lag.ms: older records are compacted whatever the ratio is."""


class CleanableRange(NamedTuple):
    """The range that a pass would clean."""

    dirty_from: int
    until: int
    """A segment's base offset."""
    dirty_bytes: int
    ratio: float
    """The share of dirty bytes in all bytes below `until`, 0 to 1."""
    delay_ms: int
    """By how much its oldest segment is older than max.compaction.lag.ms; 0 when it is not."""

    @property
    def is_overdue(self) -> bool:
        """Whether it is compacted whatever its dirty ratio is."""
        return self.delay_ms > 0


def dirty_start(checkpoint: int | None, start_offset: int, end_offset: int) -> int:
    """Where the dirty part of a log begins: a checkpoint outside of the log is of another log, and ignored."""
    if checkpoint is None or not start_offset <= checkpoint <= end_offset:
        return start_offset
    return checkpoint


def cleanable_range(
    segments: Sequence[SegmentFacts], dirty_from: int, stable_offset: int, now_ms: int, rules: CompactionRules
) -> CleanableRange | None:
    """What can be compacted in a log; None when nothing can.

    stable_offset: nothing at or above it may be touched (the last stable offset, at most the high watermark).
    The newest record always stays: without it a replica that fetches would not reach the end of the log.
    """
    # An empty active segment does not hold the newest record: the one before it does, and stays in its place.
    if len(segments) > 1 and not segments[-1].size:
        segments = segments[:-1]
    until = _first_uncleanable_offset(segments, stable_offset, now_ms - rules.min_lag_ms)
    below = [segment for segment in segments if segment.base_offset < until]
    ends = [*(segment.base_offset for segment in below[1:]), until]
    dirty = [segment for segment, end in zip(below, ends, strict=False) if end > dirty_from]
    dirty_bytes = sum(segment.size for segment in dirty)
    if dirty_from >= until or not dirty_bytes:
        return None
    ratio = dirty_bytes / sum(segment.size for segment in below)
    delay_ms = now_ms - min(segment.largest_timestamp for segment in dirty) - rules.max_lag_ms
    return CleanableRange(dirty_from, until, dirty_bytes, ratio, max(0, delay_ms))


def dirtiest_log(logs: Iterable[tuple[K, CleanableRange | None, CompactionRules]]) -> K | None:
    """The log to compact next: of those that are overdue or above their ratio, the one with the largest ratio."""
    due = [
        (found.ratio, key)
        for key, found, rules in logs
        if found is not None and (found.is_overdue or found.ratio > rules.min_dirty_ratio)
    ]
    return max(due, key=lambda each: each[0])[1] if due else None


def _first_uncleanable_offset(segments: Sequence[SegmentFacts], stable_offset: int, youngest_ms: int) -> int:
    """The base of the first segment that must stay as it is: active, unstable in part, or with records too young."""
    # Whole segments only, as in Kafka: one young record keeps its segment, and every later one, as it is.
    for segment, following in pairwise(segments):
        if following.base_offset > stable_offset or segment.largest_timestamp > youngest_ms:
            return segment.base_offset
    return segments[-1].base_offset
