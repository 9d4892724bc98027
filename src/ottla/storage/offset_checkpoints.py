"""The files with offsets of all logs of a directory: recovery points, high watermarks, log starts, cleaned offsets.

Zone: deterministic. Each file has a text of which only the changed lines are made again; the caller decides when a file
is written.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Final

from ottla.storage.checkpoints import OffsetText
from ottla.storage.layout import CLEANED_UNTIL, HIGH_WATERMARKS, LOG_STARTS, RECOVERY_POINTS
from ottla.storage.log import Log
from ottla.storage.log_dir_context import CoalescingWriter, LogDirContext
from ottla.storage.recovery.found_logs import LogMarks
from ottla.types import TopicPartition

CONTINUED_PER_TURN: Final = 8
"""Callers that continue in one turn once their log start is durable: each renames the files of its log's segments."""

Then = Callable[[], None]


class LogStartCheckpoint:
    """The log starts of one directory that the names of files do not show."""

    __slots__ = ("_content", "_home", "_is_busy", "_waiting", "file")

    def __init__(self, home: LogDirContext, content: Callable[[], bytes]) -> None:
        """`content` returns the new content of the file; it is called once per write."""
        self._home = home
        self._content = content
        self.file = CoalescingWriter(home, LOG_STARTS)
        """The writer of the file; others only read whether it is busy."""
        self._waiting: deque[Then] = deque()
        """Callers that wait for a write that has not begun."""
        self._is_busy = False
        """Whether callers wait for a write that has begun, or continue after it."""

    def write_starts(self) -> None:
        """Begin to write the log starts to the file."""
        # Cleared before the content is made. Cleared after the write, it would hide a start that moves meanwhile.
        self._home.starts_changed = False
        self.file.write_soon(self._content)

    def write_now(self) -> None:
        """Write the log starts to the file, blocking. Raises Failure."""
        self.file.write_now(self._content())

    def save_starts(self, then: Then) -> None:
        """Make the log starts durable, then call back in a later turn.

        Callers that come during a write share the next one.
        """
        self._waiting.append(then)
        if not self._is_busy:
            self._save_for_all()

    def _save_for_all(self) -> None:
        callers, self._waiting = self._waiting, deque()
        self._is_busy = bool(callers)
        if callers:
            # A caller that comes from here on waits for the next write: the content of this one may exist already. A
            # failed write also ends the wait, and takes the directory offline, which the callers check.
            self.write_starts()
            self.file.when_idle(lambda _: self._continue_some(callers))

    def _continue_some(self, callers: deque[Then]) -> None:
        for _ in range(min(CONTINUED_PER_TURN, len(callers))):
            callers.popleft()()
        if callers:
            self._home.timers.add_timer(self._home.clock.now().mono_ns, lambda: self._continue_some(callers))
        else:
            self._save_for_all()


class OffsetCheckpoints:
    """The four files of one directory."""

    __slots__ = (
        "_clean_text",
        "_cleaned",
        "_find_log",
        "_high_watermarks",
        "_home",
        "_logs",
        "_mark_text",
        "_missing",
        "_noted_clean",
        "_point_text",
        "_recovery_points",
        "_start_text",
        "_starts",
        "_unopened",
    )

    def __init__(
        self,
        home: LogDirContext,
        logs: Mapping[TopicPartition, Log],
        find_log: Callable[[TopicPartition], Log | None],
        missing: Mapping[TopicPartition, int],
        unopened: Mapping[TopicPartition, LogMarks],
    ) -> None:
        """`logs` are those that are served, `find_log` finds copies as well. `missing`: recovery points of logs that
        are expected, but not here. `unopened`: what the files had about logs that are not loaded yet."""
        self._home = home
        self._logs = logs
        self._find_log = find_log
        self._missing = missing
        self._unopened = unopened
        self._recovery_points = CoalescingWriter(home, RECOVERY_POINTS)
        self._high_watermarks = CoalescingWriter(home, HIGH_WATERMARKS)
        self._starts = LogStartCheckpoint(home, self._start_bytes)
        self._cleaned = CoalescingWriter(home, CLEANED_UNTIL)
        self._point_text, self._mark_text = OffsetText(), OffsetText()
        self._start_text, self._clean_text = OffsetText(), OffsetText()
        self._noted_clean = self._clean_text.data
        """The content of that file, or the content that is being written to it."""

    # -- start and stop ------------------------------------------------------------------------------------------------

    def take_stored(self) -> None:
        """Take over what the files had about logs that are missing, or not loaded yet."""
        for tp, point in self._missing.items():
            self._point_text.set_offset(tp, point)
        for tp, each in self._unopened.items():
            self._point_text.set_offset(tp, each.recovery_point)
            self._mark_text.set_offset(tp, each.high_watermark)
            self._start_text.set_offset(tp, each.start_offset or None)

    def take_cleaned(self, cleaned: dict[TopicPartition, int]) -> None:
        """Take over up to which offsets logs are clean. Where recovery has cut a log below that, new records are not
        clean, so the file is corrected."""
        for tp, offset in cleaned.items():
            log = self._logs.get(tp)
            self._clean_text.set_offset(tp, offset)
            self._home.on_log_cleaned(tp)
            if log is not None and offset <= log.end_offset:
                log.cleaning.checkpoint = offset
        self._noted_clean = self._clean_text.data
        self._correct_cleaned()

    def forget_deleted_logs(self) -> None:
        """Remove deleted logs from the checkpoints: a new log must not be taken for an old one of the same name.

        Blocking, before the new log exists: an inherited recovery point would cover bytes that were never flushed, an
        inherited log start would delete records that were not to be deleted. Raises Failure."""
        self._recovery_points.write_now(self._recovery_point_bytes())
        self._high_watermarks.write_now(self._high_watermark_bytes())
        self._starts.write_now()
        self._correct_cleaned()

    def writing_files(self) -> list[CoalescingWriter]:
        """The files that are being written."""
        every = (self._recovery_points, self._high_watermarks, self._starts.file, self._cleaned)
        return [file for file in every if file.is_writing]

    def write_final(self) -> None:
        """Write the files of a stop, blocking. Raises Failure."""
        disk = self._home.disk
        # The cleaner's checkpoint is not among them: each pass writes it at its end, each cut before the log is cut.
        disk.replace_now(RECOVERY_POINTS, self._recovery_point_bytes())
        disk.replace_now(HIGH_WATERMARKS, self._high_watermark_bytes())
        disk.replace_now(LOG_STARTS, self._start_bytes())

    # -- each file -----------------------------------------------------------------------------------------------------

    def checkpoint_recovery_points(self) -> None:
        """Begin to write the recovery point of each log."""
        self._recovery_points.write_soon(self._recovery_point_bytes)

    def refresh_recovery_points(self) -> None:
        """Begin to write the recovery points if one of them moved."""
        self._recovery_points.write_if_changed(self._recovery_point_bytes)

    def save_recovery_points(self, done: Callable[[object], None]) -> None:
        """Write the recovery points; `done` in a later turn, when they are durable, or the directory is offline."""
        self.checkpoint_recovery_points()
        self._recovery_points.when_idle(done)

    def settle_recovery_points(self) -> None:
        """Wait until recovery points that are being written are on the disk, blocking. Raises Failure."""
        self._recovery_points.settle_writes(self._recovery_point_bytes)

    def checkpoint_high_watermarks(self) -> None:
        """Begin to write the high watermarks if one of them moved."""
        self._high_watermarks.write_if_changed(self._high_watermark_bytes)

    def checkpoint_starts(self) -> None:
        """Begin to write the log starts that file names do not show."""
        self._starts.write_starts()

    def take_moved(self) -> None:
        """Take over what moved into the contents of the next writes of log starts and of the cleaner's offsets.

        These two files are written seldom, or never. Without this, what is noted about deleted logs would wait for a
        write, and use memory for each topic that ever was here.
        """
        self._start_text.take_moved(self._home.starts_moved, self._moved_start)
        self._clean_text.take_moved(self._home.cleaned_moved, self._cleaned_until)

    def checkpoint_cleaned(self, tp: TopicPartition) -> None:
        """Begin to write up to which offset a log is clean."""
        self._home.on_log_cleaned(tp)
        self._cleaned.write_soon(self._cleaned_bytes)

    def save_cleaned(self, tp: TopicPartition, done: Callable[[object], None]) -> None:
        """Write up to where a log is clean; `done` in a later turn, when that is durable, or the directory offline."""
        self.checkpoint_cleaned(tp)
        self._cleaned.when_idle(done)

    def _correct_cleaned(self) -> None:
        """Write the cleaner's checkpoint, blocking, if it is wrong about a log. Raises Failure."""
        before = self._noted_clean
        if before != self._cleaned_bytes():
            self.save_cleaned_now()

    def save_cleaned_now(self) -> None:
        """Write the cleaner's checkpoint, blocking. Raises Failure."""
        self._cleaned.write_now(self._cleaned_bytes())

    def _cleaned_bytes(self) -> bytes:
        self._noted_clean = self._clean_text.refresh_offsets(self._home.cleaned_moved, self._cleaned_until)
        return self._noted_clean

    def _cleaned_until(self, tp: TopicPartition) -> int | None:
        log = self._logs.get(tp)
        return None if log is None else log.cleaning.checkpoint

    def save_starts(self, then: Then) -> None:
        """Make the log starts durable, then call back in a later turn."""
        self._starts.save_starts(then)

    def save_starts_now(self) -> None:
        """Write the log starts, blocking. Raises Failure."""
        self._starts.write_now()

    @property
    def starts_changed(self) -> bool:
        """Whether a log start moved since they were written."""
        return self._home.starts_changed

    def _recovery_point_bytes(self) -> bytes:
        return self._point_text.refresh_offsets(self._home.points_moved, self._recovery_point)

    def _recovery_point(self, tp: TopicPartition) -> int | None:
        log = self._find_log(tp)
        # The entry of a missing log is kept: it is the only proof, at the next start, that records were here.
        return self._missing.get(tp) if log is None else log.recovery_point

    def _high_watermark_bytes(self) -> bytes:
        # A copy: `noted_high_watermark` removes logs that are at rest.
        for tp in list(self._home.changed):
            log = self._find_log(tp)
            if log is None:
                del self._home.changed[tp]
            self._mark_text.set_offset(tp, None if log is None else log.noted_high_watermark())
        return self._mark_text.data

    def _start_bytes(self) -> bytes:
        return self._start_text.refresh_offsets(self._home.starts_moved, self._moved_start)

    def _moved_start(self, tp: TopicPartition) -> int | None:
        log = self._find_log(tp)
        if log is None:
            return self._unopened[tp].start_offset or None if tp in self._unopened else None
        return log.start_offset if log.start_is_moved else None
