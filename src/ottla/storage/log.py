"""The log of one partition: its offsets, and what is appended to its segments and read from them.

Zone: deterministic. `log_files` has the segment files, `log_metadata` the small files beside them. It does not know
replicas: replication sets the high watermark, which only bounds what may be removed. `recovery` opens a log after a
stop, `retention` removes its oldest segments.

`append` is the hot path of Produce: one expression decides whether more than writing is due.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CONTROL, MAGIC_V2, put_assigned
from ottla.record.control import Marker
from ottla.record.down_conversion import ConvertedBatch
from ottla.record.header_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAGIC,
    MAX_TIMESTAMP,
    PRODUCER_ID,
)
from ottla.record.validation import HeaderTuple
from ottla.seams import Done, Failure, Instant, Kind, Region
from ottla.storage.cleaning.state import CleaningState
from ottla.storage.flush_policy import FlushPolicy
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.log_files import LogFiles
from ottla.storage.log_metadata import LogMetadata, LogOffsets, StoredMetadata
from ottla.storage.producers.producer_state import Duplicate, ProducerState, marker_of
from ottla.storage.producers.snapshot_writing import write_snapshot
from ottla.storage.segments.batch_position_cache import KEPT
from ottla.storage.segments.reader import HOT_BYTES
from ottla.storage.segments.replica_batches import ANY_EPOCH, ReplicaBatch, replica_batches
from ottla.storage.segments.segments import SegmentList
from ottla.types import LAST_OFFSET, UNBOUNDED, TopicPartition

_TAIL_MAX: Final = 2 * KEPT
_new = tuple.__new__  # a third of the time of the class's own


class Log:
    """The log of one partition. Its plain attributes are read, and `high_watermark` is written, by replication."""

    __slots__ = (
        "_append_time",
        "_tail_offsets",
        "_tail_positions",
        "cleaning",
        "closed",
        "config",
        "disk",
        "end_offset",
        "epochs",
        "files",
        "flush_policy",
        "high_watermark",
        "home",
        "magic",
        "metadata",
        "prepared",
        "producers",
        "removable_below",
        "segments",
        "start_offset",
        "tp",
    )

    def __init__(
        self,
        home: LogDirContext,
        tp: TopicPartition,
        directory: str,
        config: TopicConfig,
        segments: SegmentList,
        producers: ProducerState,
        stored: StoredMetadata,
        offsets: LogOffsets,
    ) -> None:
        """A log of segments that were found (or created) on the disk; the last one is appendable already."""
        self.home = home
        self.disk = home.disk
        """The log directory that holds it."""
        self.tp = tp
        self.segments = segments
        self.start_offset = offsets.start
        """The first offset that can be read."""
        self.end_offset = offsets.end
        """The offset that the next record gets."""
        self.high_watermark = offsets.start
        """Set by replication: retention and DeleteRecords stay below it."""
        self.producers = producers
        producers.attach_expiry(home.expiry)
        self.removable_below = UNBOUNDED
        """Compaction keeps tombstones and markers at or above this offset: another replica may not have them yet. Set
        by replication; the log of an only replica has no such bound."""
        point = min(offsets.recovery_point, offsets.end)
        metadata = LogMetadata(home, tp, directory, stored, segments, point, lambda: self.end_offset)
        self.metadata = metadata
        self.epochs = metadata.epochs
        self.files = LogFiles(home, tp, config, segments, metadata)
        positions = self.files.positions
        self._tail_offsets, self._tail_positions = positions.offsets, positions.positions
        self.cleaning = CleaningState(lambda fresh: metadata.record_index_checksums((fresh,)))
        self.flush_policy = FlushPolicy(home, tp, metadata.flush, config, lambda: self.end_offset)
        self.closed = False
        self.apply_config(config)

    def apply_config(self, config: TopicConfig) -> None:
        """Take a changed configuration; index sizes apply from the next segment on."""
        self.config = config
        self._append_time = config.message_timestamp_type == "LogAppendTime"
        self.prepared: ConvertedBatch | None = None
        """The next batch, converted beforehand to the older format of the log, if there is one."""
        self.magic = config.message_magic
        """The message format that is written; earlier records may be of any format."""
        self.files.apply_config(config)
        self.flush_policy.apply_config(config)
        self.home.on_log_changed(self.tp)

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def recovery_point(self) -> int:
        """Everything below it is durable."""
        return self.metadata.flush.recovery_point

    @property
    def cleaned_until(self) -> int:
        """Compaction has cleaned the log below this offset; the log start if it never did."""
        return self.cleaning.clean_until(self.start_offset, self.end_offset)

    def note_bound_due(self) -> None:
        """Note that `removable_below` has to be computed or reported again."""
        self.home.bounds_due[self.tp] = None

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the oldest transaction begins that is open or not yet ended below the high watermark."""
        return self.producers.first_unstable_offset(self.high_watermark)

    def noted_high_watermark(self) -> int:
        """The high watermark, for the directory's checkpoint; a log without records above it is not visited again
        before the next append (`LogDirContext.changed`)."""
        if self.high_watermark == self.end_offset:
            self.home.changed.pop(self.tp, None)
            self.home.unchecked[self.tp] = None
            self.flush_policy.note_at_rest()
        return self.high_watermark

    def begin_epoch(self, epoch: int) -> None:
        """Note that a leader of this epoch writes from the log end on. Its first record writes that to the file."""
        self.metadata.expect_epoch(epoch, self.end_offset)
        if self.metadata.epochs_stale:
            self.files.fence_appends()

    # -- appending -----------------------------------------------------------------------------------------------------

    def check_producer(self, header: HeaderTuple) -> Duplicate | None:
        """Whether an idempotent producer's batch is new: None, or where it already is.

        Raises ApiError INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER, DUPLICATE_SEQUENCE_NUMBER (KIP-98).
        """
        return self.producers.check_batch(header)

    def append(
        self, view: memoryview, header: HeaderTuple, leader_epoch: int, now: Instant, marker: Marker | None = None
    ) -> int:
        """Append the one batch that fills `view`; returns the offset of its first record.

        Offset and leader epoch are patched into `view`, which is borrowed for the call. With LogAppendTime the caller
        has stamped it with `now`. `marker`: the content of a control batch, if known. Raises ApiError
        KAFKA_STORAGE_ERROR (nothing was written), RECORD_LIST_TOO_LARGE (more than a segment holds,
        or no offsets are left).
        """
        base = self.end_offset
        last = base + header[LAST_OFFSET_DELTA]
        timestamp = now.wall_ms if self._append_time else header[MAX_TIMESTAMP]
        segment, size = self.files.active, len(view)
        # The active segment takes the batch unless it is too large, out of relative offsets, or too old by timestamp or
        # by the clock. `fence` sets roll_size to -1, so that every special case comes through here as well.
        if (
            segment.size + size > segment.roll_size
            or timestamp > segment.roll_timestamp
            or last > segment.max_offset
            or now.wall_ms > segment.roll_wall_ms
        ):
            self._make_room(size, last, timestamp, is_marker=bool(header[ATTRIBUTES] & CONTROL))
            segment = self.files.active
        if leader_epoch != self.epochs.latest:
            self.epochs.assign_epoch(leader_epoch, base)
        put_assigned(view, 0, base, header[BATCH_LENGTH], leader_epoch)
        try:
            position = segment.file.append((view,))
        except Failure as failure:
            raise self.home.storage_error(failure.as_value()) from failure
        segment.size = position + size  # and what `segment.note` does, in line
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.offset_of_max_timestamp = last
        if segment.bytes_since_index > segment.index_interval:
            segment.add_entry(last, position)
        segment.bytes_since_index += size
        if not position:
            segment.first_timestamp = timestamp
            self.files.arm_active(now.wall_ms)
        self._tail_offsets.append(base)
        self._tail_positions.append(position)
        if len(self._tail_offsets) > _TAIL_MAX:
            self.files.positions.trim_older()
        if header[PRODUCER_ID] >= 0:
            if header[ATTRIBUTES] & CONTROL:
                self._note_marker(marker or marker_of(view, 0), header, base, now.wall_ms)
            else:
                self.producers.note_batch(header, base, now.wall_ms)
        self.end_offset = last + 1
        if last >= self.flush_policy.next_offset:
            self.flush_policy.on_appended(now)
        return base

    def append_replica(self, view: memoryview, newest_epoch: int = ANY_EPOCH, check_crc: bool = True) -> int:
        """Append batches as a leader of at most `newest_epoch` wrote them: offsets and epochs stay. Returns the end.

        Batches for the same segment are one write. Raises ApiError CORRUPT_MESSAGE when they are damaged or do not
        continue this log, KAFKA_STORAGE_ERROR; whole batches before the error are in the log."""
        batches, error = replica_batches(view, self.end_offset, newest_epoch, check_crc)
        start_offset, now, at = self.start_offset, self.home.clock.now(), 0
        if self.metadata.epochs_stale and batches:
            self.files.unfence_appends()
        if batches and batches[0][2][BASE_OFFSET] < self.end_offset:
            self._begin_within(batches[0][2][BASE_OFFSET])
        while at < len(batches):
            at = self._append_run(view, batches, at, now)
        self.set_start_offset(start_offset)
        if error is not None:
            raise error
        return self.end_offset

    def _begin_within(self, base: int) -> None:
        """Restart an empty log at `base`, below its start, as after DeleteRecords into the middle of a batch."""
        if self.end_offset != self.start_offset:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.tp} ends at {self.end_offset}, got offset {base}")
        try:
            self.restart_at(base)
        except Failure as failure:
            raise self.home.storage_error(failure.as_value()) from failure

    def _append_run(self, view: memoryview, batches: list[ReplicaBatch], at: int, now: Instant) -> int:
        """Append the batches from `at` on that one segment takes. Returns the index of the next batch."""
        segment, (first, end, header) = self.files.active, batches[at]
        last = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
        if not segment.has_room(end - first, last, header[MAX_TIMESTAMP], now.wall_ms):
            self.end_offset = header[BASE_OFFSET]
            self._make_room(end - first, last, header[MAX_TIMESTAMP])
            segment = self.files.active
        until = at + 1
        while segment.size and until < len(batches):  # the first batch of a segment decides when that one is full
            _, end, header = batches[until]
            last = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
            if not segment.has_room(end - first, last, header[MAX_TIMESTAMP], now.wall_ms):
                break
            until += 1
        run = batches[at:until]
        try:
            position = segment.write_batches(view[first : run[-1][1]])
        except Failure as failure:
            raise self.home.storage_error(failure.as_value()) from failure
        for start, end, header in run:
            self._note_replica(view, start, end, header, position + start - first, now)
        if not position:
            segment.first_timestamp = run[0][2][MAX_TIMESTAMP]
            self.files.arm_active(now.wall_ms)
        if len(self._tail_offsets) > _TAIL_MAX:
            self.files.positions.trim_older()
        if self.end_offset > self.flush_policy.next_offset:
            self.flush_policy.on_appended(now)
        return until

    def _note_replica(self, view: memoryview, start: int, end: int, header: HeaderTuple, at: int, now: Instant) -> None:
        """Index a leader's batch that is in the file, and note its epoch, producer and offsets."""
        base = header[BASE_OFFSET]
        if header[LEADER_EPOCH] != self.epochs.latest and header[LEADER_EPOCH] >= 0:
            self.epochs.assign_epoch(header[LEADER_EPOCH], base)
        if header[MAGIC] < MAGIC_V2 and self.metadata.epochs_file.is_due:
            # These messages do not carry their leader epoch: recovery has it from the file only.
            self.metadata.write_epochs()
        self.files.active.index_batch(at, end - start, base + header[LAST_OFFSET_DELTA], header[MAX_TIMESTAMP])
        self._tail_offsets.append(base)
        self._tail_positions.append(at)
        if header[PRODUCER_ID] >= 0:
            if header[ATTRIBUTES] & CONTROL:
                self._note_marker(marker_of(view[start:end], 0), header, base, now.wall_ms)
            else:
                self.producers.note_batch(header, base, now.wall_ms)
        self.end_offset = base + header[LAST_OFFSET_DELTA] + 1

    def _make_room(self, size: int, last: int, timestamp: int, is_marker: bool = False) -> None:
        """Roll before a batch of `size` bytes that ends at offset `last`; a transaction's end may use the reserve.

        Raises ApiError, RECORD_LIST_TOO_LARGE also where no offsets are left: nothing was written.
        """
        # 1. Refusals for any batch: the directory is offline, or no offsets are left.
        self.home.check_online()
        self.check_offsets_left(last)
        # 2. The first record of a leader's epoch brings the epoch to its file; then the batch may fit without a roll.
        if self.metadata.epochs_stale:
            self.files.unfence_appends()
            self.home.check_online()
            if self.files.active.has_room(size, last, timestamp, self.home.clock.now().wall_ms):
                return
        # 3. Short of disk space: clients' records are refused, but a marker that ends a transaction is not.
        if self.home.is_short and not self.files.uses_reserve:
            if not is_marker:
                raise self.home.storage_error(Failure(Kind.FULL))
            if not self.files.active.is_full and self.files.active.size + size <= self.config.segment_bytes:
                return
        # 4. The rest is a plain roll, if a new segment can take the batch.
        if size > self.config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes does not fit a segment of {self.config.segment_bytes}",
            )
        try:
            self.roll_segment()
        except Failure as failure:
            raise self.home.storage_error(failure.as_value()) from failure

    def check_offsets_left(self, last: int) -> None:
        """Raises ApiError RECORD_LIST_TOO_LARGE where a batch would end above the largest offset."""
        if last > LAST_OFFSET:
            text = f"{self.tp} ends at offset {self.end_offset}, a batch needs offsets up to {last}: none are left"
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{text}; write to another partition or topic")

    def _note_marker(self, marker: Marker | None, header: HeaderTuple, base_offset: int, wall_ms: int) -> None:
        """Note the end of a transaction; an aborted one is added to the transaction index."""
        state, mark = self.producers, self.high_watermark
        aborted = None if marker is None else state.end_transaction(header, base_offset, marker, wall_ms, mark)
        if aborted is not None:
            self.files.active.txn_index.append(aborted)
            self.files.active.show_entries()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True, warmed: bool = False
    ) -> Region | None:
        """Whole batches from the one that holds `offset` on, all below `limit_offset`, as a region of a segment file.

        At most `max_bytes`, but one batch in any case when `at_least_one`. None when there is nothing. `warmed`: the
        caller has just warmed the regions of Cold; block rather than raise it again. Raises ApiError
        OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, and Cold.
        """
        if self.home.offline is not None:
            self.home.check_online()
        if offset < self.start_offset or offset > self.end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.tp} has offsets {self.start_offset} to {self.end_offset}, asked for {offset}",
            )
        if offset >= limit_offset:
            return None
        try:
            return self.files.reader.find_region(offset, max_bytes, limit_offset, self.end_offset, at_least_one, warmed)
        except Failure as failure:
            raise self.home.storage_error(failure.as_value()) from failure

    def read_newest(self, offset: int, max_bytes: int) -> Region | None:
        """As `read` up to the log end, if the positions are known without reading; None: call `read`."""
        slot = bisect_right(self._tail_offsets, offset)
        if not slot or offset >= self.end_offset or offset < self.start_offset or self.home.offline is not None:
            return None
        segment, start = self.files.active, self._tail_positions[slot - 1]
        size, file = segment.size - start, segment.file
        if size > max_bytes or size > HOT_BYTES or start < segment.hot_from:
            return None
        return _new(Region, (file, start, size, file.generation))

    # -- its end -------------------------------------------------------------------------------------------------------

    def roll_segment(self) -> None:
        """Seal the active segment and begin a new one, unless it is empty. Raises Failure; then nothing has changed."""
        if self.files.roll_segment(self.end_offset):
            write_snapshot(self.home, self, self.metadata.save_snapshot, self.home.note_failure)
            self.metadata.flush.request_flush(self.home.note_failure)

    def flush(self, done: Done[int]) -> None:
        """Make everything appended so far durable; `done` gets the recovery point, in a later turn."""
        self.flush_policy.request_flush(done)

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on, with the whole batch that contains it. Raises Failure, ApiError."""
        # 1. Nothing to drop. 2. Everything, because the log begins above.
        if offset >= self.end_offset:
            return
        if offset < self.segments.first.base_offset:
            self.restart_at(offset)
            return
        # 3. The files first; what the log knows about them follows once that has succeeded.
        self.cleaning.finish_exchange()
        cut = self.files.find_cut(offset)
        end = cut.end_offset
        self._prepare_cut(end)
        seals = self.files.cut_segments(cut)
        self._reset_end(end)
        self.start_offset = min(self.start_offset, end)
        self.epochs.truncate_from_end(end)
        self.metadata.flush.on_truncated(end)
        self._reload_producers()
        if seals:  # no recovery point from before the cut may cover the indexes of the sealed segment
            self.home.settle_recovery_points()

    def restart_at(self, offset: int) -> None:
        """Drop everything and continue at `offset`: a leader no longer has this log's end. Raises Failure."""
        self._prepare_cut(min(offset, self.start_offset))
        self.files.replace_all(offset)
        self._reset_end(offset)
        self.start_offset = self.high_watermark = offset
        self.epochs.clear_entries()
        self.metadata.flush.on_restarted(offset)
        self._reload_producers()
        self.home.on_start_moved(self.tp)

    def _prepare_cut(self, offset: int) -> None:
        """Prepare a cut of the log at `offset`: finish an exchange of segments, and lower the cleaner's checkpoint,
        durably, so that it does not cover records that will be written after the cut. Raises Failure.
        """
        self.cleaning.finish_exchange()
        is_less = self.cleaning.note_cut(offset)
        self.home.on_log_cleaned(self.tp)
        if is_less:
            self.home.save_cleaned()

    def _reset_end(self, end_offset: int) -> None:
        """Adjust the state in memory to a log that ends at `end_offset`, perhaps in another segment."""
        self.end_offset = end_offset
        self.files.use_last()
        self.flush_policy.on_truncated(end_offset)
        self.home.on_log_changed(self.tp)
        self.high_watermark = min(self.high_watermark, end_offset)

    def _reload_producers(self) -> None:
        marks = (self.start_offset, self.high_watermark, self.end_offset)
        self.metadata.reload_snapshots(list(self.segments), marks, self.producers)

    def relocate_files(self, directory: str) -> None:
        """Note the new name of the directory. Acknowledgements that wait for the disk wait for the next flush."""
        self.home.on_log_changed(self.tp)
        self.files.relocate_files(directory)
        self.metadata.relocate_files(directory)
        self.flush_policy.await_all()

    def close_files(self) -> None:
        """Close all files; nothing may be appended after it. A second call does nothing: a topic may be deleted during
        a shutdown."""
        if not self.closed:
            self.closed = self.cleaning.closed = True
            self.files.close_files()

    def let_go(self) -> None:
        """Close the log of a removed partition, and cut the references of its parts to it.

        The parts refer to each other. The garbage collector of the process does not visit old objects, so reference
        counts have to free them.
        """
        self.close_files()
        self.cleaning.on_exchanged = _ignore_segment
        self.metadata.let_go(self.end_offset)
        self.flush_policy.let_go(self.end_offset)

    # -- its start -----------------------------------------------------------------------------------------------------

    @property
    def start_is_moved(self) -> bool:
        """Whether the names of the segments do not show the log start, or may not after a power cut."""
        return self.start_offset > self.segments.first.base_offset or self.files.removals > 0

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
        self.home.on_start_moved(self.tp)


def _ignore_segment(_: object) -> None:
    """Ignore an exchange of segments: the log was removed."""
