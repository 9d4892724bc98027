"""Manages all logs of a broker, in all its log directories, and their periodic tasks.

Zone: deterministic. Finds, creates and deletes logs; schedules checkpoints, retention and expiry. Work over all
logs is done a few logs at a time, in idle moments (`background_tasks`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.seams import Clock, Disk, Done, Entropy, Failure, Kind, Workers
from ottla.storage.background_tasks import BackgroundTasks
from ottla.storage.cleaning.cleaner import Cleaner
from ottla.storage.future_log import FutureLog, settle_moves
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_context import CompletionBarrier, SharedContext
from ottla.storage.log_loss import IncompleteLog
from ottla.storage.producers.producer_expiry import ProducerExpiry
from ottla.storage.recovery.found_logs import FoundLog, found_logs
from ottla.storage.recovery.load_progress import LOGS_PER_LINE, LoadProgress
from ottla.storage.retention.disk_reserve import DiskReserve
from ottla.storage.retention.retention_task import RetentionTask
from ottla.storage.segments.scan import HeaderScan
from ottla.storage.timers import Timers
from ottla.types import UNBOUNDED, ZERO_UUID, TopicPartition, uuid_to_text

_logger = logging.getLogger(__name__)


_EXPIRY_PAUSE_NS: Final = 1_000_000
_LETTERS_DAMAGED: Final = 2
_OTHER: Final = 3


class LogManager:
    """The logs of one broker."""

    __slots__ = (
        "_background_tasks",
        "_clock",
        "_config",
        "_deleted_ids",
        "_disk_reserves",
        "_expiry",
        "_retention",
        "bounds_due",
        "cleaner",
        "dirs",
        "removable_at_first",
        "timers",
    )

    def __init__(
        self,
        disks: Sequence[Disk],
        clock: Clock,
        entropy: Entropy,
        config: BrokerConfig,
        on_offline: Callable[[str], None],
        workers: Workers | None = None,
    ) -> None:
        """`on_offline` is called with the name of a directory that goes out of service. Without workers there is no
        compaction."""
        self._clock = clock
        self._config = config
        self.timers = Timers()
        self._expiry = ProducerExpiry()
        self.bounds_due: dict[TopicPartition, None] = {}
        """Partitions whose clean part may have changed since replication last compared it with other replicas'."""
        shared = SharedContext(
            clock, entropy, self.timers, HeaderScan(), workers, self._expiry, self.bounds_due, on_offline
        )
        self.dirs = tuple(LogDir(disk, shared) for disk in disks)
        """One per log directory, in the order of the configuration."""
        self._disk_reserves = [DiskReserve(each.home) for each in self.dirs]
        self._deleted_ids: dict[TopicPartition, bytes] = {}
        """Topic ids of logs that were deleted and are in `LogDir.missing` since."""
        self._background_tasks = BackgroundTasks(clock, self.timers)
        self._retention = RetentionTask(self.dirs, self._background_tasks, clock, self.get_log)
        self.removable_at_first = UNBOUNDED
        """`removable_below` of every loaded log until replication sets it: the cleaner begins at once."""
        self.cleaner = None if workers is None else Cleaner(self.dirs, workers, clock, config)

    # -- directories ---------------------------------------------------------------------------------------------------

    @property
    def offline_dirs(self) -> tuple[str, ...]:
        """Names of the directories that are out of service."""
        return tuple(each.name for each in self.dirs if each.offline is not None)

    def stored_cluster_id(self) -> str | None:
        """The cluster id in the first directory that has one; None when all are new. Raises WrongDirectory, Failure."""
        for each in self.dirs:
            meta = each.read_meta()
            if meta is not None:
                return meta.cluster_id
        return None

    def has_blank_dir(self) -> bool:
        """Whether a readable directory was never claimed: if it replaced another one, that one's logs are lost."""
        for each in self.dirs:
            try:
                if each.offline is None and each.read_meta() is None:
                    return True
            except Failure:
                continue
        return False

    def found_logs(self) -> list[FoundLog]:
        """The logs in the directories, before any is loaded. Raises Failure, CorruptCheckpoint."""
        return found_logs(each.home.disk for each in self.dirs)

    def claim_directories(self, cluster_id: str, node_id: int, check_only: bool = False) -> None:
        """Write `meta.properties` where it is missing (unless only to check), check it elsewhere.

        Raises WrongDirectory. A directory that cannot be read goes offline.
        """
        for each in self.dirs:
            try:
                each.claim_directory(cluster_id, node_id, check_only)
            except Failure as failure:
                each.home.on_failed(Failure(Kind.IO, failure.message or failure.kind.name))

    def apply_config(self, config: BrokerConfig) -> None:
        """Take changed settings of the broker; logs get theirs by `Log.apply_config`."""
        self._config = config
        if self.cleaner is not None:
            self.cleaner.apply_config(config)

    # -- start and stop ------------------------------------------------------------------------------------------------

    def load_logs(
        self,
        topic_config: Callable[[str], TopicConfig],
        progress: Callable[[LoadProgress], None] | None = None,
        is_wanted: Callable[[], bool] | None = None,
    ) -> bool:
        """Open and recover every log, blocking. A directory that fails is offline afterwards, nothing is raised.

        False: `is_wanted` became false and recovery has stopped early; then only `stop` may follow.
        """
        for each in self.dirs:
            if each.offline is None and not each.load_logs(
                topic_config, progress or _log_progress, is_wanted or _is_always_wanted
            ):
                return False
        # After the last directory was loaded: the two logs of an interrupted move are in different ones.
        settle_moves(self.dirs)
        for log in self.online_logs():
            log.removable_below = self.removable_at_first
        self._set_calendar()
        if self.cleaner is not None:
            self.cleaner.start_workers()
        return True

    def stop_logs(self, done: Done[None]) -> None:
        """Flush everything, write checkpoints and snapshots, mark each directory as cleanly stopped. The last call."""
        # Retention, compaction and timers end first: each of them would write, cut or rename files of logs that are
        # being closed.
        self._background_tasks.clear_tasks()
        if self.cleaner is not None:
            self.cleaner.stop_workers()
        self.timers.clear_timers()
        barrier = CompletionBarrier(done)
        working = [each for each in self.dirs if each.offline is None]
        for each in working:
            each.stop_logs(barrier.add_expected())
        # `done` must come in a later turn, also when there is nothing to stop: this sync is a way there.
        if not working:
            self.dirs[0].home.disk.sync_dir("", barrier.add_expected())
        barrier.arm_barrier()

    # -- logs ----------------------------------------------------------------------------------------------------------

    def get_log(self, tp: TopicPartition) -> Log | None:
        """The log of a partition; None when there is none, or its directory is offline."""
        for each in self.dirs:
            log = each.logs.get(tp)
            if log is not None:
                return log if each.offline is None else None
        return None

    def online_logs(self) -> Iterator[Log]:
        """Every log that is in service, directory by directory."""
        for each in self.dirs:
            if each.offline is None:
                yield from each.logs.values()

    def topic_names(self) -> list[str]:
        """Topics that have logs here, or that checkpoints expect here."""
        tps = [log.tp for log in self.online_logs()] + [tp for each in self.dirs for tp in each.missing]
        return list(dict.fromkeys(tp.topic for tp in tps))

    def incomplete_partitions(self, ids: Mapping[str, bytes]) -> list[TopicPartition]:
        """Partitions of these topics, given with their ids, whose records here are not complete.

        The log lost records and was not excused, or belongs to another topic, or is missing although expected.
        """
        logs = [log for log in self.online_logs() if log.tp.topic in ids]
        whole = {
            log.tp
            for log in logs
            if log.metadata.loss is None and _rank_topic_id(log.metadata.topic_id, ids[log.tp.topic]) < _OTHER
        }
        gone = [tp for each in self.dirs for tp in each.missing if tp.topic in ids and self.get_log(tp) is None]
        for tp in gone:
            _logger.error("the log of %s is missing, though a checkpoint shows that it had records", tp)
        return [tp for tp in dict.fromkeys([*(log.tp for log in logs), *gone]) if tp not in whole]

    def forget_missing(self) -> None:
        """Stop to expect missing logs: the controller was informed about them."""
        for each in self.dirs:
            for tp in list(each.missing):
                each.forget_missing(tp)
        self._deleted_ids.clear()

    def adopt_log(self, tp: TopicPartition, topic_id: bytes) -> Log | None:
        """The log of the topic with this id, None when none is in service; logs of others of its name are set aside.

        A topic that is deleted and created again while a directory is offline leaves its old log there (KIP-516), which
        must not be served. Its directory is kept as `-stray`, in case the id is wrong. A log whose id never reached the
        disk, or differs in a letter or two, is taken for the topic's, unless another log has the right id.
        """
        # 1. The log with the best matching id is served. 2. All others of that name are set aside. 3. Copies of other
        #    topics are deleted. 4. A damaged or missing id is written again.
        holders = [each for each in self.dirs if tp in each.logs]
        ranked = [
            (rank, each)
            for each in holders
            if (rank := _rank_topic_id(each.logs[tp].metadata.topic_id, topic_id)) < _OTHER
        ]
        chosen = min(ranked, key=lambda found: found[0])[1] if ranked else None
        for each in holders:
            if each is not chosen:
                self._stray_from(each, tp)
        for each in self.dirs:
            copy = each.moves.futures.get(tp)
            if copy is not None and copy.metadata.topic_id != topic_id:
                self._drop_copies(tp)
        if chosen is None or chosen.offline is not None:
            return None
        log = chosen.logs[tp]
        if log.metadata.topic_id != topic_id:
            if log.metadata.topic_id != ZERO_UUID:
                _logger.error("partition.metadata of %s is damaged, rewriting it with the topic's id", tp)
            log.metadata.topic_id = topic_id
            log.metadata.write_topic_id()
        return log

    @staticmethod
    def _stray_from(directory: LogDir, tp: TopicPartition) -> None:
        try:
            target = directory.set_aside_as_stray(tp)
            text = "the log of %s in %s belongs to an earlier topic of that name, keeping it as %s"
            _logger.warning(text, tp, directory.name, target)
        except Failure as failure:
            _logger.error("cannot set aside the log of %s in %s: %s", tp, directory.name, failure)

    def create_log(
        self, tp: TopicPartition, topic_id: bytes, config: TopicConfig, is_new: bool = True, preferred: str = ""
    ) -> Log:
        """A new log in the preferred directory, else in the one with the fewest logs, if possible one with space.

        Raises Failure: of the disk, or NOT_DONE when the partition exists in an offline directory, or may exist there:
        when it is not new, an offline directory may have its records.
        """
        if not is_new and self.offline_dirs:
            raise Failure(Kind.NOT_DONE, f"{tp} may be in {', '.join(self.offline_dirs)}, which is offline")
        for each in self.dirs:
            if tp in each.logs:
                raise Failure(Kind.NOT_DONE, f"{tp} exists: its directory {each.name} is offline")
        working = [each for each in self.dirs if each.offline is None]
        if not working:
            raise Failure(Kind.IO, "every log directory is offline")
        # From here on the log is created. It is incomplete if a log of the same topic with records was here before and
        # the partition is not new: this replica must not count as in sync with its empty log.
        self._drop_copies(tp)
        had = any([each.forget_missing(tp) for each in self.dirs])  # noqa: C419  all of them forget it
        if self._deleted_ids.pop(tp, topic_id) != topic_id:
            had = False  # what was deleted belonged to another topic of this name
        chosen = next((each for each in working if each.name == preferred), None)
        home = chosen or min(working, key=lambda each: (each.is_short, len(each.logs)))
        log = home.create_log(tp, topic_id, config)
        if had and not is_new:
            log.metadata.mark_incomplete(IncompleteLog.END)
        return log

    def delete_log(self, tp: TopicPartition) -> None:
        """Delete a log: out of service now, its files after file.delete.delay.ms. Raises Failure.

        A log that had records is in `missing` from then on, until `forget_topics` or `create_log`: if the controller
        still has this replica in sync at the next start, the broker reports that the records are lost.
        """
        self._drop_copies(tp)
        self._retention.forget_log(tp)
        for each in self.dirs:
            if tp in each.logs:
                end_offset, topic_id = each.logs[tp].end_offset, each.logs[tp].metadata.topic_id
                each.delete_log(tp)
                # A log without records cannot be missed.
                if end_offset:
                    self._deleted_ids[tp] = topic_id
                    each.missing[tp] = end_offset
                    each.offsets.checkpoint_recovery_points()

    def forget_topics(self, names: Collection[str]) -> None:
        """Stop to expect logs of these topics, which are deleted."""
        self.forget_partitions([tp for each in self.dirs for tp in each.missing if tp.topic in names])

    def forget_partitions(self, tps: Iterable[TopicPartition]) -> None:
        """Stop to expect logs of these partitions, whose topics are deleted."""
        for tp in tps:
            self._deleted_ids.pop(tp, None)
            for each in self.dirs:
                each.forget_missing(tp)

    def _drop_copies(self, tp: TopicPartition) -> None:
        """Delete the copies that moves between directories left of a log."""
        for each in self._working_dirs():
            try:
                if tp in each.moves.futures:
                    each.moves.drop_copy(tp)
                if tp in each.moves.replaced:
                    each.moves.drop_source(each.moves.replaced[tp], _do_nothing)
            except Failure as failure:
                _logger.error("cannot delete a copy of %s in %s: %s", tp, each.name, failure)

    # -- moves between directories -------------------------------------------------------------------------------------

    def find_move(self, tp: TopicPartition) -> FutureLog | None:
        """The move whose copy was found at the start, cut to what it has in common with the log. Raises Failure."""
        begin = next((each for each in self._working_dirs() if tp in each.logs), None)
        end = next((each for each in self._working_dirs() if tp in each.moves.futures), None)
        return None if begin is None or end is None else FutureLog(begin, end, begin.logs[tp])

    def begin_move(self, tp: TopicPartition, target: LogDir) -> FutureLog:
        """Begin to move a log that is served to another directory. Raises Failure; then nothing has changed."""
        begin = next(each for each in self._working_dirs() if tp in each.logs)
        return FutureLog(begin, target, begin.logs[tp])

    def is_moving(self, tp: TopicPartition) -> bool:
        """Whether there is a copy of its log, or the log that was copied: then nothing is compacted.

        Otherwise a copy could have a record but lack the tombstone that deletes it.
        """
        return any(tp in each.moves.futures or tp in each.moves.replaced for each in self.dirs)

    # -- periodic tasks ------------------------------------------------------------------------------------------------

    def next_deadline_ns(self) -> int | None:
        """The next deadline of `run_due`; None when there is none."""
        return self.timers.next_ns

    def run_due(self) -> None:
        """Run the tasks that are due."""
        self.timers.run_due(self._clock.now().mono_ns)

    def run_background(self, budget_ns: int) -> bool:
        """Run background tasks of a few logs; True when more are queued. Logs are counted, as a turn has no clock."""
        del budget_ns
        return self._background_tasks.run_some()

    def _set_calendar(self) -> None:
        config = self._config
        delay_ms = config.log_initial_task_delay_ms  # a broker that runs less than one interval has to delete as well
        self._schedule_every(config.log_retention_check_interval_ms, self._retention.check_logs, delay_ms)
        self._schedule_every(config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._schedule_every(config.log_flush_offset_checkpoint_interval_ms, self._checkpoint_recovery_points)
        self._schedule_every(config.log_flush_start_offset_checkpoint_interval_ms, self._checkpoint_starts)
        self._schedule_every(config.replica_high_watermark_checkpoint_interval_ms, self._checkpoint_high_watermarks)
        if config.ottla_log_dir_reserve_bytes:
            self._check_free_space()

    def _check_free_space(self) -> None:
        reserve = self._config.ottla_log_dir_reserve_bytes
        wait_ms = min(room.check_free_space(reserve) for room in self._disk_reserves)
        self.timers.add_timer(self._clock.now().mono_ns + wait_ms * 1_000_000, self._check_free_space)

    def _schedule_every(self, interval_ms: int, action: Callable[[], None], delay_ms: int | None = None) -> None:
        def again() -> None:
            action()
            self._schedule_every(interval_ms, action)

        wait_ms = interval_ms if delay_ms is None else min(delay_ms, interval_ms)
        self.timers.add_timer(self._clock.now().mono_ns + wait_ms * 1_000_000, again)

    def _working_dirs(self) -> Iterator[LogDir]:
        return (each for each in self.dirs if each.offline is None)

    def _checkpoint_recovery_points(self) -> None:
        for each in self._working_dirs():
            each.offsets.refresh_recovery_points()

    def _checkpoint_starts(self) -> None:
        for each in self._working_dirs():
            if each.offsets.starts_changed:
                each.offsets.checkpoint_starts()
            each.offsets.take_moved()

    def _checkpoint_high_watermarks(self) -> None:
        for each in self._working_dirs():
            each.offsets.checkpoint_high_watermarks()

    def _expire_producers(self) -> None:
        now = self._clock.now()
        # A visit is limited in ids; with more of them due, the next visit comes after a pause in which requests are
        # served, not after the interval of the check.
        if self._expiry.expire_producers(now.wall_ms, self._config.producer_id_expiration_ms):
            self.timers.add_timer(now.mono_ns + _EXPIRY_PAUSE_NS, self._expire_producers)


def _rank_topic_id(stored: bytes, wanted: bytes) -> int:
    """How well a log's topic id matches a topic's; 0 is best. Random ids of two topics never share 20 of 22 letters."""
    if stored == wanted:
        return 0
    if stored == ZERO_UUID:
        return 2
    pairs = zip(uuid_to_text(stored), uuid_to_text(wanted), strict=True)
    return 1 if sum(one != other for one, other in pairs) <= _LETTERS_DAMAGED else _OTHER


def _is_always_wanted() -> bool:
    """The default of `is_wanted`."""
    return True


def _log_progress(progress: LoadProgress) -> None:
    """Log the progress of loading many logs."""
    done, total = progress.logs_done, progress.logs_total
    if total > LOGS_PER_LINE and (done % LOGS_PER_LINE == 0 or done == total):
        text = "%s: loaded %d of %d logs, recovery has read %d bytes"
        _logger.info(text, progress.directory, done, total, progress.bytes_scanned)


def _do_nothing(_: object) -> None:
    """Ignore the outcome: the directory notes a failure by itself."""
