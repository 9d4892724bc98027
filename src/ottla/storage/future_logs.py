"""The logs of one directory that move between directories: copies that arrive, logs that leave (KIP-113).

Zone: deterministic. Names and the order of renames; `future_log` copies. A copy is `<partition>.<uuid>-future`, with a
mark in it. When it has all records, it takes the log's name here; once that is durable, the log elsewhere is removed,
and the mark last. So a stop at any moment leaves a log with all acknowledged records; where it leaves two,
`future_log.settle_moves` chooses by leader epoch and end offset.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.seams import Failure, Kind
from ottla.storage.directory_names import DirectoryNames
from ottla.storage.layout import MOVING, future_dir_name, parse_future_dir, parse_log_dir
from ottla.storage.log import Log
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.recovery.found_logs import LogMarks
from ottla.storage.recovery.recovery import open_log
from ottla.storage.segments.scan import read_file
from ottla.types import TopicPartition


class FutureLogs:
    """The moves of one log directory."""

    __slots__ = ("_home", "_logs", "_names", "arrived", "futures", "replaced")

    def __init__(self, home: LogDirContext, logs: dict[TopicPartition, Log], names: DirectoryNames) -> None:
        """`logs`: those of the directory that are served, by reference: copies become logs, and logs copies."""
        self._home = home
        self._logs = logs
        self._names = names
        self.futures: dict[TopicPartition, Log] = {}
        """Copies that will replace logs in other directories."""
        self.replaced: dict[TopicPartition, Log] = {}
        """Logs that were replaced by copies elsewhere; they stay until the copies are durable."""
        self.arrived: dict[TopicPartition, None] = {}
        """Logs that came from another directory, which may still have files of them."""

    # -- marks ---------------------------------------------------------------------------------------------------------

    def parse_dir(self, directory: str) -> TopicPartition | None:
        """The partition of a `-future` directory: by its name, which may be cut short, else by its mark; None: neither
        names one. Raises Failure."""
        if tp := parse_future_dir(directory):
            return tp
        try:
            return parse_log_dir(read_file(self._home.disk, f"{directory}/{MOVING}").decode("utf-8", "replace").strip())
        except Failure as failure:
            if failure.kind is not Kind.NOT_DONE:
                raise
            return None

    def note_mark(self, tp: TopicPartition) -> None:
        """At start: note a log that came from another directory."""
        if self._home.disk.exists(f"{tp}/{MOVING}"):
            self.arrived[tp] = None

    def remove_mark(self, tp: TopicPartition) -> None:
        """Remove the mark: the directory that the log came from has no files of it any more. Raises Failure."""
        if tp in self.arrived:
            del self.arrived[tp]
            self._home.disk.unlink_now(f"{tp}/{MOVING}")
            self._home.disk.sync_dir(str(tp), self._home.note_failure)

    # -- copies --------------------------------------------------------------------------------------------------------

    def _future_directory(self, tp: TopicPartition) -> str:
        return future_dir_name(tp, self._home.entropy.random_bytes("future-log", 16).hex())

    def create_copy(self, source: Log, marked: Callable[[], None]) -> Log:
        """An empty copy of a log. `marked` is called when its mark is durable. Raises Failure."""
        tp, directory = source.tp, self._future_directory(source.tp)
        try:
            self._names.forget_deleted_log(tp)
            self._home.disk.make_dir(directory)
            found = LogMarks(clean=True, start_offset=source.start_offset)
            log = open_log(self._home, tp, directory, source.config, found)
        except Failure as failure:
            self._home.on_failed(failure.as_value())
            raise

        log.metadata.topic_id = source.metadata.topic_id
        log.metadata.write_topic_id(lambda: self._write_mark(log, marked))
        self.futures[tp] = log
        self._home.on_log_changed(tp)
        return log

    def _write_mark(self, copy: Log, marked: Callable[[], None]) -> None:
        """Write the mark of a copy, after its topic id: of two logs of one partition only those with one topic id are
        compared, and the one with the mark may be the only one that has all records."""

        def written(outcome: object) -> None:
            self._home.note_failure(outcome)
            if not isinstance(outcome, Failure):
                marked()

        self._home.disk.replace_file(f"{copy.metadata.directory}/{MOVING}", f"{copy.tp}\n".encode(), written)

    def drop_copy(self, tp: TopicPartition) -> None:
        """Delete a copy. Raises Failure."""
        log = self.futures.pop(tp)
        self._names.set_aside(log, self._home.note_failure)
        log.close_files()

    def promote_copy(self, tp: TopicPartition) -> None:
        """Give the copy the name of the log: from now on it is the log, also for the next start. Raises Failure.

        Its next flush makes the name durable.
        """
        log = self.futures[tp]
        self._names.rename_directory(log.metadata.directory, str(tp))
        self._logs[tp] = self.futures.pop(tp)
        self.arrived[tp] = None
        log.relocate_files(str(tp))

    def demote_log(self, tp: TopicPartition) -> None:
        """Make a log a copy again: it had just been promoted, and lags the log that it came from. Raises Failure.

        At start, before the log is used.
        """
        log, directory = self._logs[tp], self._future_directory(tp)
        self._names.rename_directory(log.metadata.directory, directory)
        self.futures[tp] = self._logs.pop(tp)
        del self.arrived[tp]
        log.relocate_files(directory)

    # -- logs that leave -----------------------------------------------------------------------------------------------

    def retire_source(self, tp: TopicPartition) -> Log:
        """Take a log out of service, because a copy elsewhere is the log now; it stays until `drop_source`."""
        # If an earlier move had brought the log here, that one is over: this one takes it away.
        self.arrived.pop(tp, None)
        log = self.replaced[tp] = self._logs.pop(tp)
        log.cleaning.closed = True
        self._home.on_log_changed(tp)
        return log

    def drop_source(self, log: Log, done: Callable[[object], None]) -> None:
        """Remove a log whose copy is durable. `done` when a power cut cannot bring it back. Raises Failure.

        Reads in progress have file.delete.delay.ms to finish. Does nothing when the log was removed with its topic.
        """
        if self.replaced.get(log.tp) is log:
            del self.replaced[log.tp]
            self._names.set_aside(log, done)
            delay_ns = log.config.file_delete_delay_ms * 1_000_000
            self._home.timers.add_timer(self._home.clock.now().mono_ns + delay_ns, log.close_files)
