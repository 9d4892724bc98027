"""What one log directory has of logs that move between directories: copies that come, logs that go (KIP-113).

Zone: deterministic. Names and their order live here; copying is `future_log`'s. A copy is `<partition>.<uuid>-future`,
with a mark in it. When it has all that the log has, it takes the log's name here; the log elsewhere goes once that is
durable, and then only the mark. So at any moment of a stop there is a log with all that was ever acknowledged; where
there are two, `moving.settle` finds the one by its leader epoch and its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.seams import Failure, Kind
from ottla.storage.layout import MOVING, future_dir_name, parse_log_dir
from ottla.storage.log import Log
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.recovery.found_logs import LogMarks
from ottla.storage.recovery.recovery import open_log
from ottla.storage.segments.scan import read_file
from ottla.types import TopicPartition

if TYPE_CHECKING:
    from ottla.storage.log_dir import LogDir


class FutureLogs:
    """The moves of one log directory."""

    __slots__ = ("_dir", "_home", "arrived", "futures", "leaving")

    def __init__(self, home: LogDirContext, directory: LogDir) -> None:
        self._home = home
        self._dir = directory
        self.futures: dict[TopicPartition, Log] = {}
        """Copies that are to take the place of logs in other directories."""
        self.leaving: dict[TopicPartition, Log] = {}
        """Logs whose place was taken so; they stay until their copies are durable."""
        self.arrived: dict[TopicPartition, None] = {}
        """Logs that came from another directory, where something of them may still be."""

    # -- marks ---------------------------------------------------------------------------------------------------------

    def marked(self, directory: str) -> TopicPartition | None:
        """The partition that the mark in a directory names: the directory's own name may be cut short."""
        try:
            return parse_log_dir(read_file(self._home.disk, f"{directory}/{MOVING}").decode("utf-8", "replace").strip())
        except Failure as failure:
            if failure.kind is not Kind.NOT_DONE:
                raise
            return None

    def note_mark(self, tp: TopicPartition) -> None:
        """At start: whether a log came from another directory."""
        if self._home.disk.exists(f"{tp}/{MOVING}"):
            self.arrived[tp] = None

    def settle_down(self, tp: TopicPartition) -> None:
        """Nothing of the log is left in the directory that it came from. Raises Failure."""
        if tp in self.arrived:
            del self.arrived[tp]
            self._home.disk.unlink_now(f"{tp}/{MOVING}")
            self._home.disk.sync_dir(str(tp), self._home.note_failure)

    # -- copies --------------------------------------------------------------------------------------------------------

    def _directory(self, tp: TopicPartition) -> str:
        return future_dir_name(tp, self._home.entropy.octets("future-log", 16).hex())

    def create(self, source: Log, marked: Callable[[], None]) -> Log:
        """An empty copy of a log. `marked` is called when its mark is durable. Raises Failure."""
        tp, directory = source.tp, self._directory(source.tp)
        try:
            self._dir.lay_ghosts(tp)
            self._home.disk.make_dir(directory)
            found = LogMarks(clean=True, start_offset=source.start_offset)
            log = open_log(self._home, tp, directory, source.config, found)
        except Failure as failure:
            self._home.on_failed(failure.as_value())
            raise

        log.topic_id = source.topic_id
        log.write_metadata(lambda: self._mark(log, marked))
        self.futures[tp] = log
        self._home.wake(tp)
        return log

    def _mark(self, copy: Log, marked: Callable[[], None]) -> None:
        """Behind its topic's id: of two logs of one name those with one id are compared, and one that has the mark may
        be the only one that has all."""

        def written(outcome: object) -> None:
            self._home.note_failure(outcome)
            if not isinstance(outcome, Failure):
                marked()

        self._home.disk.replace(f"{copy.directory}/{MOVING}", f"{copy.tp}\n".encode(), written)

    def drop(self, tp: TopicPartition) -> None:
        """The copy is not wanted any more. Raises Failure."""
        log = self.futures.pop(tp)
        self._dir.set_aside(log, self._home.note_failure)
        log.close()

    def promote(self, tp: TopicPartition) -> None:
        """The copy takes the name of the log: from now on it is the log, for whoever starts next, too. Raises Failure.

        That its name is durable, its next flush sees to.
        """
        log = self.futures[tp]
        self._dir.rename(log.directory, str(tp))
        self._dir.logs[tp] = self.futures.pop(tp)
        self.arrived[tp] = None
        log.relocate(str(tp))

    def demote(self, tp: TopicPartition) -> None:
        """Make a copy again of what had just become the log, and is behind the one that it came from. Raises Failure.

        At start, before anybody uses it.
        """
        log, directory = self._dir.logs[tp], self._directory(tp)
        self._dir.rename(log.directory, directory)
        self.futures[tp] = self._dir.logs.pop(tp)
        del self.arrived[tp]
        log.relocate(directory)

    # -- logs that go --------------------------------------------------------------------------------------------------

    def leave(self, tp: TopicPartition) -> Log:
        """A copy elsewhere is the log now; this one stays, unused, until `drop_left`."""
        self.arrived.pop(tp, None)
        log = self.leaving[tp] = self._dir.logs.pop(tp)
        log.cleaning.closed = True
        self._home.wake(tp)
        return log

    def drop_left(self, log: Log, done: Callable[[object], None]) -> None:
        """The copy is durable: this one goes. `done` when a power cut cannot bring it back. Raises Failure.

        Whoever still reads it has the usual time to finish. Nothing is done when it is gone already, with its topic.
        """
        if self.leaving.get(log.tp) is log:
            del self.leaving[log.tp]
            self._dir.set_aside(log, done)
            delay_ns = log.config.file_delete_delay_ms * 1_000_000
            self._home.timers.add(self._home.clock.now().mono_ns + delay_ns, log.close)
