"""Opens a log after a stop, and recovers it if the stop was not clean.

Zone: deterministic. Blocking reads, at start only. After a clean stop files are trusted after a check of their ends.
After any other stop the log is read from the segment of the recovery point on: the first bytes that are not a whole
batch with the right checksum, and everything after them, are cut off; indexes, producer state and leader epochs are
rebuilt from the rest. Records below the recovery point were durable, and are trusted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from ottla.config.topic import TopicConfig
from ottla.storage.indexes.txn_index_checksums import index_file_name
from ottla.storage.log import Log
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.log_loss import IncompleteLog
from ottla.storage.log_metadata import LogOffsets, StoredMetadata
from ottla.storage.producers.producer_snapshots import (
    load_newest,
    prune_snapshots,
    replay_to,
    snapshot_offsets,
    sufficient_snapshot_offset,
)
from ottla.storage.recovery.found_logs import LogMarks
from ottla.storage.recovery.index_rebuild import indexes_sane, load_active, rebuild_beside
from ottla.storage.recovery.sanity_check import (
    active_offsets_rise,
    epochs_begin_late,
    epochs_match,
    epochs_of,
    find_edge_fault,
    snapshot_matches,
    txn_index_matches,
)
from ottla.storage.recovery.segment_replay import MAX_OFFSET, SegmentReplay
from ottla.storage.recovery.segment_splitting import split_at, split_sealed
from ottla.storage.recovery.stored_files import StoredFiles
from ottla.storage.recovery.valid_prefix import valid_batches
from ottla.storage.retention.retention import before_start
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import create_segment, draw_jitter, retire_segment, snapshot_path
from ottla.storage.segments.segments import SegmentList
from ottla.types import TopicPartition

_logger = logging.getLogger(__name__)


def open_log(
    home: LogDirContext,
    tp: TopicPartition,
    directory: str,
    config: TopicConfig,
    found: LogMarks,
    scanned: Callable[[int], None] = lambda _: None,
) -> Log:
    """The log in `directory`, ready to be appended to; an empty directory gives an empty log.

    `scanned` gets the number of bytes that recovery reads. Raises Failure."""
    opening = _Opening(home, tp, directory, config, found, scanned)
    try:
        return opening.build_log()
    finally:
        opening.replay.epochs.let_go(0)  # it refers to `opening`


class _Opening:
    """One log that is being opened."""

    def __init__(
        self,
        home: LogDirContext,
        tp: TopicPartition,
        directory: str,
        config: TopicConfig,
        found: LogMarks,
        scanned: Callable[[int], None],
    ) -> None:
        self.home = home
        self.tp = tp
        self.directory = directory
        self.config = config
        self.found = found
        self.files = StoredFiles(home, directory, found.is_new)
        self.snapshots = snapshot_offsets(self.files.names)
        self.replay = SegmentReplay(home, config, self.files.epochs, scanned)
        self.segments: list[Segment] = []
        self.recovery_point = found.recovery_point
        self.hole = MAX_OFFSET
        """The first offset missing between two segments that were read: by compaction, or by a power loss."""
        self.renamed = False
        """Whether names in the directory have changed: they are synced before the log is used."""

    # -- the whole -------------------------------------------------------------------------------------------------

    def build_log(self) -> Log:
        """Open the segments, recover them if necessary, and create the log."""
        self.segments = [
            Segment(self.home.disk, self.directory, base, self.config) for base in self.files.segment_bases()
        ]
        # The start is corrected before segments are dropped by it: a wrong one would remove records.
        self._check_start()
        self._drop_below_start()
        if not self.segments:
            self._begin_at(self.found.start_offset)
        elif self.found.clean:
            split_sealed(self.home, self.segments, self.config)
            self._trust_files()
        else:
            split_sealed(self.home, self.segments, self.config)
            self._recover_log()
        # Records below the recovery point were on the disk, those below the high watermark on all in-sync replicas. A
        # log that ends below one of them has lost some.
        if self.replay.end_offset < max(self.found.recovery_point, self.found.high_watermark):
            self.files.note_loss(IncompleteLog.END)
        if self.found.start_offset > self.replay.end_offset:
            self._start_above_end()
        self.replay.epochs.truncate_from_end(self.replay.end_offset)
        self._check_epochs()
        if self.renamed:
            self.home.disk.sync_now(self.directory)
        return self._assemble_log()

    def _assemble_log(self) -> Log:
        start_offset = max(self.found.start_offset, self.segments[0].base_offset)
        self.replay.epochs.truncate_from_start(start_offset)
        self.replay.epochs.truncate_from_end(self.replay.end_offset)
        bases = [segment.base_offset for segment in self.segments]
        prune_snapshots(self.home, self.directory, self.snapshots, bases)
        self.segments[-1].jitter_ms = draw_jitter(self.home, self.config)
        load_active(self.segments[-1])
        topic_id = self.files.read_topic_id()
        snapshot_offset = max((offset for offset in self.snapshots if offset <= self.replay.end_offset), default=-1)
        log = Log(
            self.home, self.tp, self.directory, self.config, SegmentList(self.segments), self.replay.state,
            StoredMetadata(topic_id, list(self.replay.epochs.entries), snapshot_offset, self.files.txn_sums),
            LogOffsets(start_offset, self.replay.end_offset, self.recovery_point),
        )  # fmt: skip
        log.metadata.loss = self.files.loss
        if not self.found.clean and not self.found.durable:  # until the next flush
            log.metadata.flush.note_unsynced_names(self.directory)
        # Its checkpoint may be older than the log start, and newer than a cut.
        log.high_watermark = min(max(self.found.high_watermark, start_offset), self.replay.end_offset)
        log.metadata.compare_epochs(self.files.epochs, self.replay.end_offset, trusted=self.found.clean)
        if log.metadata.epochs_stale:
            log.files.fence_appends()
        if self.files.has_aborted or self.replay.has_aborted or self.files.txn_sums:
            log.metadata.record_index_checksums(self.segments[:-1])
        for segment in self.segments:
            segment.release_files()
        return log

    def _check_start(self) -> None:
        """Correct an impossible log start, which is damage, so that it does not hide records.

        After a clean stop everything is durable, so a start beyond that is wrong. And leader epochs begin where the log
        begins: if they begin below, and the records between exist, these were not deleted. After any other stop the
        epochs may be older than the start, since a flush writes them."""
        start, durable = self.found.start_offset, max(self.found.recovery_point, self.found.high_watermark)
        first = self.segments[0].base_offset if self.segments else durable
        if self.found.clean and 0 < durable < start:
            text = "%s: log start offset %d is beyond the log end %d of the clean stop, using %d"
            _logger.error(text, self.tp, start, durable, first)
            self.found = self.found._replace(start_offset=first)
        elif self.found.clean and self.segments and first <= (begin := self._first_stored_epoch(start)) < start:
            _logger.error("%s: log start offset %d is wrong, using the first leader epoch's %d", self.tp, start, begin)
            self.found = self.found._replace(start_offset=begin)

    def _first_stored_epoch(self, default: int) -> int:
        return self.files.epochs[0].start_offset if self.files.epochs else default

    def _drop_below_start(self) -> None:
        """Drop segments wholly below the log start: they were about to be removed, and flushes left them out."""
        count = before_start([segment.base_offset for segment in self.segments], self.found.start_offset)
        for segment in self.segments[:count]:
            retire_segment(self.home, segment, 0)
        del self.segments[:count]
        self.renamed = self.renamed or count > 0

    def _begin_at(self, offset: int) -> None:
        self.segments = [create_segment(self.home, self.directory, offset, self.config, self.found.is_new)]
        self.renamed = self.renamed or not self.found.clean
        self.replay.end_offset = self.replay.state.end_offset = offset
        self._drop_snapshots()

    def _start_above_end(self) -> None:
        """The log start is above everything that survived: begin there, as the records below it were deleted.

        The file of log starts may be damaged instead, which cannot be detected here, so this is logged."""
        text = "%s: log start offset %d is above the end %d of the records that survived, dropping all of them"
        _logger.warning(text, self.tp, self.found.start_offset, self.replay.end_offset)
        self.files.note_loss(IncompleteLog.WITHIN)
        for segment in self.segments:
            retire_segment(self.home, segment, 0)
        self.renamed = True
        self.replay.forget_producers()
        self._begin_at(self.found.start_offset)

    # -- after a clean stop ----------------------------------------------------------------------------------------

    def _trust_files(self) -> None:
        """Trust the files; a segment whose indexes or end are impossible is still read."""
        self._check_ends(len(self.segments) - 1)
        active = self.segments[-1]
        if not self._indexes_right(active, MAX_OFFSET):
            _logger.warning("%s: indexes of %s do not match it, rebuilding them", self.tp, active.path)
            self._recover_from(len(self.segments) - 1)
            return
        active.make_appendable(self.config)
        end, self.replay.end_offset = active.walk_tail()
        right = end == active.size and active_offsets_rise(active) and self.replay.end_offset <= active.max_offset + 1
        if not right:
            _logger.warning("%s: %s does not end with a valid batch, recovering it", self.tp, active.path)
            self._recover_from(len(self.segments) - 1)
            return
        # A clean stop writes the log end as recovery point; 0 is a log without an entry. There is nothing better than
        # the files, so they are used; `build_log` notes a loss.
        if self.found.recovery_point not in (0, self.replay.end_offset):
            _logger.error("%s ends at offset %d, but ended at %d at its last stop",
                          self.tp, self.replay.end_offset, self.found.recovery_point)  # fmt: skip
        self._load_producers(self.replay.end_offset, is_clean_end=self.found.clean)
        self.recovery_point = self.replay.end_offset

    @property
    def is_compacted(self) -> bool:
        """Whether offsets may be missing."""
        return "compact" in self.config.cleanup_policy or self.found.cleaned_until > 0

    def _check_ends(self, count: int) -> None:
        """Check the ends of the first `count` segments and of their indexes, before they are trusted."""
        first = self.segments[0].base_offset
        if self.files.epochs and max(self.files.epochs[0].start_offset, self.found.start_offset) < first:
            _logger.error("%s: records below offset %d are missing", self.tp, first)
            self.files.note_loss(IncompleteLog.WITHIN)
        for segment, following in zip(self.segments[:count], self.segments[1:], strict=False):
            if segment.txn_index.is_emptied or not self._indexes_right(segment, following.base_offset):
                self._rebuild_indexes(segment)
            may_end_early = self.is_compacted or following.base_offset > segment.max_offset
            if wrong := find_edge_fault(segment, following.base_offset, may_end_early):
                _logger.error("%s: %s is damaged: %s", self.tp, segment.path, wrong)
                self.files.note_loss(IncompleteLog.WITHIN)

    def _indexes_right(self, segment: Segment, following: int) -> bool:
        """Whether the indexes of a segment, which ends at `following` or below, can be those of its batches."""
        if not indexes_sane(segment) or segment.time_index.last_entry.offset >= following:
            return False
        noted = self.files.txn_sums.get(index_file_name(segment))
        if noted is not None and noted != segment.txn_index.file_checksum:
            return False
        return txn_index_matches(segment, following, self.is_compacted)

    def _check_epochs(self) -> None:
        """Compute the leader epochs from the log if the checkpoint does not match it, or lacks the first ones."""
        epochs, start = self.replay.epochs, self.found.start_offset
        known = epochs.entries
        if not epochs_match(known, self.segments, start, self.replay.end_offset, self.is_compacted):
            _logger.warning("%s: its leader epochs do not match it, rebuilding them", self.tp)
            epochs.clear_entries()
            for epoch, start_offset in epochs_of(self.segments):
                epochs.assign_epoch(epoch, start_offset)
        elif self.is_compacted and epochs_begin_late(known, self.segments, start):
            before = [entry for entry in epochs_of(self.segments) if entry.start_offset < known[0].start_offset]
            epochs.clear_entries()
            for epoch, start_offset in (*before, *known):
                epochs.assign_epoch(epoch, start_offset)

    def _load_producers(self, end: int, is_clean_end: bool = False) -> None:
        """Compute the state of producers at `end`. A clean stop that left no snapshot had no producers."""
        start = max(self.found.start_offset, self.segments[0].base_offset)
        newest = sufficient_snapshot_offset(self.segments, start, self.found.high_watermark, end)
        if is_clean_end and not self.snapshots and newest == end:
            self.replay.state.load_entries((), end, self.home.clock.now().wall_ms)
            return
        right = partial(snapshot_matches, segments=self.segments, compacted=self.is_compacted)
        load_newest(self.home, self.directory, self.snapshots, min(start, end), newest, self.replay.state, right)
        # `load_newest` removed those that are impossible.
        self.snapshots = [at for at in self.snapshots if self.home.disk.exists(snapshot_path(self.directory, at))]
        replay_to(self.home, self.segments, self.replay.state, end)

    def _rebuild_indexes(self, segment: Segment) -> None:
        """Rebuild the indexes of one sealed segment."""
        _logger.warning("%s: indexes of %s do not match it, rebuilding them", self.tp, segment.path)
        self._load_producers(segment.base_offset)
        rebuild_beside(self.home.disk, segment, self.replay.read_segment)

    # -- after any other stop --------------------------------------------------------------------------------------

    def _recover_log(self) -> None:
        bases = [segment.base_offset for segment in self.segments]
        # A recovery point at the beginning of a segment may have been reached before the roll: then no sync has
        # covered the indexes of the segment before it.
        slot = max([0, *(at for at, base in enumerate(bases) if base < self.found.recovery_point)])
        self._check_ends(slot)
        self._recover_from(slot)
        if self.replay.end_offset < self.recovery_point:
            self._recover_all()
        elif self.found.durable and slot == len(self.segments) - 1:
            self.recovery_point = self.replay.end_offset  # the active segment's indexes need not be durable

    def _recover_all(self) -> None:
        """The log ends below its recovery point: that is of another log, or the disk lost synced records."""
        _logger.warning("%s ends at offset %d, below its recovery point %d: recovering all of it",
                        self.tp, self.replay.end_offset, self.recovery_point)  # fmt: skip
        self.recovery_point = 0
        self.replay.forget_producers()
        self._recover_from(0)

    def _recover_from(self, slot: int) -> None:
        """Read the segments from `slot` on, cut at the first damage, drop the segments after it."""
        self._load_producers(self.segments[slot].base_offset)
        # The checkpoint may be newer than a cut that a power loss has undone: only the batches have their own epochs.
        self.replay.epochs.truncate_from_end(self.segments[slot].base_offset)
        kept, torn, self.replay.batches_end = slot, None, 0
        while kept < len(self.segments):
            segment = self.segments[kept]
            if kept > slot:
                if not self._continues_log(kept):
                    break
                # Only now: if this segment did not continue the log, the one before it would be the active one.
                self.segments[kept - 1].seal_segment()
            valid = self.replay.read_segment(segment, self.recovery_point)
            kept += 1
            if valid < segment.size and split_at(self.home, self.segments, kept - 1, valid, self.config):
                continue
            if valid < segment.size:
                torn = segment, valid
                break
        if kept < len(self.segments):
            self._drop_behind(kept)
        if torn is not None:
            self._cut_tail(*torn)
        self._drop_snapshots()

    def _continues_log(self, slot: int) -> bool:
        """Whether a segment continues the one before it: it begins at its end, in a compacted log maybe later."""
        # 1. It begins at or below the end: it continues the log if it begins exactly there.
        # 2. Its base is out of the range of the segment before: the two were split, no record is between them.
        # 3. A log that was never compacted up to there has no holes.
        # 4. A hole that compaction cannot have made is a loss. It is noted if records follow; otherwise the log ends
        # before it.
        # 5. Otherwise the hole is compaction's.
        base = self.segments[slot].base_offset
        if base <= self.replay.end_offset:
            return base == self.replay.end_offset
        if base > self.segments[slot - 1].max_offset:  # the two were one before they were split
            return True
        if "compact" not in self.config.cleanup_policy and base > self.found.cleaned_until:
            return False
        if self._lost_before(base):
            if not self._has_records(slot):
                return False
            _logger.error("%s: records from offset %d to %d are missing", self.tp, self.replay.end_offset, base)
            self.files.note_loss(IncompleteLog.WITHIN)
            self.replay.follows_loss = True
        self.hole = min(self.hole, self.replay.end_offset)
        return True

    def _has_records(self, slot: int) -> bool:
        """Whether the segments from `slot` on have records: their first bytes are a whole batch."""
        first = next((segment for segment in self.segments[slot:] if segment.size), None)
        if first is None:
            return False
        return any(True for _ in valid_batches(first.file, first.size, first.base_offset))

    def _lost_before(self, base: int) -> bool:
        """Whether the records missing before a segment were lost: compaction removes only durable ones, below the
        offsets in the checkpoints."""
        durable = max(self.found.recovery_point, self.found.cleaned_until)
        return base > durable

    def _cut_tail(self, segment: Segment, valid: int) -> None:
        """Cut the torn tail of a segment."""
        _logger.warning("%s: cutting %d bytes, which are not whole batches, after offset %d from %s",
                        self.tp, segment.size - valid, self.replay.end_offset, segment.path)  # fmt: skip
        segment.file.truncate(valid)
        # Before a segment follows: a tail that the next power loss restores would be before newer records.
        self.home.disk.sync_now(segment.path)
        segment.size = valid
        segment.hot_from = min(segment.hot_from, valid)

    def _drop_behind(self, slot: int) -> None:
        """Drop the segments after a cut, which do not continue the log any more.

        The newest first, each before the next, and all before the cut: where offsets may be missing, a segment left by
        a stop in between would seem to continue the log."""
        for segment in reversed(self.segments[slot:]):
            _logger.warning("%s: dropping %s, which follows a cut", self.tp, segment.path)
            retire_segment(self.home, segment, 0)
            self.home.disk.sync_now(self.directory)
        del self.segments[slot:]

    def _drop_snapshots(self) -> None:
        """Drop producer snapshots above the end, whose records are lost, and above a hole, where they may be."""
        end = min(self.replay.end_offset, self.hole)
        for offset in self.snapshots:
            if offset > end:
                self.home.disk.unlink_now(f"{self.directory}/{offset:020d}.snapshot")
        self.snapshots = [offset for offset in self.snapshots if offset <= end]
