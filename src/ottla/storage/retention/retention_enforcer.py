"""Drops the oldest segments of a log: those that retention does not keep, and those below the log start.

Zone: deterministic. Orders renames and checkpoints; `retention` computes ages and sizes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.seams import Failure, Instant
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.retention.retention import before_start, beyond_age, beyond_size
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import retire_segment

if TYPE_CHECKING:
    from ottla.storage.log_files import LogFiles


class RetentionEnforcer:
    """Retention of one log."""

    __slots__ = ("_home", "_log", "dropping")

    def __init__(self, home: LogDirContext, log: LogFiles) -> None:
        self._home = home
        self._log: LogFiles | None = log
        self.dropping = 0
        """Removals whose renames are not durable yet."""

    def let_go(self) -> None:
        """Drop the reference to a log that was closed."""
        self._log = None

    def delete_old_segments(self, now: Instant) -> int:
        """`Log.delete_old_segments`."""
        log = self._log
        if log is None:
            return 0
        count = self._count_removable(log, now)
        try:
            self._drop_first(log, count)
        except Failure as failure:
            raise self._home.storage_error(failure.as_value()) from failure
        return count

    def needs_flush(self, now: Instant) -> bool:
        """`Log.retention_needs_flush`."""
        log = self._log
        return log is not None and not log.has_durable_names and self._count_removable(log, now) == len(log.segments)

    def due_ms(self, now: Instant) -> int | None:
        """`Log.retention_due_ms`."""
        log = self._log
        if log is None or (len(log.segments) == 1 and not log.segments.first.size):
            return None
        if self._count_unneeded(log, now):
            return now.wall_ms
        if "delete" not in log.config.cleanup_policy or log.config.retention_ms < 0:
            return None
        return log.segments.first.largest_timestamp + log.config.retention_ms + 1

    def _count_removable(self, log: LogFiles, now: Instant) -> int:
        """How many of the oldest segments are removed now."""
        if len(log.segments) == 1 and not log.segments.first.size:
            return 0
        return min(self._count_unneeded(log, now), self._count_allowed(log))

    @staticmethod
    def _count_unneeded(log: LogFiles, now: Instant) -> int:
        """How many segments need not be kept."""
        count = before_start([segment.base_offset for segment in log.segments], log.start_offset)
        if "delete" in log.config.cleanup_policy:
            by_size = beyond_size([segment.size for segment in log.segments], log.config.retention_bytes)
            ages = (segment.largest_timestamp for segment in log.segments)
            count = max(count, by_size, beyond_age(ages, now.wall_ms, log.config.retention_ms))
        return count

    @staticmethod
    def _count_allowed(log: LogFiles) -> int:
        """How many segments may be dropped at all."""
        if log.cleaning.exchange is not None:
            return 0  # their files are being renamed: the next check removes them
        # Replicas may still need records above the high watermark, and an open transaction its first record. A log
        # start above that record was set by DeleteRecords, which may delete it.
        unstable = log.first_unstable_offset
        bound = log.high_watermark if unstable is None else min(max(unstable, log.start_offset), log.high_watermark)
        return log.segments.ending_by(bound, log.end_offset)

    def _drop_first(self, log: LogFiles, count: int) -> None:
        if not count:
            return
        if count == len(log.segments):
            log.roll_segment()
        gone = log.segments.drop_first(count)
        self.dropping += 1
        log.set_start_offset(log.segments.first.base_offset)
        # The new start is durable before the first rename: otherwise a power cut could restore some segments and not
        # others, and the log would have a hole.
        self._home.save_starts(lambda: self._retire_segments(gone))

    def _retire_segments(self, gone: list[Segment]) -> None:
        log = self._log
        if log is None or log.closed or self._home.offline is not None:
            return
        try:
            for segment in gone:
                retire_segment(self._home, segment, log.config.file_delete_delay_ms)
        except Failure as failure:
            self._home.on_failed(failure.as_value())
        self._home.disk.sync_dir(log.directory, self._on_names_synced)

    def _on_names_synced(self, outcome: object) -> None:
        self.dropping -= 1
        if self._log is not None:
            self._home.starts_moved[self._log.tp] = None
        self._home.note_failure(outcome)
