"""Moves logs between the directories of a site, with the steps of the broker's replication package.

Zone: deterministic. Without replicas, quotas and throttles; the calls and their order are the same.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import ApiError
from ottla.seams import Failure
from ottla.sim.world import MS
from ottla.storage.future_log import FutureLog
from ottla.storage.log_dir import LogDir
from ottla.types import TopicPartition
from testbench.crash.site import Site

PIECE: Final = 1500
LAST_PIECE: Final = 1000
"""Bytes that the copy may lack when log and copy are exchanged."""
PAUSE_NS: Final = MS


class Mover:
    """The moves of one process."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._process = site.process
        self._moves: dict[TopicPartition, FutureLog] = {}

    @property
    def under_way(self) -> bool:
        """Whether a log is moving."""
        return bool(self._moves)

    def begin(self, tp: TopicPartition) -> None:
        """Move a log to the other directory, unless its last move or a pass of the cleaner is unfinished."""
        manager = self._site.manager
        if self._stuck or manager.get_log(tp) is None:
            return
        log = self._site.logs()[tp]
        if manager.is_moving(tp) or log.cleaning.until is not None:
            self._process.post_turn(PAUSE_NS, "move", self.begin, tp)
            return
        self._go_on(tp, manager.begin_move(tp, self._other(tp)))

    def _other(self, tp: TopicPartition) -> LogDir:
        begin = self._site.home_of(tp)
        return next(each for each in self._site.manager.dirs if each is not begin)

    @property
    def _stuck(self) -> bool:
        return any(each.offline is not None for each in self._site.manager.dirs)

    def resume(self) -> None:
        """After a start: continue unfinished moves."""
        for tp, log in self._site.logs().items():
            self._site.manager.adopt_log(tp, log.metadata.topic_id)
            move = self._site.manager.find_move(tp)
            if move is not None:
                self._go_on(tp, move)

    def stop(self) -> None:
        """Take no more steps, as in a broker that stops."""
        self._moves.clear()

    def stay(self, tp: TopicPartition) -> None:
        """Cancel a move."""
        move = self._moves.pop(tp, None)
        if move is not None:
            move.give_up()

    def cut(self, tp: TopicPartition) -> None:
        """The log was cut."""
        move = self._moves.get(tp)
        if move is not None and move.can_continue:
            move.follow_cut()

    # -- step by step --------------------------------------------------------------------------------------------------

    def _go_on(self, tp: TopicPartition, move: FutureLog) -> None:
        self._moves[tp] = move
        self._process.post_turn(PAUSE_NS, "move", self._step, move)

    def _wanted(self, move: FutureLog) -> bool:
        if self._moves.get(move.tp) is not move:
            return False
        if not move.can_continue:
            del self._moves[move.tp]
            return False
        return True

    def _step(self, move: FutureLog) -> None:
        if not self._wanted(move):
            return
        if move.lag:
            move.copy_piece(PIECE, lambda outcome: self._copied(move, outcome))
        else:
            move.flush_copy(lambda outcome: self._flushed(move, outcome))

    def _copied(self, move: FutureLog, outcome: int | Failure | ApiError) -> None:
        if self._wanted(move):
            assert isinstance(outcome, int), outcome
            self._process.post_turn(PAUSE_NS, "move", self._step, move)

    def _flushed(self, move: FutureLog, outcome: object) -> None:
        if not self._wanted(move):
            return
        assert isinstance(outcome, int), outcome
        if move.may_swap and move.catch_up(LAST_PIECE):
            del self._moves[move.tp]
            move.swap_in()
        else:
            self._process.post_turn(PAUSE_NS, "move", self._step, move)
