"""A log that moves to another log directory of its broker (KIP-113): its copy, and how they change places.

Zone: deterministic. One move; when it goes on and how fast is replication's to say, names are `future_logs`'. The copy
is
always a beginning of the log: it takes batches as they are, is cut where the log is cut, and at a start is compared by
leader epochs, which tell where two copies of a log part (KIP-101).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ottla.errors import ApiError
from ottla.seams import Done, Failure, Region
from ottla.storage.indexes.leader_epochs import LeaderEpochs
from ottla.storage.log import Log
from ottla.storage.log_dir import LogDir
from ottla.storage.log_dir_context import CompletionBarrier
from ottla.storage.segments.scan import walk_headers
from ottla.types import NO_EPOCH, TopicPartition

_logger = logging.getLogger(__name__)
CopiedBytes = Callable[[int | Failure | ApiError], None]


class FutureLog:
    """One log on its way from a directory to another."""

    __slots__ = ("_cuts", "_marked", "begin", "copy", "end", "log")

    def __init__(self, begin: LogDir, end: LogDir, log: Log) -> None:
        """The copy in `end` is made when there is none, else brought to what it has in common. Raises Failure."""
        self.begin = begin
        self.end = end
        self.log = log
        self._cuts = 0
        self._marked = True
        found = end.moves.futures.get(log.tp)
        if found is None:
            self._marked = False
            log.cleaning.interrupt()
            found = end.moves.create(log, self._is_marked)
        self.copy = found
        if self._marked:
            self._align()

    def _is_marked(self) -> None:
        self._marked = True

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return self.log.tp

    @property
    def behind(self) -> int:
        """Offsets that the copy has yet to reach."""
        return self.log.end_offset - self.copy.end_offset

    @property
    def stands(self) -> bool:
        """Whether it can go on: the log is where it was, both directories are in service."""
        if self.begin.offline is not None or self.end.offline is not None:
            return False
        return self.begin.logs.get(self.tp) is self.log and self.end.moves.futures.get(self.tp) is self.copy

    def give_up(self) -> None:
        """The copy goes. Raises Failure."""
        if self.end.offline is None and self.end.moves.futures.get(self.tp) is self.copy:
            self.end.moves.drop(self.tp)

    # -- the copy is a beginning of the log ----------------------------------------------------------------------------

    def _align(self) -> None:
        """After a start: cut what the log has not, or has otherwise. Raises Failure.

        A power cut can take the names of the first segments as well: then nothing of the copy is of use.
        """
        log, copy = self.log, self.copy
        start, end = log.start_offset, min(log.end_offset, copy.end_offset)
        if copy.lack is not None:
            copy.restart_at(start)
            copy.excuse()
        elif copy.start_offset > start or start > end:
            copy.restart_at(start)
        else:
            copy.truncate_to(common_end(log.epochs, copy.epochs, start, end))
        copy.settle_epochs()

    def cut(self) -> None:
        """The log was cut, or begins anew: so does the copy. Raises Failure."""
        self._cuts += 1
        log, copy = self.log, self.copy
        if not log.start_offset <= copy.end_offset or copy.start_offset > log.end_offset:
            copy.restart_at(log.start_offset)
        elif copy.end_offset > log.end_offset:
            copy.truncate_to(log.end_offset)

    def _follow_start(self) -> None:
        """What the log has deleted at its old end need not be copied. Raises Failure, ApiError."""
        log, copy = self.log, self.copy
        if log.start_offset > copy.end_offset:
            copy.restart_at(log.start_offset)
        else:
            copy.set_start_offset(log.start_offset)

    # -- copying -------------------------------------------------------------------------------------------------------

    def copy_piece(self, max_bytes: int, done: CopiedBytes) -> None:
        """Copy up to `max_bytes`, but a batch in any case; `done` gets how many bytes, in a later turn.

        They are read off the loop. 0: the log was cut meanwhile. Raises Failure, ApiError.
        """
        region = self._next(max_bytes)
        if region is None:
            self.log.disk.sync_dir("", lambda outcome: done(outcome if isinstance(outcome, Failure) else 0))
            return
        cuts = self._cuts

        def read(outcome: memoryview | Failure) -> None:
            if isinstance(outcome, Failure):
                done(outcome)
            elif cuts != self._cuts or not self.stands:
                done(0)
            else:
                try:
                    taken: int | ApiError = self._append_piece(outcome)
                except ApiError as error:
                    taken = error.as_value()
                done(taken)

        region.file.read(region.pos, region.size, read)

    def catch_up(self, max_bytes: int) -> bool:
        """Copy all the rest in this turn, if it is not more than that; whether the copy has all. Raises as above."""
        while self.behind and max_bytes > 0:
            region = self._next(max_bytes)
            if region is not None:
                piece = memoryview(bytearray(region.size))
                region.file.read_now(region.pos, piece)
                max_bytes -= region.size
                self._append_piece(piece)
        return not self.behind

    def _next(self, max_bytes: int) -> Region | None:
        """What the copy lacks next. None when it lacks only offsets: what had them was compacted away."""
        self._follow_start()
        log, copy = self.log, self.copy
        region = log.read(copy.end_offset, max_bytes, log.end_offset, warmed=True) if self.behind else None
        if region is None and self.behind:
            copy.skip_to(log.end_offset)
        return region

    def _append_piece(self, piece: memoryview) -> int:
        before = self.copy.end_offset
        after = self.copy.append_replica(piece)
        assert after > before, f"{self.tp}: {len(piece)} bytes at offset {before} without a whole batch"
        self.copy.high_watermark = min(self.log.high_watermark, after)
        return len(piece)

    # -- changing places -----------------------------------------------------------------------------------------------

    def flush(self, done: Done[int]) -> None:
        """Make the copy durable as far as it is: what is to be flushed when they change places is little then."""
        self.copy.flush(done)

    @property
    def may_swap(self) -> bool:
        """Whether a stop from now on would know the copy for what it is."""
        return self._marked

    def swap(self) -> Log:
        """The copy is the log from now on; returns it. It has all that the log has. Raises Failure: it is not.

        The old one stays until the new one is durable, so whatever a power cut takes, one of them has all that was.
        """
        assert not self.behind, f"the copy of {self.tp} lacks {self.behind} offsets"
        log, copy = self.log, self.copy
        copy.set_start_offset(log.start_offset)
        copy.epochs.take_over(log.epochs.entries)
        # Before it counts: a start that reads older ones would bring deleted records back, or miss some.
        self.end.save_starts_now()
        copy.save_epochs_now()
        self.end.moves.promote(self.tp)
        self.begin.moves.leave(self.tp)
        copy.high_watermark = log.high_watermark
        copy.producers = log.producers
        copy.producers.frozen = None  # a snapshot that is being made is one of the old log
        copy.removable_below = log.removable_below
        copy.cleaning.checkpoint = log.cleaning.checkpoint  # nothing was compacted meanwhile
        self.end.checkpoint_cleaned(self.tp)
        copy.write_snapshot(_do_nothing)
        barrier = CompletionBarrier(self._durable)
        copy.flush(barrier.expect())
        copy.when_epochs_saved(barrier.expect())
        barrier.armed()
        return copy

    def _durable(self, outcome: Failure | None) -> None:
        if outcome is not None or self.begin.offline is not None:
            return  # what stays in the old directory is compared at the next start
        try:
            self.begin.moves.drop_left(self.log, self._on_removed)
        except Failure as failure:
            _logger.warning("what was %s in %s stays until the next start: %s", self.tp, self.begin.name, failure)

    def _on_removed(self, outcome: object) -> None:
        if not isinstance(outcome, Failure) and self.end.offline is None and self.tp in self.end.logs:
            try:
                self.end.moves.settle_down(self.tp)
            except Failure as failure:
                _logger.warning("%s: %s", self.end.name, failure)


def common_end(one: LeaderEpochs, other: LeaderEpochs, start: int, end: int) -> int:
    """Up to where two copies of a log are the same, by the leader epochs of their records between `start` and `end`."""
    bounds = {entry.start_offset for each in (one, other) for entry in each.entries}
    for offset in sorted(bounds | {start}):
        if start <= offset < end and one.epoch_of(offset) != other.epoch_of(offset):
            return offset
    return end


def settle(dirs: Sequence[LogDir]) -> None:
    """At start: of two logs of one partition, take the one that has all; a move that was ended is ended for good.

    A stop between the steps of `FutureLog.swap` leaves both. Then the one with the newer leader epoch, or the longer
    one of the same, has all that the other has. Raises nothing: a directory that fails is offline then.
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
            if len(working) == len(dirs):
                several[-1].moves.settle_down(tp)
        except (Failure, ApiError) as error:
            _logger.error("what a move has left of %s: %s", tp, error)
    for each in working:
        for tp in [tp for tp in each.moves.futures if tp not in holders]:
            _logger.warning("%s/%s is a copy of a log that is not there: it is left alone", each.name, tp)


def _settle_one(tp: TopicPartition, several: list[LogDir]) -> None:
    """Put the one that is to be served last, and the others aside."""

    def rank(each: LogDir) -> tuple[int, int, bool]:
        log = each.logs[tp]
        return last_epoch(log), log.end_offset, tp in each.moves.arrived

    several.reverse()  # of equals the first one
    several.sort(key=rank)
    best = several[-1].logs[tp]
    for each in several[:-1]:
        log = each.logs[tp]
        if log.topic_id != best.topic_id:
            continue  # of another topic that had the name: whoever knows the topic decides
        _logger.warning("%s is in %s and %s: the latter has all", tp, each.name, several[-1].name)
        if tp in each.moves.arrived:
            each.moves.demote(tp)
        else:
            each.delete(tp)


def last_epoch(log: Log) -> int:
    """The leader epoch of the last record, -1 when there is none: what the checkpoint says may be older."""
    found = NO_EPOCH
    for segment in log.segments:
        if segment.size:
            last = segment.index.last
            for _, header in walk_headers(segment.file, last.position if last else 0, segment.size):
                found = header[2]
    return found


def _do_nothing(_: object) -> None:
    """Without the snapshot the next start reads more of the log."""
