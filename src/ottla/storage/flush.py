"""Makes a log durable, and tracks up to which offset it is.

Zone: deterministic. Order matters: names and bytes are synced first, and the recovery point moves only when all syncs
have completed. One flush per log is in flight, and all requests that arrive meanwhile share the next one (group
commit).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ottla.seams import Done, Failure, Kind
from ottla.storage.layout import ROOT
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segments import SegmentList
from ottla.types import TopicPartition

Job = Callable[[Callable[[object], None]], None]


class Flush:
    """The flushes of one log."""

    __slots__ = (
        "_current_requests",
        "_cuts",
        "_cuts_covered",
        "_end_offset",
        "_epochs_jobs",
        "_everything",
        "_failure",
        "_home",
        "_names",
        "_names_in_flight",
        "_next_requests",
        "_open_jobs",
        "_segments",
        "_target",
        "_tp",
        "active_was_cut",
        "recovery_point",
    )

    def __init__(
        self,
        home: LogDirContext,
        tp: TopicPartition,
        segments: SegmentList,
        recovery_point: int,
        end_offset: Callable[[], int],
        epochs_jobs: Callable[[], list[Job]],
    ) -> None:
        """`epochs_jobs`: the jobs that write the leader epochs of all records to their file."""
        self._home = home
        self._tp = tp
        self._segments = segments
        self._end_offset = end_offset
        self._epochs_jobs = epochs_jobs
        self.recovery_point = recovery_point
        """Everything below it is durable: recovery need not read it."""
        self._cuts = self._cuts_covered = 0
        self._names: dict[str, None] = {}
        self._names_in_flight: dict[str, None] = {}
        self.active_was_cut = False
        """Whether the active segment was cut since the last flush: it is synced, even with nothing left in it."""
        self._next_requests: list[Done[int]] = []
        self._current_requests: list[Done[int]] = []
        self._everything = False
        self._open_jobs = 0
        self._target = 0
        self._failure: Failure | None = None

    def let_go(self, end_offset: int) -> None:
        """Drop all references to a log that was closed and ended at `end_offset`."""
        self._end_offset = lambda: end_offset

    def note_names(self, *directories: str) -> None:
        """Note that files were created, renamed or removed in these directories: the next flush syncs the names."""
        for directory in directories:
            self._names[directory] = None

    def note_unsynced_names(self, directory: str) -> None:
        """Note that an earlier process may have created, renamed or cut files here, and died before a sync."""
        self.note_names(directory, ROOT)
        self.active_was_cut = True

    def secure_names(self, directory: str) -> None:
        """Make all names in a directory durable before the next one is added; blocks unless they are durable already.

        If a power cut kept the file of later batches and lost that of earlier ones, the log would lack its beginning.
        Nearly always a flush has synced the names before. Raises Failure.
        """
        if not self.has_durable_names(directory):
            self._home.disk.sync_now(directory)

    def has_durable_names(self, directory: str) -> bool:
        """Whether all names in a directory are durable."""
        return directory not in self._names and directory not in self._names_in_flight

    def request_flush(self, done: Done[int], everything: bool = False) -> None:
        """Make the log durable as it is now; `done` gets the recovery point, or the Failure.

        `everything`: includes the indexes of the active segment, as a clean stop needs it (else they are rebuilt
        anyway). The same `done` passed again before that flush has begun is called once.
        """
        if not self._next_requests or self._next_requests[-1] is not done:
            self._next_requests.append(done)
        self._everything = self._everything or everything
        if not self._open_jobs:
            self._start_flush()

    @property
    def is_clean(self) -> bool:
        """Whether no flush is in flight and everything is durable."""
        return (
            not self._open_jobs
            and not self._names
            and not self.active_was_cut
            and self.recovery_point >= self._end_offset()
        )

    @property
    def is_idle(self) -> bool:
        """Whether no flush is in flight."""
        return not self._open_jobs

    def on_directory_synced(self) -> None:
        """Note that the whole directory was synced since the last write to the log, as at a stop of many logs."""
        self._set_recovery_point(self._end_offset())
        self._names, self.active_was_cut, self._cuts = {}, False, 0

    def _start_flush(self) -> None:
        self._current_requests, self._next_requests = self._next_requests, []
        # The end is taken before the jobs begin: records that are appended during the syncs may be durable afterwards,
        # but no sync shows that they are.
        self._target, self._cuts_covered = self._end_offset(), self._cuts
        self._failure = None
        jobs = self._flush_jobs()
        self._open_jobs = len(jobs)
        for job in jobs:
            job(self._on_job_done)

    def _flush_jobs(self) -> list[Job]:
        """The jobs that have to complete before the recovery point may move; never empty."""
        disk = self._home.disk
        everything, self._everything = self._everything, False
        # At a clean stop the root is synced once, for all logs, by the log directory.
        names = [name for name in self._names if not (everything and name == ROOT)]
        jobs: list[Job] = [*(partial(disk.sync_dir, name) for name in names), *self._epochs_jobs()]
        self._names, self._names_in_flight = {}, self._names
        cut, self.active_was_cut = self.active_was_cut, False
        # A segment is synced when it has records below the target. The active one may have none, and is synced
        # still: at a clean stop for its indexes, after a cut for its length.
        for slot in range(self._first_unsaved(), len(self._segments)):
            segment = self._segments[slot]
            if segment.base_offset < self._target or (segment.active and (everything or cut)):
                jobs += self._segment_syncs(segment, everything)
        # A flush with nothing to sync completes in a later turn as well: one sync runs in any case.
        return jobs or [self._segments.active.file.sync]

    def _first_unsaved(self) -> int:
        """The first slot that has something to sync.

        A segment may have been sealed when all its records were durable already: its indexes still need a sync.
        """
        slot = self._segments.floor_slot(self.recovery_point)
        while slot and self._segments[slot - 1].has_unsaved_index:
            slot -= 1
        return slot

    def _segment_syncs(self, segment: Segment, everything: bool) -> list[Job]:
        if everything and segment.active:
            try:
                segment.close_time_index()
                segment.write_out()
            except Failure as failure:
                # The flush has failed; an index that could not be written may not even have a file to sync.
                self._failure = failure.as_value()
                return segment.sync_jobs(with_indexes=False)
        return segment.sync_jobs(with_indexes=everything or not segment.active)

    def _on_job_done(self, outcome: object) -> None:
        if isinstance(outcome, Failure) and not self._on_renamed(outcome):
            self._failure = outcome
        self._open_jobs -= 1
        if not self._open_jobs:
            self._finish_flush()

    def _on_renamed(self, failure: Failure) -> bool:
        """Whether the directory was renamed meanwhile: its log is being deleted, and need not be durable."""
        return failure.kind is Kind.NOT_DONE

    def _finish_flush(self) -> None:
        outcome: int | Failure
        if self._failure is not None:
            self._home.on_failed(self._failure)
            outcome = self._failure
        else:
            outcome = max(self.recovery_point, self._target)
            self._set_recovery_point(outcome)
            self._cuts -= self._cuts_covered
        # Requests that came during this flush are not covered by it: the next one begins before these are answered.
        self._names_in_flight = {}
        waiting, self._current_requests = self._current_requests, []
        if self._next_requests:
            self._start_flush()
        for done in waiting:
            done(outcome)

    def sync_cut(self, segment: Segment) -> None:
        """Make a cut durable, blocking, before another segment follows the one that was cut. Raises Failure.

        Otherwise a power loss may restore the bytes that were cut off and lose those written in their place: the next
        segment would then continue records that no longer exist. And a recovery point from before the cut must not
        cover the indexes of the segment that is sealed now.
        """
        if self._cuts:
            self._home.settle_recovery_points()
            self._home.disk.sync_now(segment.path)
            self._cuts = self._cuts_covered = 0

    def on_truncated(self, offset: int) -> None:
        """Note that the log was cut at `offset`: flushes requested before make nothing durable from there on."""
        # Counted, not flagged: a cut during a flush is not covered by it, and `_finish_flush` subtracts only those from
        # before the flush began.
        self._cuts += 1
        self._target = min(self._target, offset)
        self.active_was_cut = True
        self._lower_recovery_point(offset)

    def on_restarted(self, offset: int) -> None:
        """Note that the log is empty and begins at `offset`: there is nothing to recover below it."""
        # The target of a flush in flight is an end of the old log. If it is above `offset`, the recovery point must not
        # reach it when that flush completes.
        self._target = offset
        self._lower_recovery_point(offset)
        self._set_recovery_point(offset)

    def _lower_recovery_point(self, offset: int) -> None:
        """Lower the recovery point, in its checkpoint also: it must not cover records written in place of those cut."""
        if offset < self.recovery_point:
            self._set_recovery_point(offset)
            self._home.save_recovery_points()

    def _set_recovery_point(self, recovery_point: int) -> None:
        self.recovery_point = recovery_point
        self._home.points_moved[self._tp] = None
