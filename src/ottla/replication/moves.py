"""Replicas that move between the log directories of this broker (KIP-113): which of them, in what order, how fast.

Zone: deterministic. One move at a time per log directory (num.replica.alter.log.dirs.threads), the others wait. Each
copies a piece, lets others have a turn, copies the next; the last piece is copied in the turn in which log and copy
change places. How that is safe at every moment stands in `storage.moving`.
"""

from __future__ import annotations

import logging
from typing import Final

from ottla.changes import changes_state
from ottla.config.broker import BrokerConfig
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.throttle import UNLIMITED, RecentBytes
from ottla.seams import Clock, Failure
from ottla.storage.future_log import FutureLog
from ottla.storage.log_dir import LogDir
from ottla.storage.log_manager import LogManager
from ottla.types import TopicPartition

PIECE: Final = 256 * 1024
"""Bytes copied in one turn."""
PAUSE_MS: Final = 1
"""Between two pieces, for everybody else."""
LAST_PIECE: Final = 512 * 1024
"""What may be missing when log and copy change places: copied in that very turn. Doubled when it was not enough."""
LAST_PIECE_MOST: Final = 8 * 1024 * 1024
LOOK_MS: Final = 100
"""How often it is looked whether the throttle, or what is left of an earlier move, lets a move go on."""
RETRY_MS: Final = 1000
"""After a disk refused, as a full one does."""
PREFERRED_KEPT: Final = 10_000
"""Replicas that are not here yet, and whose directory is remembered."""
_log = logging.getLogger(__name__)


class _Moving:
    """One replica that moves, or waits for its turn."""

    __slots__ = ("last_piece", "move", "partition", "target")

    def __init__(self, partition: Partition, target: LogDir, move: FutureLog | None) -> None:
        self.partition = partition
        self.target = target
        self.move = move
        """None before it has begun."""
        self.last_piece = LAST_PIECE

    @property
    def behind(self) -> int:
        """Records that the copy lacks."""
        log = self.partition.log
        return log.end_offset - log.start_offset if self.move is None else self.move.behind


class ReplicaMoves:
    """The moves of one broker."""

    def __init__(
        self, config: BrokerConfig, clock: Clock, logs: LogManager, hosted: PartitionRegistry, purgatory: Purgatory
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._hosted = hosted
        self._purgatory = purgatory
        self._slots = config.num_replica_alter_log_dirs_threads or len(logs.dirs)
        self._recent = RecentBytes(
            config.alter_log_dirs_replication_quota_window_num,
            config.alter_log_dirs_replication_quota_window_size_seconds,
        )
        self._rate = UNLIMITED
        self._moves: dict[TopicPartition, _Moving] = {}
        """Those that run, and those that wait, in the order in which they were asked for."""
        self._running: dict[TopicPartition, _Moving] = {}
        self._preferred: dict[TopicPartition, str] = {}
        """Directories for replicas that are not here yet."""
        self.configure(config)

    def configure(self, config: BrokerConfig) -> None:
        """Settings of this broker have changed."""
        self._rate = config.replica_alter_log_dirs_io_max_bytes_per_second

    def stop(self) -> None:
        """The logs are about to be closed; what is under way goes on after the next start."""
        self._moves.clear()
        self._running.clear()

    @property
    def max_lag(self) -> int:
        """Records that the copy furthest behind lacks; of a move that waits for its turn all."""
        return max((each.behind for each in self._moves.values()), default=0)

    # -- what is asked for ---------------------------------------------------------------------------------------------

    def alter_partition(self, tp: TopicPartition, path: str) -> None:
        """Have a replica in that log directory; a move elsewhere is given up. Returns at once, copying takes its time.

        Raises ApiError: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR (a directory is offline), REPLICA_NOT_AVAILABLE (it is
        not here; when it comes, it comes to that directory).
        """
        target = self._dir_at(path)
        partition = self._hosted.find(*tp)
        if partition is None:
            self._prefer(tp, target)
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE, f"no replica of {tp} is on this broker")
        if partition.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the replica of {tp} is out of service")
        present = self._moves.get(tp)
        if present is not None and present.target is target:
            return
        self._cancel_partition(tp)
        if partition.log.disk.name != target.name:
            self._moves[tp] = _Moving(partition, target, None)
            self._begin_some()

    def _dir_at(self, path: str) -> LogDir:
        found = next((each for each in self._logs.dirs if each.name.rstrip("/") == path.rstrip("/")), None)
        if found is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not among log.dirs")
        if found.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline")
        return found

    def _prefer(self, tp: TopicPartition, target: LogDir) -> None:
        self._preferred.pop(tp, None)
        self._preferred[tp] = target.name
        if len(self._preferred) > PREFERRED_KEPT:
            del self._preferred[next(iter(self._preferred))]

    def preferred(self, tp: TopicPartition) -> str:
        """The directory that was asked for before the replica came; empty when none was."""
        return self._preferred.pop(tp, "")

    @changes_state
    def _cancel_partition(self, tp: TopicPartition) -> None:
        moving = self._moves.pop(tp, None)
        self._running.pop(tp, None)
        if moving is not None and moving.move is not None:
            _log.info("%s does not move to %s any more", tp, moving.target.name)
            try:
                moving.move.give_up()
            except Failure as failure:
                _log.warning("the copy of %s in %s stays until the next start: %s", tp, moving.target.name, failure)

    # -- what becomes of the replica -----------------------------------------------------------------------------------

    def hosted(self, partition: Partition) -> None:
        """A replica is here: a move that a stop has interrupted goes on."""
        try:
            move = self._logs.move_under_way(partition.tp)
        except Failure as failure:
            _log.error("the move of %s does not go on: %s", partition.tp, failure)
            return
        if move is not None:
            self._moves[partition.tp] = _Moving(partition, move.end, move)
            self._begin_some()

    def cut(self, partition: Partition) -> None:
        """The replica's log was cut."""
        moving = self._moves.get(partition.tp)
        if moving is None or moving.move is None or not moving.move.stands:
            return
        try:
            moving.move.cut()
        except (Failure, ApiError) as error:
            _log.warning("the copy of %s in %s: %s", partition.tp, moving.target.name, error)
            self._cancel_partition(partition.tp)

    # -- step by step --------------------------------------------------------------------------------------------------

    def _begin_some(self) -> None:
        for tp, moving in self._moves.items():
            if len(self._running) >= self._slots:
                break
            if tp not in self._running:
                self._running[tp] = moving
                self._after(PAUSE_MS, moving)

    def _after(self, delay_ms: int, moving: _Moving) -> None:
        self._purgatory.look_after(delay_ms, lambda: self._step_move(moving))

    def _goes_on(self, moving: _Moving) -> bool:
        """Whether it is still wanted and possible: every completion asks first."""
        partition, move = moving.partition, moving.move
        if self._running.get(partition.tp) is not moving:
            return False
        possible = moving.target.offline is None if move is None else move.stands
        if possible and self._hosted.find(*partition.tp) is partition and partition.offline is None:
            return True
        self._on_done(moving)
        return False

    @changes_state
    def _on_done(self, moving: _Moving) -> None:
        del self._moves[moving.partition.tp], self._running[moving.partition.tp]
        self._begin_some()

    def _step_move(self, moving: _Moving) -> None:
        if not self._goes_on(moving):
            return
        now_ns = self._clock.now().mono_ns
        if self._rate < UNLIMITED and self._recent.per_second(now_ns) > self._rate:
            self._after(LOOK_MS, moving)
            return
        self._advance_move(moving)

    @changes_state
    def _advance_move(self, moving: _Moving) -> None:
        try:
            move = moving.move = moving.move or self._begin_move(moving)
            if move is None:
                self._after(LOOK_MS, moving)
            elif move.behind:
                move.copy_piece(PIECE, lambda outcome: self._copied(moving, outcome))
            else:
                move.flush(lambda outcome: self._on_flushed(moving, outcome))
        except (Failure, ApiError) as error:
            self._on_failed(moving, error.as_value())

    def _begin_move(self, moving: _Moving) -> FutureLog | None:
        """None: something of its last move is still there, or it is being compacted. Raises Failure."""
        tp = moving.partition.tp
        if self._logs.is_moving(tp) or moving.partition.log.cleaning.until is not None:
            return None
        _log.info("%s moves from %s to %s", tp, moving.partition.log.disk.name, moving.target.name)
        return self._logs.begin_move(tp, moving.target)

    @changes_state
    def _copied(self, moving: _Moving, outcome: int | Failure | ApiError) -> None:
        if not self._goes_on(moving):
            return
        if isinstance(outcome, (Failure, ApiError)):
            self._on_failed(moving, outcome)
        else:
            self._recent.record(outcome, self._clock.now().mono_ns)
            self._after(PAUSE_MS, moving)

    @changes_state
    def _on_flushed(self, moving: _Moving, outcome: int | Failure) -> None:
        """All but the latest is durable: the rest, and the swap, unless too much has come meanwhile."""
        move = moving.move
        if not self._goes_on(moving) or move is None:
            return
        try:
            if isinstance(outcome, Failure):
                raise outcome
            if move.may_swap and move.catch_up(moving.last_piece):
                moving.partition.move_to(move.swap())
                _log.info("%s is in %s from now on", move.tp, move.end.name)
                self._on_done(moving)
                return
        except (Failure, ApiError) as error:
            self._on_failed(moving, error.as_value())
            return
        moving.last_piece = min(2 * moving.last_piece, LAST_PIECE_MOST)
        self._after(PAUSE_MS, moving)

    def _on_failed(self, moving: _Moving, error: Failure | ApiError) -> None:
        if not self._goes_on(moving):
            return
        tp = moving.partition.tp
        if isinstance(error, ApiError) and error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            _log.error("%s cannot be copied to %s: %s", tp, moving.target.name, error)
            self._cancel_partition(tp)
            self._begin_some()
        else:
            _log.warning("%s waits for %s: %s", tp, moving.target.name, error)
            self._after(RETRY_MS, moving)
