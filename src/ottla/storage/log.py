"""The log of one partition: segments on disk, and the state kept about them.

Zone: deterministic. Append, read, retention, truncation; `log_files` has the files and their durability. It does not
know replicas: replication sets the high watermark, which only bounds what may be removed. `recovery` opens a log after
a stop.

`append` is the hot path of Produce: one expression decides whether more than writing is due.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CONTROL, MAGIC_V2, patch_offset_and_epoch, put_assigned
from ottla.record.control import Marker
from ottla.record.down_conversion import convert_for_old_topic
from ottla.record.validation import HeaderTuple
from ottla.seams import Done, Failure, Instant, Kind, Region
from ottla.storage.indexes.index import LAST_OFFSET, TimestampOffset
from ottla.storage.indexes.timestamps import offset_for, offset_of_largest
from ottla.storage.indexes.txn_index import AbortedTransaction
from ottla.storage.log_files import LogFiles
from ottla.storage.producers.producer_snapshots import reload_after_cut
from ottla.storage.producers.producer_state import Duplicate, marker_of
from ottla.storage.segments.batch_position_cache import KEPT
from ottla.storage.segments.reader import HOT_BYTES
from ottla.storage.segments.replica_batches import ANY_EPOCH, ReplicaBatch, replica_batches
from ottla.storage.segments.scan import walk_headers
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import create_segment, retire_segment

_TAIL_MAX: Final = 2 * KEPT
_new = tuple.__new__  # a third of the time of the class's own


class Log(LogFiles):
    """The log of one partition. Its plain attributes are read, and `high_watermark` is written, by replication."""

    __slots__ = ()

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
        last = base + header[6]
        timestamp = now.wall_ms if self._append_time else header[8]
        segment, size = self._active, len(view)
        # The active segment takes the batch unless it is too large, out of relative offsets, or too old by timestamp or
        # by the clock. `fence` sets roll_size to -1, so that every special case comes through here as well.
        if (
            segment.size + size > segment.roll_size
            or timestamp > segment.roll_timestamp
            or last > segment.max_offset
            or now.wall_ms > segment.roll_wall_ms
        ):
            segment = self._make_room(size, last, timestamp, is_marker=bool(header[5] & CONTROL))
        if leader_epoch != self.epochs.latest:
            self.epochs.assign_epoch(leader_epoch, base)
        put_assigned(view, 0, base, header[1], leader_epoch)
        try:
            position = segment.file.append((view,))
        except Failure as failure:
            raise self._home.storage_error(failure.as_value()) from failure
        segment.size = position + size  # and what `segment.note` does, in line
        if timestamp > segment.max_timestamp:
            segment.max_timestamp = timestamp
            segment.offset_of_max_timestamp = last
        if segment.bytes_since_index > segment.index_interval:
            segment.add_entry(last, position)
        segment.bytes_since_index += size
        if not position:
            self._first_in_segment(timestamp, now)
        self._tail_offsets.append(base)
        self._tail_positions.append(position)
        if len(self._tail_offsets) > _TAIL_MAX:
            self._newest_positions.trim_older()
        if header[9] >= 0:
            if header[5] & CONTROL:
                self._note_marker(marker or marker_of(view, 0), header, base, now.wall_ms)
            else:
                self.producers.note_batch(header, base, now.wall_ms)
        self.end_offset = last + 1
        if last >= self._flush_policy.next_offset:
            self._flush_policy.on_appended(now)
        return base

    def append_time_of(self, view: memoryview, wall_ms: int) -> int:
        """The LogAppendTime of a batch that is appended now: that of its messages if a worker has converted it."""
        ahead = self.prepared
        return ahead.stamp_ms if ahead is not None and ahead.view is view else wall_ms

    def append_lowered(self, view: memoryview, header: HeaderTuple, leader_epoch: int, _now: Instant) -> int:
        """As `append`, for a log in an older format: converts the batch to messages. Returns their first offset.

        Raises ApiError as `append` and `record.down_conversion` do.
        """
        base = self.end_offset
        self._check_offsets_left(base + header[6])
        patch_offset_and_epoch(view, 0, base, leader_epoch)
        # The conversion of a worker is valid for this very batch at this offset in this format only.
        ahead, self.prepared = self.prepared, None
        if ahead is not None and ahead.view is view and (ahead.base, ahead.magic) == (base, self.magic):
            content = ahead.content
        else:
            content = convert_for_old_topic(view, header, self.magic)
        if len(content) > self.config.segment_bytes:
            text = f"{len(content)} bytes of messages do not fit a segment of {self.config.segment_bytes}"
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE, text)
        if leader_epoch != self.epochs.latest:
            self.epochs.assign_epoch(leader_epoch, base)
        self.append_replica(memoryview(content), check_crc=False)
        return base

    def append_replica(self, view: memoryview, newest_epoch: int = ANY_EPOCH, check_crc: bool = True) -> int:
        """Append batches as a leader of at most `newest_epoch` wrote them: offsets and epochs stay. Returns the end.

        Batches for the same segment are one write. Raises ApiError CORRUPT_MESSAGE when they are damaged or
        do not continue this log, KAFKA_STORAGE_ERROR; whole batches before the error are in the log.
        """
        batches, error = replica_batches(view, self.end_offset, newest_epoch, check_crc)
        start_offset, now, at = self.start_offset, self._home.clock.now(), 0
        if self.epochs_stale and batches:
            self._unfence_appends()
        if batches and batches[0][2][0] < self.end_offset:
            self._begin_within(batches[0][2][0])
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
            raise self._home.storage_error(failure.as_value()) from failure

    def _append_run(self, view: memoryview, batches: list[ReplicaBatch], at: int, now: Instant) -> int:
        """Append as many of the batches from `at` on as one segment takes; returns how many are appended in
        all."""
        segment, (first, end, header) = self._active, batches[at]
        if self._is_full(segment, end - first, header) or now.wall_ms > segment.roll_wall_ms:
            self.end_offset = header[0]
            segment = self._make_room(end - first, header[0] + header[6], header[8])
        until = at + 1
        while segment.size and until < len(batches):  # the first batch of a segment decides when that one is full
            if self._is_full(segment, batches[until][1] - first, batches[until][2]):
                break
            until += 1
        run = batches[at:until]
        try:
            position = segment.write_batches(view[first : run[-1][1]])
        except Failure as failure:
            raise self._home.storage_error(failure.as_value()) from failure
        for start, end, header in run:
            self._note_replica(view, start, end, header, position + start - first, now)
        if not position:
            self._first_in_segment(run[0][2][8], now)
        if len(self._tail_offsets) > _TAIL_MAX:
            self._newest_positions.trim_older()
        if self.end_offset > self._flush_policy.next_offset:
            self._flush_policy.on_appended(now)
        return until

    @staticmethod
    def _is_full(segment: Segment, size: int, header: HeaderTuple) -> bool:
        return (
            segment.size + size > segment.roll_size
            or header[8] > segment.roll_timestamp
            or header[0] + header[6] > segment.max_offset
        )

    def _note_replica(
        self, view: memoryview, start: int, end: int, header: HeaderTuple, position: int, now: Instant
    ) -> None:
        """Index a leader's batch that is in the file, and note its epoch, producer and offsets."""
        base = header[0]
        if header[2] != self.epochs.latest and header[2] >= 0:
            self.epochs.assign_epoch(header[2], base)
        if header[3] < MAGIC_V2 and self.epochs_file.is_due:
            self.write_epochs()  # these messages do not carry their leader epoch: recovery has it from the file only
        self._active.index_batch(position, end - start, base + header[6], header[8])
        self._tail_offsets.append(base)
        self._tail_positions.append(position)
        if header[9] >= 0:
            if header[5] & CONTROL:
                self._note_marker(marker_of(view[start:end], 0), header, base, now.wall_ms)
            else:
                self.producers.note_batch(header, base, now.wall_ms)
        self.end_offset = base + header[6] + 1

    def _make_room(self, size: int, last: int, timestamp: int, is_marker: bool = False) -> Segment:
        """Roll before a batch of `size` bytes that ends at offset `last`; a transaction's end may use the reserve.

        Raises ApiError, RECORD_LIST_TOO_LARGE also where no offsets are left: nothing was written.
        """
        # 1. Refusals for any batch: the directory is offline, or no offsets are left.
        self._home.check_online()
        self._check_offsets_left(last)
        # 2. The first record of a leader's epoch brings the epoch to its file; then the batch may fit without a roll.
        if self.epochs_stale:
            self._unfence_appends()
            self._home.check_online()
            if self._active.has_room(size, last, timestamp, self._home.clock.now().wall_ms):
                return self._active
        # 3. Short of disk space: clients' records are refused, but a marker that ends a transaction is not.
        if self._home.is_short and not self.uses_reserve:
            if not is_marker:
                raise self._home.storage_error(Failure(Kind.FULL))
            if not self._active.is_full and self._active.size + size <= self.config.segment_bytes:
                return self._active
        # 4. The rest is a plain roll, if a new segment can take the batch.
        if size > self.config.segment_bytes:
            raise ApiError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"a batch of {size} bytes does not fit a segment of {self.config.segment_bytes}",
            )
        try:
            self.roll_segment()
        except Failure as failure:
            raise self._home.storage_error(failure.as_value()) from failure
        return self._active

    def _check_offsets_left(self, last: int) -> None:
        """Raises ApiError RECORD_LIST_TOO_LARGE where a batch would end above the largest offset."""
        if last > LAST_OFFSET:
            text = f"{self.tp} ends at offset {self.end_offset}, a batch needs offsets up to {last}: none are left"
            raise ApiError(ErrorCode.RECORD_LIST_TOO_LARGE, f"{text}; write to another partition or topic")

    def _first_in_segment(self, timestamp: int, now: Instant) -> None:
        self._active.first_timestamp = timestamp
        self._arm_active(now.wall_ms)

    def _note_marker(self, marker: Marker | None, header: HeaderTuple, base_offset: int, wall_ms: int) -> None:
        """Note the end of a transaction; an aborted one is added to the transaction index."""
        state, mark = self.producers, self.high_watermark
        aborted = None if marker is None else state.end_transaction(header, base_offset, marker, wall_ms, mark)
        if aborted is not None:
            self._active.txn_index.append(aborted)
            self._active.show_entries()

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(
        self, offset: int, max_bytes: int, limit_offset: int, at_least_one: bool = True, warmed: bool = False
    ) -> Region | None:
        """Whole batches from the one that holds `offset` on, all below `limit_offset`, as a region of a segment file.

        At most `max_bytes`, but one batch in any case when `at_least_one`. None when there is nothing. `warmed`: the
        caller has just warmed the regions of Cold; block rather than raise it again. Raises ApiError
        OFFSET_OUT_OF_RANGE, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR, and Cold.
        """
        if self._home.offline is not None:
            self._home.check_online()
        if offset < self.start_offset or offset > self.end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.tp} has offsets {self.start_offset} to {self.end_offset}, asked for {offset}",
            )
        if offset >= limit_offset:
            return None
        try:
            return self._reader.find_region(offset, max_bytes, limit_offset, self.end_offset, at_least_one, warmed)
        except Failure as failure:
            raise self._home.storage_error(failure.as_value()) from failure

    def read_newest(self, offset: int, max_bytes: int) -> Region | None:
        """As `read` up to the log end, if the positions are known without reading; None: call `read`."""
        slot = bisect_right(self._tail_offsets, offset)
        if not slot or offset >= self.end_offset or offset < self.start_offset or self._home.offline is not None:
            return None
        segment, start = self._active, self._tail_positions[slot - 1]
        size, file = segment.size - start, segment.file
        if size > max_bytes or size > HOT_BYTES or start < segment.hot_from:
            return None
        return _new(Region, (file, start, size, file.generation))

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in [start, end), for a read_committed consumer."""
        return self.segments.aborted_transactions(start_offset, end_offset)

    def lookup_timestamp(self, timestamp: int, done: Done[TimestampOffset | None]) -> None:
        """The first record whose timestamp is ≥ `timestamp`, in a later turn; None when there is none."""
        offset_for(self.segments, self.start_offset, timestamp, done, self._home.workers)

    def max_timestamp_offset(self, done: Done[TimestampOffset | None]) -> None:
        """The first record with the largest timestamp of all, in a later turn; None when there is none."""
        offset_of_largest(self.segments, self.start_offset, done, self._home.workers)

    # -- trimming ------------------------------------------------------------------------------------------------------

    def delete_old_segments(self, now: Instant) -> int:
        """Drop what retention does not keep, oldest first; returns how many segments. Raises ApiError.

        Never above the high watermark, nor above the first record of an open transaction.
        """
        return self._retention.delete_old_segments(now)

    def retention_due_ms(self, now: Instant) -> int | None:
        """The wall time at which retention has to check the log again if it does not change.

        `now` when fewer segments could be removed than should be; None: never.
        """
        return self._retention.due_ms(now)

    def retention_needs_flush(self, now: Instant) -> bool:
        """Whether `delete_old_segments` would begin a segment, and block on the disk for it.

        A `flush` before makes durable what it would wait for.
        """
        return self._retention.needs_flush(now)

    def truncate_to(self, offset: int) -> None:
        """Drop everything from `offset` on, with the whole batch that contains it. Raises Failure, ApiError."""
        if offset >= self.end_offset:
            return
        if offset < self.segments.first.base_offset:
            self.restart_at(offset)
            return
        self.cleaning.finish_exchange()
        slot = self.segments.floor_slot(offset)
        segment = self.segments[slot]
        found = self._reader.find_segment(segment, offset, patient=True)
        end = offset if found is None else min(offset, self._reader.first_offset(segment, found))
        self.prepare_cut(end)
        for gone in reversed(self.segments.drop_from(slot + 1)):
            # The newest first, each before the next, and all before the cut: a power loss must not leave a hole.
            retire_segment(self._home, gone, self.config.file_delete_delay_ms)
            self.disk.sync_now(self.directory)
        # Then the cut of the segment that becomes the active one. If no batch of it shows the new end, an empty segment
        # with that name follows, which is sealed off from the cut one by a sync.
        position = segment.size if found is None else found.position
        fresh = self._beyond_hole(segment, position, end)
        segment.make_appendable(self.config)
        segment.truncate_to(end, position)
        if fresh is not None:
            self.disk.sync_now(segment.path)
            segment.seal_segment()
            self.segments.add_segment(fresh)
        self._reset_end(end)
        self.start_offset = min(self.start_offset, end)
        self.epochs.truncate_from_end(end)
        self._flush.on_truncated(end)
        self._reload_producers()
        if fresh is not None:  # no recovery point from before the cut may cover the indexes of the sealed segment
            self._home.settle_recovery_points()

    def _beyond_hole(self, segment: Segment, position: int, end: int) -> Segment | None:
        """A new segment whose name has the end of the log, if no batch has it: the batches there were compacted away.

        It is durable before the cut. A start that finds it after bytes that are not cut yet drops it.
        """
        told = segment.base_offset
        for _, header in walk_headers(segment.file, segment.index.floor_of_position(position - 1), position):
            told = header[0] + header[6] + 1
        if told >= end:
            return None
        fresh = create_segment(self._home, self.directory, end, self.config)
        self.disk.sync_now(self.directory)
        return fresh

    def restart_at(self, offset: int) -> None:
        """Drop everything and continue at `offset`: a leader no longer has this log's end. Raises Failure."""
        self.prepare_cut(min(offset, self.start_offset))
        for segment in reversed(self.segments.drop_from(0)):
            retire_segment(self._home, segment, self.config.file_delete_delay_ms)
        self.segments.add_segment(create_segment(self._home, self.directory, offset, self.config))
        self._reset_end(offset)
        self.start_offset = self.high_watermark = offset
        self.epochs.clear_entries()
        self._flush.on_restarted(offset)
        self._reload_producers()
        self._home.on_start_moved(self.tp)

    def _reset_end(self, end_offset: int) -> None:
        """Adjust the state in memory to a log that ends at `end_offset`, perhaps in another segment."""
        self._active = self.segments.active
        self._newest_positions.clear_positions()
        self.end_offset = end_offset
        self._flush_policy.on_truncated(end_offset)
        self._home.on_log_changed(self.tp)
        self.high_watermark = min(self.high_watermark, end_offset)
        self._arm_active(self._home.clock.now().wall_ms)
        self._flush.note_names(self.directory)

    def _reload_producers(self) -> None:
        at = (self.start_offset, self.high_watermark, self.end_offset)
        self._snapshot_offset = reload_after_cut(self._home, self.directory, list(self.segments), at, self.producers)
