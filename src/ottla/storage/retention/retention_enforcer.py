"""Drops the oldest segments of a log: those that retention does not keep, and those below the log start.

Zone: deterministic. Orders renames and checkpoints; `retention` computes ages and sizes.
"""

from __future__ import annotations

from ottla.seams import Failure, Instant
from ottla.storage.log import Log
from ottla.storage.retention.retention import before_start, beyond_age, beyond_size
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import retire_segment


def delete_old_segments(log: Log, now: Instant) -> int:
    """Drop what retention does not keep, oldest first; returns how many segments. Raises ApiError.

    Never above the high watermark, nor above the first record of an open transaction.
    """
    count = _count_removable(log, now)
    try:
        _drop_first(log, count)
    except Failure as failure:
        raise log.home.storage_error(failure.as_value()) from failure
    return count


def retention_needs_flush(log: Log, now: Instant) -> bool:
    """Whether `delete_old_segments` would begin a segment, and block on the disk for it.

    A `flush` before makes durable what it would wait for.
    """
    has_durable_names = log.metadata.flush.has_durable_names(log.metadata.directory)
    return not has_durable_names and _count_removable(log, now) == len(log.segments)


def retention_due_ms(log: Log, now: Instant) -> int | None:
    """The wall time at which retention has to check the log again if it does not change.

    `now` when fewer segments could be removed than should be; None: never.
    """
    if len(log.segments) == 1 and not log.segments.first.size:
        return None
    if _count_unneeded(log, now):
        return now.wall_ms
    if "delete" not in log.config.cleanup_policy or log.config.retention_ms < 0:
        return None
    return log.segments.first.largest_timestamp + log.config.retention_ms + 1


def _count_removable(log: Log, now: Instant) -> int:
    """How many of the oldest segments are removed now."""
    if len(log.segments) == 1 and not log.segments.first.size:
        return 0
    return min(_count_unneeded(log, now), _count_allowed(log))


def _count_unneeded(log: Log, now: Instant) -> int:
    """How many segments need not be kept."""
    count = before_start([segment.base_offset for segment in log.segments], log.start_offset)
    if "delete" in log.config.cleanup_policy:
        by_size = beyond_size([segment.size for segment in log.segments], log.config.retention_bytes)
        ages = (segment.largest_timestamp for segment in log.segments)
        count = max(count, by_size, beyond_age(ages, now.wall_ms, log.config.retention_ms))
    return count


def _count_allowed(log: Log) -> int:
    """How many segments may be dropped at all."""
    if log.cleaning.exchange is not None:
        return 0  # their files are being renamed: the next check removes them
    # Replicas may still need records above the high watermark, and an open transaction its first record. A log start
    # above that record was set by DeleteRecords, which may delete it.
    unstable = log.first_unstable_offset
    bound = log.high_watermark if unstable is None else min(max(unstable, log.start_offset), log.high_watermark)
    return log.segments.ending_by(bound, log.end_offset)


def _drop_first(log: Log, count: int) -> None:
    if not count:
        return
    # Nothing of the log is left: an empty segment at its end, created first, keeps the end offset.
    if count == len(log.segments):
        log.roll_segment()
    gone = log.segments.drop_first(count)
    log.files.removals += 1
    log.set_start_offset(log.segments.first.base_offset)
    # The new start is durable before the first rename: otherwise a power cut could restore some segments and not
    # others, and the log would have a hole.
    log.home.save_starts(lambda: _retire_segments(log, gone))


def _retire_segments(log: Log, gone: list[Segment]) -> None:
    home = log.home
    # The checkpoint took some turns. The directory of a log that was deleted meanwhile has another name, and goes as a
    # whole.
    if log.closed or home.offline is not None:
        return
    try:
        for segment in gone:
            retire_segment(home, segment, log.config.file_delete_delay_ms)
    except Failure as failure:
        home.on_failed(failure.as_value())
    home.disk.sync_dir(log.metadata.directory, lambda outcome: _on_names_synced(log, outcome))


def _on_names_synced(log: Log, outcome: object) -> None:
    log.files.removals -= 1
    log.home.starts_moved[log.tp] = None
    log.home.note_failure(outcome)
