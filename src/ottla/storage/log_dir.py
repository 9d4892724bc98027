"""One log directory: its logs, its checkpoints, and the mark of a clean stop.

Zone: deterministic. Works on the directory as a whole; the manager chooses the directory of a new log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import cache

from ottla.config.topic import TopicConfig
from ottla.seams import Disk, Done, Failure, Kind
from ottla.storage.checkpoints import (
    CorruptCheckpoint,
    MetaProperties,
    format_clean_shutdown,
    format_meta_properties,
    parse_meta_properties,
)
from ottla.storage.clean_shutdown import CleanShutdown, take_clean_mark
from ottla.storage.directory_names import DirectoryNames
from ottla.storage.errors import WrongDirectory
from ottla.storage.future_logs import FutureLogs
from ottla.storage.layout import (
    CLEAN_SHUTDOWN,
    CLEANED_UNTIL,
    FUTURE_DIR,
    HIGH_WATERMARKS,
    LOG_STARTS,
    META_PROPERTIES,
    RECOVERY_POINTS,
    ROOT,
    is_delete_dir,
    parse_log_dir,
)
from ottla.storage.log import Log
from ottla.storage.log_dir_context import CompletionBarrier, LogDirContext, SharedContext
from ottla.storage.offset_checkpoints import OffsetCheckpoints
from ottla.storage.recovery.found_logs import LogMarks
from ottla.storage.recovery.load_progress import LoadProgress
from ottla.storage.recovery.recovery import open_log
from ottla.storage.segments.scan import read_file
from ottla.types import TopicPartition

_logger = logging.getLogger(__name__)


class LogDir:
    """A log directory and the logs in it. Implements `LogDirOwner`."""

    __slots__ = (
        "_clean",
        "_loaded",
        "_names",
        "_unopened",
        "home",
        "logs",
        "missing",
        "moves",
        "offsets",
    )

    def __init__(self, disk: Disk, shared: SharedContext) -> None:
        self.home = home = LogDirContext(disk, shared, self)
        """The context that its logs share."""
        self.logs: dict[TopicPartition, Log] = {}
        self._clean = self._loaded = False
        self._unopened: dict[TopicPartition, LogMarks] = {}
        """The checkpoints' entries of logs that are not loaded yet."""
        self.missing: dict[TopicPartition, int] = {}
        """Recovery points of missing logs: lost, or of deleted topics. Kept until the controller has been informed."""
        self.offsets = OffsetCheckpoints(home, self.logs, self._log_here, self.missing, self._unopened)
        self._names = DirectoryNames(home, self.offsets)
        self.moves = FutureLogs(home, self.logs, self._names)
        """Logs that move to or from other directories."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.home.disk.name

    @property
    def total_and_free_bytes(self) -> tuple[int, int]:
        """Size and free space of its file system, in bytes; -1 where the system does not report them (KIP-827)."""
        disk = self.home.disk
        try:
            return disk.total_bytes(), disk.free_bytes()
        except Failure:
            return -1, -1

    @property
    def is_short(self) -> bool:
        """Whether clients' records are refused for lack of disk space."""
        return self.home.is_short

    @property
    def offline(self) -> Failure | None:
        """Why it is out of service; None while it is in service."""
        return self.home.offline

    def fence_logs(self) -> None:
        """Make the logs refuse appends: the directory is offline."""
        for log in self._all_logs().values():
            log.files.fence_appends()

    def rearm_logs(self) -> None:
        """Apply a change of `is_short` to the logs."""
        now_ms = self.home.clock.now().wall_ms
        for log in self._all_logs().values():
            if not log.closed:
                log.files.arm_active(now_ms)

    def _all_logs(self) -> dict[TopicPartition, Log]:
        """Every log that has a directory here, in the order of their names."""
        logs = {**self.moves.replaced, **self.moves.futures, **self.logs}
        return {tp: logs[tp] for tp in sorted(logs)}

    # -- whose it is ---------------------------------------------------------------------------------------------------

    def read_meta(self) -> MetaProperties | None:
        """The content of meta.properties; None without one. Raises WrongDirectory when it cannot be parsed, Failure."""
        try:
            return parse_meta_properties(read_file(self.home.disk, META_PROPERTIES))
        except CorruptCheckpoint as error:
            raise WrongDirectory(f"{self.name}/{META_PROPERTIES}: {error}") from error
        except Failure as failure:
            if failure.kind is Kind.NOT_DONE:
                return None
            raise

    def claim_directory(self, cluster_id: str, node_id: int, check_only: bool = False) -> None:
        """Make the directory this node's, or check that it is. Raises WrongDirectory, Failure."""
        meta = self.read_meta()
        if meta is None:
            if check_only:
                return
            directory_id = self.home.entropy.random_bytes("directory-id", 16)
            meta = MetaProperties(node_id, cluster_id, directory_id)
            self.home.disk.replace_now(META_PROPERTIES, format_meta_properties(meta, self.home.clock.now().wall_ms))
        if (meta.cluster_id, meta.node_id) != (cluster_id, node_id):
            raise WrongDirectory(
                f"{self.name} belongs to node {meta.node_id} of cluster {meta.cluster_id}, "
                f"this is node {node_id} of cluster {cluster_id}: use another directory, or its own node.id"
            )

    # -- start ---------------------------------------------------------------------------------------------------------

    def load_logs(
        self,
        topic_config: Callable[[str], TopicConfig],
        progress: Callable[[LoadProgress], None],
        is_wanted: Callable[[], bool],
    ) -> bool:
        """Open every log. A failing disk takes the directory offline; nothing is raised for it.

        Recovery stops between two logs when `is_wanted` is false: returns False, and `stop_logs` has to follow. A
        directory that was stopped cleanly is loaded to the end, so that it can be stopped cleanly again."""
        try:
            return self._load_all(topic_config, progress, is_wanted)
        except Failure as failure:
            self.home.on_failed(Failure(Kind.IO, f"loading failed: {failure.message or failure.kind.name}"))
            self.logs.clear()
            self.moves.futures.clear()
            return True

    def _load_all(
        self,
        topic_config: Callable[[str], TopicConfig],
        progress: Callable[[LoadProgress], None],
        is_wanted: Callable[[], bool],
    ) -> bool:
        # A directory that cannot be listed goes offline here, with its mark of a clean stop: once the device works
        # again, no recovery is needed.
        directories = [name[:-1] for name in self.home.disk.list(ROOT) if name.endswith("/")]
        self._clean = take_clean_mark(self.home)
        # Without this each log would have to be synced before its first record: the last process may have cut it.
        durable = not self._clean and self.home.disk.sync_all_now()
        points, marks = self.home.read_offsets(RECOVERY_POINTS), self.home.read_offsets(HIGH_WATERMARKS)
        starts, cleaned = self.home.read_offsets(LOG_STARTS), self.home.read_offsets(CLEANED_UNTIL)
        scanned = 0

        def count(size: int) -> None:
            nonlocal scanned
            scanned += size

        found = dict(self._log_directories(directories))
        config_of = cache(topic_config)
        # 1. An entry without a directory is of a deleted log, or of a lost one: a new log of that name must not inherit
        # it.
        # 2. A recovery point above 0 shows that the log had records, so it is in `missing` until the controller has
        # been informed.
        # 3. `take_stored` comes before the first log is opened: a stop in the middle of loading writes the checkpoints,
        # and the logs that were not opened keep their entries.
        self._names.note_deleted({*points, *marks, *starts, *cleaned}.difference(found))
        self.missing.update({tp: point for tp, point in points.items() if point and tp not in found})
        for tp in found:
            self._unopened[tp] = LogMarks(
                self._clean, points.get(tp, 0), starts.get(tp, 0), marks.get(tp, 0), cleaned.get(tp, 0), durable
            )
        self.offsets.take_stored()
        for done, (tp, directory) in enumerate(found.items()):
            if not self._clean and not is_wanted():
                _logger.warning("%s: stopping recovery after %d of %d logs", self.name, done, len(found))
                return False
            self._open_partition(tp, directory, config_of(tp.topic), self._unopened[tp], count)
            del self._unopened[tp]
            progress(LoadProgress(self.name, done + 1, len(found), scanned))
        self.offsets.take_cleaned(cleaned)
        self._loaded = True
        return True

    def _log_directories(self, names: list[str]) -> Iterator[tuple[TopicPartition, str]]:
        """Partitions and their directories, logs before copies; removes directories of deleted partitions."""
        seen: dict[TopicPartition, None] = {}
        # False sorts before True: a log comes before its copy, so that a duplicate is the copy, which may be removed.
        for name in sorted(names, key=_is_future):
            if is_delete_dir(name):
                self.home.unlink_path(name)
                continue
            tp = self.moves.parse_dir(name) if _is_future(name) else parse_log_dir(name)
            if tp in seen:
                self.home.unlink_path(name)  # a copy of a log in this same directory, or a second copy
            elif tp is not None:
                seen[tp] = None
                yield tp, name

    def _open_partition(
        self, tp: TopicPartition, directory: str, config: TopicConfig, found: LogMarks, scanned: Callable[[int], None]
    ) -> None:
        log = open_log(self.home, tp, directory, config, found, scanned)
        self.home.on_log_changed(tp)
        if _is_future(directory):
            self.moves.futures[tp] = log
        else:
            self.logs[tp] = log
            self.moves.note_mark(tp)
        # Recovery has found records above the recovery point. It cannot tell whether a sync has covered them.
        if log.recovery_point < log.end_offset:
            log.flush(self.home.note_failure)

    # -- logs ----------------------------------------------------------------------------------------------------------

    def create_log(self, tp: TopicPartition, topic_id: bytes, config: TopicConfig) -> Log:
        """A new, empty log. Raises Failure."""
        try:
            self._names.forget_deleted_log(tp)
            is_new = self.home.disk.make_dir(str(tp))
            log = open_log(self.home, tp, str(tp), config, LogMarks(clean=True, is_new=is_new))
        except Failure as failure:
            self.home.on_failed(failure.as_value())
            raise
        log.metadata.topic_id = topic_id
        log.metadata.write_topic_id()
        self.logs[tp] = log
        self.home.on_log_changed(tp)
        return log

    def delete_log(self, tp: TopicPartition) -> None:
        """Take a log out of service: its directory is renamed now and removed later. Raises Failure."""
        self.moves.arrived.pop(tp, None)
        log = self.logs.pop(tp)
        self._names.set_aside(log, self.home.note_failure)
        log.let_go()

    def set_aside_as_stray(self, tp: TopicPartition) -> str:
        """Take a log of another topic out of service; its directory is kept under the name returned. Raises Failure."""
        self.moves.arrived.pop(tp, None)
        log = self.logs.pop(tp)
        target = self._names.set_aside_as_stray(log)
        log.let_go()
        return target

    # -- what the manager has to look at -------------------------------------------------------------------------------

    def forget_missing(self, tp: TopicPartition) -> bool:
        """Stop to expect a log of this partition here; returns whether one was expected."""
        self.home.points_moved[tp] = None
        return self.missing.pop(tp, 0) > 0

    def take_unchecked(self) -> list[Log]:
        """The logs that have changed since the last call."""
        tps = self.home.unchecked | self.home.changed
        self.home.unchecked = {}
        return [self.logs[tp] for tp in tps if tp in self.logs]

    def check_again(self, tp: TopicPartition) -> None:
        """Return a log from the next `take_unchecked`."""
        self.home.unchecked[tp] = None

    def _log_here(self, tp: TopicPartition) -> Log | None:
        """The log whose offsets checkpoints have."""
        return self.logs.get(tp) or self.moves.futures.get(tp) or self.moves.replaced.get(tp)

    # -- stop ----------------------------------------------------------------------------------------------------------

    def stop_logs(self, done: Done[None]) -> None:
        """Write and sync all logs, then the checkpoints, then the mark of a clean stop; `done` in a later turn."""
        CleanShutdown(
            self.home, list(self._all_logs().values()), lambda failure: self._wait_for_checkpoints(failure, done)
        ).begin_shutdown()

    def _wait_for_checkpoints(self, failure: Failure | None, done: Done[None]) -> None:
        """The logs are synced: wait for checkpoints that are being written, also those begun meanwhile."""
        busy = self.offsets.writing_files()
        if not busy:
            self._on_stopped(failure, done)
            return
        barrier = CompletionBarrier(lambda later: self._wait_for_checkpoints(failure or later, done))
        for file in busy:
            file.when_idle(barrier.add_expected())
        barrier.arm_barrier()

    def _on_stopped(self, failure: Failure | None, done: Done[None]) -> None:
        failure = failure or self.home.offline
        if failure is None:
            try:
                self._write_final_checkpoints()
            except Failure as error:
                failure = error.as_value()
        if failure is not None:
            self.home.on_failed(failure)
            _logger.warning("%s was not stopped cleanly, its next start recovers its logs: %s", self.name, failure)
        done(failure)

    def _write_final_checkpoints(self) -> None:
        """The last writes, in this order: a start that finds the mark trusts all other files.

        A directory that was not loaded stays as it was found; one that was loaded in part gets no mark."""
        for log in self._all_logs().values():
            log.close_files()
        if not self._loaded and not self._unopened:
            return
        self.offsets.write_final()
        if self._loaded:
            self.home.disk.replace_now(CLEAN_SHUTDOWN, format_clean_shutdown(-1))


def _is_future(name: str) -> bool:
    return name.endswith(FUTURE_DIR)
