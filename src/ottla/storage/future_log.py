"""Moves a log to another log directory of its broker (KIP-113): copies it, and swaps the copy in.

Zone: deterministic. One move; replication decides when it continues and how fast, `future_logs` handles the names. The
copy is always a prefix of the log: it takes batches unchanged, is cut where the log is cut, and is compared at a start
by leader epochs, which show where two copies of a log diverge (KIP-101).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ottla.errors import ApiError
from ottla.record.header_fields import LEADER_EPOCH
from ottla.seams import Done, Failure, Region
from ottla.storage.indexes.leader_epochs import LeaderEpochs
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_context import CompletionBarrier
from ottla.storage.producers.snapshot_writing import write_snapshot
from ottla.storage.segments.scan import walk_headers
from ottla.types import NO_EPOCH, TopicPartition

_logger = logging.getLogger(__name__)
CopiedBytes = Callable[[int | Failure | ApiError], None]


class FutureLog:
    """The move of one log from a directory to another."""

    __slots__ = ("_cuts", "_marked", "copy", "log", "source_dir", "target_dir")

    def __init__(self, begin: LogDir, end: LogDir, log: Log) -> None:
        """Create the copy in `end`, or cut an existing one to what it has in common with the log. Raises
        Failure."""
        self.source_dir = begin
        self.target_dir = end
        self.log = log
        self._cuts = 0
        self._marked = True
        found = end.moves.futures.get(log.tp)
        if found is None:
            self._marked = False
            # A pass in progress could remove a tombstone before it is copied, but after the record that it deletes was.
            log.cleaning.interrupt_pass()
            found = end.moves.create_copy(log, self._is_marked)
        self.copy = found
        if self._marked:
            self._align_copy()

    def _is_marked(self) -> None:
        self._marked = True

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.log.tp

    @property
    def lag(self) -> int:
        """By how many offsets the copy lags."""
        return self.log.end_offset - self.copy.end_offset

    @property
    def can_continue(self) -> bool:
        """Whether the move can continue: log and copy are in their places, both directories are in service."""
        if self.source_dir.offline is not None or self.target_dir.offline is not None:
            return False
        return self.source_dir.logs.get(self.tp) is self.log and self.target_dir.moves.futures.get(self.tp) is self.copy

    def give_up(self) -> None:
        """Delete the copy. Raises Failure."""
        if self.target_dir.offline is None and self.target_dir.moves.futures.get(self.tp) is self.copy:
            self.target_dir.moves.drop_copy(self.tp)

    # -- the copy is a prefix of the log -------------------------------------------------------------------------------

    def _align_copy(self) -> None:
        """After a start: cut from the copy what the log does not have, or has differently. Raises Failure.

        A power cut may also have lost the names of the first segments: then the copy starts from nothing.
        """
        log, copy = self.log, self.copy
        start, end = log.start_offset, min(log.end_offset, copy.end_offset)
        # 1. The copy lost records that were durable. 2. It begins after the log begins, or ends before that.
        # 3. Both have a common part: cut where their leader epochs diverge.
        if copy.metadata.loss is not None:
            copy.restart_at(start)
            copy.metadata.clear_incomplete()
        elif copy.start_offset > start or start > end:
            copy.restart_at(start)
        else:
            copy.truncate_to(common_end(log.epochs, copy.epochs, start, end))
        copy.metadata.settle_epochs()

    def follow_cut(self) -> None:
        """Follow a cut or a restart of the log. Raises Failure."""
        self._cuts += 1
        log, copy = self.log, self.copy
        # The two have no offset in common any more.
        if not log.start_offset <= copy.end_offset or copy.start_offset > log.end_offset:
            copy.restart_at(log.start_offset)
        elif copy.end_offset > log.end_offset:
            copy.truncate_to(log.end_offset)

    def _follow_start(self) -> None:
        """Skip records that the log has deleted at its start. Raises Failure, ApiError."""
        log, copy = self.log, self.copy
        if log.start_offset > copy.end_offset:
            copy.restart_at(log.start_offset)
        else:
            copy.set_start_offset(log.start_offset)

    # -- copying -------------------------------------------------------------------------------------------------------

    def copy_piece(self, max_bytes: int, done: CopiedBytes) -> None:
        """Copy up to `max_bytes`, but one batch at least; `done` gets the number of bytes, in a later turn.

        The bytes are read off the loop. 0: the log was cut meanwhile. Raises Failure, ApiError.
        """
        region = self._next_region(max_bytes)
        if region is None:
            # Nothing was read, but `done` comes in a later turn in any case; the sync is a way there.
            self.log.disk.sync_dir("", lambda outcome: done(outcome if isinstance(outcome, Failure) else 0))
            return
        # The log may be cut while the bytes are read off the loop: then they may be of records that no longer exist.
        cuts = self._cuts

        def read(outcome: memoryview | Failure) -> None:
            if isinstance(outcome, Failure):
                done(outcome)
            elif cuts != self._cuts or not self.can_continue:
                done(0)
            else:
                try:
                    taken: int | ApiError = self._append_piece(outcome)
                except ApiError as error:
                    taken = error.as_value()
                done(taken)

        region.file.read(region.pos, region.size, read)

    def catch_up(self, max_bytes: int) -> bool:
        """Copy the rest in this turn if it has at most about `max_bytes`; whether the copy is complete then.

        Raises as `copy_piece`.
        """
        while self.lag and max_bytes > 0:
            region = self._next_region(max_bytes)
            if region is not None:
                piece = memoryview(bytearray(region.size))
                # Blocking: no append may come between the last piece and the swap, or the copy would lack it.
                region.file.read_now(region.pos, piece)
                max_bytes -= region.size
                self._append_piece(piece)
        return not self.lag

    def _next_region(self, max_bytes: int) -> Region | None:
        """The next region that the copy lacks; None when it lacks only offsets whose records were compacted away."""
        self._follow_start()
        log, copy = self.log, self.copy
        region = log.read(copy.end_offset, max_bytes, log.end_offset, warmed=True) if self.lag else None
        if region is None and self.lag:
            # Compaction has removed the records up to the end. Without a batch there, only the name of an empty segment
            # shows the next start where the log ends.
            copy.end_offset = log.end_offset
            copy.roll_segment()
        return region

    def _append_piece(self, piece: memoryview) -> int:
        before = self.copy.end_offset
        after = self.copy.append_replica(piece)
        assert after > before, f"{self.tp}: {len(piece)} bytes at offset {before} without a whole batch"
        self.copy.high_watermark = min(self.log.high_watermark, after)
        return len(piece)

    # -- swapping ------------------------------------------------------------------------------------------------------

    def flush_copy(self, done: Done[int]) -> None:
        """Make the copy durable up to its end, so that little is left to flush at the swap."""
        self.copy.flush(done)

    @property
    def may_swap(self) -> bool:
        """Whether the mark of the copy is durable, so that a start after a stop would recognise the copy."""
        return self._marked

    def swap_in(self) -> Log:
        """Make the copy, which must be complete, the log, and return it. Raises Failure; then it is not the log.

        The old log stays until the new one is durable: whatever a power cut takes, one of them has all records.
        """
        assert not self.lag, f"the copy of {self.tp} lacks {self.lag} offsets"
        log, copy = self.log, self.copy
        copy.set_start_offset(log.start_offset)
        copy.epochs.replace_all(log.epochs.entries)
        # 1. Before the rename: a start with older checkpoints would restore deleted records, or miss some.
        self.target_dir.offsets.save_starts_now()
        copy.metadata.save_epochs_now()
        # 2. The rename: from here on a start serves the copy, if its leader epoch and end show that it is complete.
        self.target_dir.moves.promote_copy(self.tp)
        self.source_dir.moves.retire_source(self.tp)
        # 3. The state in memory is that of the old log; the copy has not tracked it.
        copy.high_watermark = log.high_watermark
        copy.producers = log.producers
        copy.producers.frozen = None  # a snapshot that is being made is one of the old log
        copy.removable_below = log.removable_below
        copy.cleaning.checkpoint = log.cleaning.checkpoint  # nothing was compacted meanwhile
        self.target_dir.offsets.checkpoint_cleaned(self.tp)
        write_snapshot(copy.home, copy, copy.metadata.save_snapshot, _do_nothing)
        # 4. Once the copy is durable, `_on_copy_durable` removes the old log.
        barrier = CompletionBarrier(self._on_copy_durable)
        copy.flush(barrier.add_expected())
        copy.metadata.when_epochs_saved(barrier.add_expected())
        barrier.arm_barrier()
        return copy

    def _on_copy_durable(self, outcome: Failure | None) -> None:
        if outcome is not None or self.source_dir.offline is not None:
            return  # the old log stays, and the next start compares the two
        try:
            self.source_dir.moves.drop_source(self.log, self._on_removed)
        except Failure as failure:
            text = "cannot remove the old log of %s in %s after its move, the next start will: %s"
            _logger.warning(text, self.tp, self.source_dir.name, failure)

    def _on_removed(self, outcome: object) -> None:
        if not isinstance(outcome, Failure) and self.target_dir.offline is None and self.tp in self.target_dir.logs:
            try:
                self.target_dir.moves.remove_mark(self.tp)
            except Failure as failure:
                _logger.warning("%s: %s", self.target_dir.name, failure)


def common_end(one: LeaderEpochs, other: LeaderEpochs, start: int, end: int) -> int:
    """Up to which offset between `start` and `end` two copies of a log are equal, by their leader epochs."""
    bounds = {entry.start_offset for each in (one, other) for entry in each.entries}
    # Between two of these offsets both copies have one epoch each, so the first difference is at one of them.
    for offset in sorted(bounds | {start}):
        if start <= offset < end and one.epoch_of(offset) != other.epoch_of(offset):
            return offset
    return end


def settle_moves(dirs: Sequence[LogDir]) -> None:
    """At start: of two logs of one partition, serve the one that has all records; finish moves that were swapped.

    A stop between the steps of `FutureLog.swap_in` leaves both. Then the one with the newer leader epoch, or with the
    same epoch the longer one, has all records of the other. Raises nothing: a directory that fails is offline then.
    """
    working = [each for each in dirs if each.offline is None]
    holders: dict[TopicPartition, list[LogDir]] = {}
    for each in working:
        for tp in each.logs:
            holders.setdefault(tp, []).append(each)
    for tp, several in holders.items():
        try:
            if len(several) > 1:
                _settle_one(tp, several)
            # A directory that is offline may hold the other log. The mark then has to stay: of two logs with the same
            # epoch and end, it shows which one was swapped in.
            if len(working) == len(dirs):
                several[-1].moves.remove_mark(tp)
        except (Failure, ApiError) as error:
            _logger.error("cannot settle an interrupted move of %s between log directories: %s", tp, error)
    for each in working:
        for tp in [tp for tp in each.moves.futures if tp not in holders]:
            _logger.warning("%s/%s is a future log, but the log that it copies is missing: ignoring it", each.name, tp)


def _settle_one(tp: TopicPartition, several: list[LogDir]) -> None:
    """Move the log to serve to the end of `several`, and take the others out of service."""

    def rank(each: LogDir) -> tuple[int, int, bool]:
        log = each.logs[tp]
        return last_epoch(log), log.end_offset, tp in each.moves.arrived

    several.reverse()  # the sort is stable, so that of equal logs the first one in `several` is served
    several.sort(key=rank)
    best = several[-1].logs[tp]
    for each in several[:-1]:
        log = each.logs[tp]
        if log.metadata.topic_id != best.metadata.topic_id:
            continue  # of another topic that had the name: `LogManager.adopt_log` decides, which knows the topic's id
        text = "%s is in %s and in %s after an interrupted move: keeping the latter, which has all records"
        _logger.warning(text, tp, each.name, several[-1].name)
        if tp in each.moves.arrived:
            each.moves.demote_log(tp)
        else:
            each.delete_log(tp)


def last_epoch(log: Log) -> int:
    """The leader epoch of the last record, -1 when there is none; the one in the checkpoint may be older."""
    found = NO_EPOCH
    for segment in log.segments:
        if segment.size:
            last = segment.index.last_entry
            for _, header in walk_headers(segment.file, last.position if last else 0, segment.size):
                found = header[LEADER_EPOCH]
    return found


def _do_nothing(_: object) -> None:
    """Ignore the outcome: without the snapshot the next start only reads more of the log."""
