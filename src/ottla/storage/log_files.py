"""The parts of one partition's log: its segments, its small files, and how they are written to the disk.

Zone: deterministic. State, facts, rolling, flushing, a clean stop. `log` appends, reads and trims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Disk, Done, Failure
from ottla.storage.checkpoints import format_partition_metadata, format_snapshot
from ottla.storage.cleaning.cleanable_logs import dirty_start
from ottla.storage.cleaning.state import CleaningState
from ottla.storage.flush import Flush
from ottla.storage.flush_policy import FlushPolicy
from ottla.storage.indexes.leader_epoch_file import EpochsFile
from ottla.storage.indexes.leader_epochs import EpochEntry, LeaderEpochs
from ottla.storage.indexes.txn_index import IndexChecksum
from ottla.storage.indexes.txn_index_checksums import TxnIndexChecksums
from ottla.storage.layout import INCOMPLETE, LEADER_EPOCHS, PARTITION_METADATA, ROOT
from ottla.storage.log_dir_context import CompletionBarrier, LogDirContext
from ottla.storage.log_loss import IncompleteLog, format_loss
from ottla.storage.producers.producer_state import ProducerState
from ottla.storage.producers.snapshot_writing import AT_ONCE, SnapshotWriting
from ottla.storage.retention.retention_enforcer import RetentionEnforcer
from ottla.storage.segments.batch_position_cache import BatchPositionCache
from ottla.storage.segments.reader import LogReader
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import create_segment, discard_segment, snapshot_path
from ottla.storage.segments.segments import SegmentList
from ottla.types import INTERNAL_TOPICS, NO_TIMESTAMP, ZERO_UUID, TopicPartition

UNBOUNDED: Final = 2**63 - 1
"""Above every offset."""


class ConvertedBatch(NamedTuple):
    """A batch that was converted to messages of an older format."""

    view: memoryview
    """The batch; compared by identity."""
    base: int
    """The offset of its first record, if it is appended there."""
    magic: int
    content: bytes
    stamp_ms: int = NO_TIMESTAMP
    """The LogAppendTime in the messages; -1: they have their producer's times."""


class LogFiles:
    """The parts of a log, and how they are written to the disk. Other packages use `Log`."""

    __slots__ = (
        "_active",
        "_append_time",
        "_flush",
        "_flush_policy",
        "_home",
        "_newest_positions",
        "_reader",
        "_retention",
        "_snapshot_offset",
        "_tail_offsets",
        "_tail_positions",
        "_txn_sums",
        "cleaning",
        "closed",
        "config",
        "directory",
        "end_offset",
        "epochs",
        "epochs_file",
        "epochs_stale",
        "high_watermark",
        "loss",
        "magic",
        "prepared",
        "producers",
        "removable_below",
        "segments",
        "start_offset",
        "topic_id",
        "tp",
    )

    def __init__(
        self,
        home: LogDirContext,
        tp: TopicPartition,
        directory: str,
        topic_id: bytes,
        config: TopicConfig,
        segments: SegmentList,
        start_offset: int,
        end_offset: int,
        recovery_point: int,
        epochs: list[EpochEntry],
        producers: ProducerState,
        snapshot_offset: int,
        txn_sums: Mapping[str, IndexChecksum],
    ) -> None:
        """A log of segments that were found (or created) on the disk; the last one is appendable already."""
        self._home = home
        self.tp, self.directory, self.topic_id = tp, directory, topic_id
        self.segments = segments
        self.start_offset = start_offset
        """The first offset that can be read."""
        self.end_offset = end_offset
        """The offset that the next record gets."""
        self.high_watermark = start_offset
        """Set by replication: retention and DeleteRecords stay below it."""
        self.producers = producers
        producers.attach_expiry(home.expiry)
        self.loss: IncompleteLog | None = None  # which durable records it has lost; None: none, or it is excused
        self.cleaning = CleaningState(lambda fresh: self.record_index_checksums((fresh,)))
        self.removable_below = UNBOUNDED
        """Compaction keeps tombstones and markers at or above this offset: another replica may not have them yet. Set
        by replication; the log of an only replica has no such bound."""
        self._active = segments.active
        self._newest_positions = BatchPositionCache()
        self._tail_offsets, self._tail_positions = self._newest_positions.offsets, self._newest_positions.positions
        self._txn_sums = TxnIndexChecksums(home, lambda: self.directory, segments, txn_sums)
        self._retention = RetentionEnforcer(home, self)
        self._reader = LogReader(segments, self._newest_positions, home.scan)
        self.epochs_file = EpochsFile(home, lambda: f"{self.directory}/{LEADER_EPOCHS}")
        point, jobs = min(recovery_point, end_offset), self.epochs_file.write_jobs
        self._flush = Flush(home, tp, segments, point, lambda: self.end_offset, jobs)
        self._flush_policy = FlushPolicy(home, tp, self._flush, config, lambda: self.end_offset)
        self._snapshot_offset = snapshot_offset  # of the newest producer snapshot on the disk
        self.closed = False
        self.epochs_stale = False
        """Whether the epochs differ from the file: an epoch without records is not written, since a start would not
        trust it, and a starting broker leads thousands of logs. The next append writes the file first
        (`_unfence_appends`)."""
        self.epochs = LeaderEpochs(epochs, lambda: self.end_offset, self._save_epochs)
        self.apply_config(config)

    def apply_config(self, config: TopicConfig) -> None:
        """Take a changed configuration; index sizes apply from the next segment on."""
        self.config = config
        self._append_time = config.message_timestamp_type == "LogAppendTime"
        self.prepared: ConvertedBatch | None = None
        """The next batch, converted beforehand to the older format of the log, if there is one."""
        self.magic = config.message_magic
        """The message format that is written; earlier records may be of any format."""
        self._arm_active(self._home.clock.now().wall_ms)
        self._flush_policy.apply_config(config)
        self._home.on_log_changed(self.tp)

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def disk(self) -> Disk:
        """The log directory that holds it."""
        return self._home.disk

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def start_is_moved(self) -> bool:
        """Whether the names of the segments do not show the log start, or may not after a power cut."""
        return self.start_offset > self.segments.first.base_offset or self._retention.dropping > 0

    @property
    def has_durable_names(self) -> bool:
        """Whether the names of its files are durable: a roll need not wait for them."""
        return self._flush.has_durable_names(self.directory)

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable."""
        return self._flush.recovery_point

    @property
    def cleaned_until(self) -> int:
        """Compaction has cleaned the log below this offset; the log start if it never did."""
        return dirty_start(self.cleaning.checkpoint, self.start_offset, self.end_offset)

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open or not yet ended below the high watermark."""
        return self.producers.first_unstable_offset(self.high_watermark)

    @property
    def sync_awaited(self) -> int:
        """Records below it are acknowledged only when they are durable (flush.messages)."""
        return self._flush_policy.awaited_offset

    def noted_high_watermark(self) -> int:
        """The high watermark, for the directory's checkpoint; a log without records above it is not visited again
        before the next append (`LogDirContext.changed`)."""
        if self.high_watermark == self.end_offset:
            self._home.changed.pop(self.tp, None)
            self._home.unchecked[self.tp] = None
            self._flush_policy.note_at_rest()
        return self.high_watermark

    def on_synced(self, tell: Callable[[], None]) -> None:
        """Set `tell` to be called when a flush that acknowledgements may wait for has ended."""
        self._flush_policy.on_synced = tell

    @property
    def offline(self) -> Failure | None:
        """Why its directory is out of service; None when it is in service."""
        return self._home.offline

    def _arm_active(self, now_ms: int) -> None:
        self._active.set_roll_bounds(self.config, now_ms)
        self._active.on_entries = self._home.show_entries_soon
        if self._refuses_appends or self.epochs_stale:
            self.fence_appends()

    @property
    def _refuses_appends(self) -> bool:
        """Whether the directory is offline, or has too little space for this log."""
        return self._home.offline is not None or (self._home.is_short and not self.uses_reserve)

    def rearm_active(self) -> None:
        """Adjust to a directory that has too little space, or enough again."""
        if not self.closed:
            self._arm_active(self._home.clock.now().wall_ms)

    @property
    def uses_reserve(self) -> bool:
        """Whether it may use the disk reserve: the coordinators' offsets and transactions may."""
        return self.tp.topic in INTERNAL_TOPICS

    def fence_appends(self) -> None:
        """Make the next append take the slow path (`Log._make_room`): it is refused there when the directory is
        offline or short of space, or has to write the leader epochs first."""
        self._active.roll_size = -1

    def _unfence_appends(self) -> None:
        """Write the leader epochs before the next records, and let appends take the fast path again."""
        self.settle_epochs()
        if not self._refuses_appends:
            self._active.bound_size(self.config)

    # -- rolling -------------------------------------------------------------------------------------------------------

    def roll_segment(self) -> None:
        """Seal the active segment and begin a new one, unless it is empty. Raises Failure; then nothing has changed.

        The order protects against a power cut: names and a cut of the old segment are durable before the new segment
        exists, and the old one is sealed before the new one is used.
        """
        old, base = self._active, self.end_offset
        if not old.size and old.base_offset == base:
            return
        self._flush.secure_names(self.directory)
        self._flush.sync_cut(old)
        fresh = create_segment(self._home, self.directory, base, self.config)
        try:
            old.seal_segment()
            self.record_index_checksums((old,))
        except Failure:
            discard_segment(self._home, fresh)
            raise
        self.segments.add_segment(fresh)
        self._active = fresh
        self._newest_positions.clear_positions()
        self._arm_active(self._home.clock.now().wall_ms)
        self._flush.note_names(self.directory)
        self.write_snapshot(self._home.note_failure)
        self._flush.request_flush(self._home.note_failure)

    def record_index_checksums(self, segments: Iterable[Segment]) -> None:
        """Record the checksums of the transaction indexes of these segments, which are finished. Raises Failure."""
        self._home.on_log_changed(self.tp)  # they are new, or sealed now
        for segment in segments:
            self._txn_sums.record_checksum(segment)
        self._txn_sums.save_checksums()

    def skip_to(self, offset: int) -> None:
        """Continue at `offset`: the records between were compacted away in the log that is copied. Raises Failure."""
        self.end_offset = offset
        self.roll_segment()

    def write_snapshot(self, done: Callable[[object], None], *, whole: bool = False) -> None:
        """Write the producer state at the log end, so that the next start need not read the log for it.

        With many producers it is written in later turns, unless it has to be `whole` now; then `done` is not called.
        """
        self.producers.end_offset = self.end_offset
        if whole or len(self.producers) <= AT_ONCE:
            self.producers.frozen = None
            self.save_snapshot(self.end_offset, format_snapshot(self.producers.snapshot_entries()), done)
        elif self.producers.frozen is None:
            SnapshotWriting(self, self._home).schedule_step()

    def save_snapshot(self, offset: int, content: bytes, done: Callable[[object], None]) -> None:
        """Begin to write a producer snapshot."""
        self._snapshot_offset = offset
        self.disk.replace_file(snapshot_path(self.directory, offset), content, done)

    # -- durability ----------------------------------------------------------------------------------------------------

    def flush(self, done: Done[int]) -> None:
        """Make everything appended so far durable; `done` gets the recovery point, in a later turn."""
        self._flush_policy.request_flush(done)

    def save_epochs_now(self) -> None:
        """Write the leader epochs to the disk, blocking. Raises Failure."""
        self.epochs_file.write_entries_now(self.epochs.entries)

    def write_epochs(self) -> None:
        """Begin to write the present leader epochs."""
        self.epochs_file.write_entries(self.epochs.entries)

    def begin_epoch(self, epoch: int) -> None:
        """Note that a leader of this epoch writes from the log end on. Its first record writes that to the file."""
        self.epochs_stale = self.epochs.expect_epoch(epoch, self.end_offset) or self.epochs_stale
        if self.epochs_stale:
            self.fence_appends()

    def compare_epochs(self, stored: list[EpochEntry], trusted: bool) -> None:
        """At start: compare the epochs with those in the file.

        If the file is wrong about existing records, and the last stop was not clean, so that another recovery is
        likely, it is written at once; otherwise before the next record.
        """
        entries = list(self.epochs.entries)
        self.epochs_file.take_stored(stored)
        self.epochs_stale = entries != stored
        if not trusted and entries != [entry for entry in stored if entry.start_offset != self.end_offset]:
            self.settle_epochs()
        if self.epochs_stale:
            self.fence_appends()

    def settle_epochs(self) -> None:
        """Before records are appended: write the epochs if the file differs, without an epoch that has no records."""
        if self.epochs_stale:
            self._save_epochs(self.epochs.entries)

    def _save_epochs(self, entries: tuple[EpochEntry, ...]) -> None:
        self.epochs_stale = False
        if not self._flush.active_was_cut:
            self.epochs_file.save_entries(entries)
            return
        # After a cut that may not be durable, a power loss can leave new batches after those that were cut off. Only
        # the start of their epoch distinguishes them (`recovery`), so the epoch is on the disk before they are.
        try:
            self.epochs_file.write_entries_now(entries)
        except Failure as failure:
            self._home.on_failed(failure.as_value())

    def write_metadata(self, then: Callable[[], None] = lambda: None) -> None:
        """Write `partition.metadata`; the names of a log just created become durable with its first flush.

        `then` is called when the topic's id is durable, at once if it has none.
        """

        def written(outcome: object) -> None:
            self._home.note_failure(outcome)
            if not isinstance(outcome, Failure):
                then()

        self._flush.note_names(self.directory, ROOT)
        if self.topic_id == ZERO_UUID:
            then()
            return
        path = f"{self.directory}/{PARTITION_METADATA}"
        self.disk.replace_file(path, format_partition_metadata(self.topic_id), written)

    def mark_incomplete(self, lack: IncompleteLog) -> None:
        """Mark the log, durably, as one that lost records, until `clear_incomplete`. Raises Failure."""
        self.disk.replace_now(f"{self.directory}/{INCOMPLETE}", format_loss(lack))
        self.loss = lack

    def clear_incomplete(self) -> None:
        """Remove the mark of a log that lost records: it begins from another log, or no replica has more.

        Changed names are made durable first: after a power cut the old ones must not come back without the mark.
        Raises Failure.
        """
        self.disk.sync_now(self.directory)
        self.disk.unlink_now(f"{self.directory}/{INCOMPLETE}")
        self.loss = None

    def doubt_durability(self) -> None:
        """Treat the files as not durable until the next flush, because the last stop was not clean."""
        self._flush.note_unsynced_names(self.directory)

    def when_epochs_saved(self, tell: Callable[[object], None]) -> None:
        """Call back in a later turn, once no write of the leader epochs is in progress."""
        if not self.epochs_file.is_writing:
            self.write_epochs()
        self.epochs_file.when_idle(tell)

    def relocate_files(self, directory: str) -> None:
        """Note the new name of the directory. Acknowledgements that wait for the disk wait for the next flush."""
        self.directory = directory
        self._home.on_log_changed(self.tp)
        for segment in self.segments:
            segment.relocate_files(directory)
        self.write_metadata()
        self.write_epochs()
        self._flush_policy.await_all()

    def write_stop_files(self, barrier: CompletionBarrier, epochs_wait: bool = False) -> bool:
        """Write the files that a clean stop needs: snapshot, epochs, checksums of transaction indexes.

        Returns whether `sync_for_stop` has to follow: log or indexes are not durable, or epochs with `epochs_wait` are
        due.
        """
        # A start after a clean stop that finds no snapshot assumes that there are no producers, as Kafka does.
        told = self._snapshot_offset >= 0 or len(self.producers)
        if told and self.end_offset > max(self._snapshot_offset, self.start_offset):
            self.write_snapshot(barrier.add_expected(), whole=True)
        for job in self.epochs_file.write_jobs(begin=not epochs_wait):
            job(barrier.add_expected())
        self._txn_sums.record_active(barrier)
        if self.epochs_file.is_due:
            return True
        return any(segment.has_unsaved_index for segment in self.segments) or not self._flush.is_clean

    def sync_for_stop(self, barrier: CompletionBarrier) -> None:
        """Make log and indexes durable for a clean stop, by syncs of its own."""
        self._flush.request_flush(barrier.add_expected(), everything=True)

    def write_out(self) -> bool:
        """Write everything that is only in memory to the files, so that one sync of the directory makes it durable.

        False: a flush is in flight, which `sync_for_stop` waits for. Raises Failure.
        """
        if not self._flush.is_idle:
            return False
        self._active.close_time_index()
        for segment in self.segments:
            segment.write_out()
        return True

    def on_directory_synced(self) -> None:
        """Note that the whole directory was synced since `write_out`."""
        self._flush.on_directory_synced()

    def close_files(self) -> None:
        """Close all files; nothing may be appended after it. A second call does nothing: a topic may be deleted during
        a shutdown."""
        if self.closed:
            return
        self.closed = self.cleaning.closed = True
        for segment in self.segments:
            segment.close_files()

    def let_go(self) -> None:
        """Close the log of a removed partition, and cut the references of its parts to it.

        The parts refer to each other. The garbage collector of the process does not visit old objects, so reference
        counts have to free them.
        """
        self.close_files()
        end_offset = self.end_offset
        self.cleaning.on_exchanged = _ignore_segment
        self.epochs_file.let_go()
        self._txn_sums.let_go()
        self._retention.let_go()
        self._flush.let_go(end_offset)
        self._flush_policy.let_go(end_offset)
        self.epochs.let_go(end_offset)

    # -- its start -----------------------------------------------------------------------------------------------------

    def set_start_offset(self, offset: int) -> None:
        """Move the log start up to `offset` (DeleteRecords); the next retention check removes files below it.

        Raises ApiError OFFSET_OUT_OF_RANGE above the log end; a smaller offset than the present one changes nothing.
        """
        if offset > self.end_offset:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{self.tp} ends at {self.end_offset}")
        if offset <= self.start_offset:
            return
        self.start_offset = offset
        self.high_watermark = max(self.high_watermark, offset)
        self.epochs.truncate_from_start(offset)
        self._home.on_start_moved(self.tp)

    def prepare_cut(self, offset: int) -> None:
        """Prepare a cut of the log at `offset`: finish an exchange of segments, and lower the cleaner's checkpoint,
        durably, so that it does not cover records that will be written after the cut. Raises Failure.
        """
        self.cleaning.finish_exchange()
        is_less = self.cleaning.note_cut(offset)
        self._home.on_log_cleaned(self.tp)
        if is_less:
            self._home.save_cleaned()


def _ignore_segment(_: Segment) -> None:
    pass
