"""Restores a log's producer state: from the newest snapshot that has enough, and the batches after it.

Zone: deterministic. Blocking reads, for start-up and truncation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from ottla.record.batch import CONTROL
from ottla.record.header_fields import ATTRIBUTES, BASE_OFFSET, BATCH_LENGTH
from ottla.seams import Failure, Kind
from ottla.storage.checkpoints import CorruptCheckpoint, parse_snapshot
from ottla.storage.layout import SNAPSHOT, parse_file_name
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.producers.producer_state import ProducerState, SnapshotEntry, marker_of, replay_batch
from ottla.storage.segments.scan import read_file, walk_headers
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import snapshot_path

_logger = logging.getLogger(__name__)


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Offsets of the producer snapshots in a directory, rising."""
    parsed = (parse_file_name(name) for name in names)
    return sorted(file.base_offset for file in parsed if file and file.kind == SNAPSHOT and not file.state)


def sufficient_snapshot_offset(segments: Iterable[Segment], start: int, mark: int, end: int) -> int:
    """The highest offset whose snapshot is sufficient for a log with that start, high watermark and end.

    A snapshot does not have the start of a transaction that has ended. Readers of committed records wait there until
    its marker is committed; so with a marker above the high watermark a snapshot from below it is needed. When the high
    watermark is not above the start, every snapshot is sufficient: consumers cannot read any record yet.
    """
    return mark if start < mark < end and _has_marker(segments, mark, end) else end


def _has_marker(segments: Iterable[Segment], start: int, end: int) -> bool:
    ordered = list(segments)
    for segment, following in zip(ordered, [*ordered[1:], None], strict=True):
        if segment.base_offset >= end:
            break
        if following is None or following.base_offset > start:
            for _, header in walk_headers(segment.file, segment.index.lookup_offset(start).position, segment.size):
                if header[ATTRIBUTES] & CONTROL and start <= header[BASE_OFFSET] < end:
                    return True
    return False


def _are_below_offset(entries: Sequence[SnapshotEntry], offset: int) -> bool:
    """The check at a cut: its snapshots are this process's own, or were checked when it started."""
    return all(entry.last_offset < offset for entry in entries)


def load_newest(
    home: LogDirContext,
    directory: str,
    offsets: Sequence[int],
    start: int,
    end: int,
    state: ProducerState,
    right: Callable[[Sequence[SnapshotEntry], int], bool] = _are_below_offset,
) -> None:
    """Fill `state` from the newest readable snapshot in [start, end]; without one it is empty at `start`.

    Snapshots that cannot be read, or are not `right` for their offset, are removed: they would fail at every start.
    """
    now_ms = home.clock.now().wall_ms
    for offset in reversed(offsets):
        if not start <= offset <= end:
            continue
        path = snapshot_path(directory, offset)
        try:
            entries = parse_snapshot(read_file(home.disk, path))
            if not right(entries, offset):
                raise CorruptCheckpoint("it does not match the log at that offset")
            state.load_entries(entries, offset, now_ms)
        except CorruptCheckpoint as error:
            _logger.warning("removing the producer snapshot %s/%s, using an older one: %s", home.disk.name, path, error)
            home.disk.unlink_now(path)
        except Failure as failure:
            if failure.kind is not Kind.NOT_DONE:
                raise
        else:
            return
    state.load_entries((), start, now_ms)


def replay_to(home: LogDirContext, segments: Iterable[Segment], state: ProducerState, end: int) -> None:
    """Advance `state` from its own end offset to `end`, by the batches in the segments."""
    now_ms = home.clock.now().wall_ms
    ordered = list(segments)
    for segment, following in zip(ordered, [*ordered[1:], None], strict=True):
        if segment.base_offset >= end:
            break
        if following is None or following.base_offset > state.end_offset:
            _replay_segment(segment, state, end, now_ms)
    state.end_offset = end


def _replay_segment(segment: Segment, state: ProducerState, end: int, now_ms: int) -> None:
    position = segment.index.lookup_offset(state.end_offset).position
    for at, header in walk_headers(segment.file, position, segment.size):
        if header[BASE_OFFSET] >= end:
            return
        if header[BASE_OFFSET] < state.end_offset:
            continue
        marker = None
        if header[ATTRIBUTES] & CONTROL:
            batch = memoryview(bytearray(header[BATCH_LENGTH] + 12))
            segment.file.read_now(at, batch)
            marker = marker_of(batch, 0)
        replay_batch(state, header, marker, now_ms)


def prune_snapshots(home: LogDirContext, directory: str, offsets: Sequence[int], bases: Sequence[int]) -> None:
    """Remove snapshots that neither begin a segment nor lie above the last one's base as the newest of all."""
    for offset in offsets:
        # A snapshot at the base of a segment serves a recovery that reads from there on. The newest one, above, is that
        # of a clean stop. All others are of segments that were merged or removed.
        newest = offset == offsets[-1] and offset > bases[-1]
        if offset not in bases and not newest:
            home.disk.unlink_now(snapshot_path(directory, offset))


def reload_after_cut(
    home: LogDirContext, directory: str, segments: Sequence[Segment], marks: tuple[int, int, int], state: ProducerState
) -> int:
    """Compute the state of a log that was cut; snapshots above its end are of removed records, and are removed.

    `marks`: its start, high watermark and end. Returns the offset of the newest snapshot, -1 when there is none.
    """
    start, _, end = marks
    offsets = snapshot_offsets(home.disk.list(directory))
    for offset in offsets:
        if offset > end:
            home.disk.unlink_now(snapshot_path(directory, offset))
    load_newest(home, directory, offsets, start, sufficient_snapshot_offset(segments, *marks), state)
    replay_to(home, segments, state, end)
    return max((offset for offset in offsets if offset <= end), default=-1)
