"""Moves replicas between the log directories of this broker (KIP-113): order, number and rate of moves.

Zone: deterministic. At most num.replica.alter.log.dirs.threads moves run (by default one per log directory); the others
wait. A move copies one piece per turn; the last piece is copied in the turn in which log and copy change places.
`storage.future_log` explains why a crash at any moment is safe.
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
"""Pause between two pieces, so that other work gets its turn."""
LAST_PIECE: Final = 512 * 1024
"""Most bytes that the swap of log and copy still copies within its turn. Doubled each time it was not enough."""
LAST_PIECE_MOST: Final = 8 * 1024 * 1024
LOOK_MS: Final = 100
"""Interval of the checks whether the throttle, or the remains of an earlier move, still hold a move back."""
RETRY_MS: Final = 1000
"""Pause after a disk error, for example on a full disk."""
PREFERRED_KEPT: Final = 10_000
"""Most preferred directories that are remembered for replicas that are not here yet."""
_log = logging.getLogger(__name__)


class _Moving:
    """One replica that moves, or waits to be moved."""

    __slots__ = ("last_piece", "move", "partition", "target")

    def __init__(self, partition: Partition, target: LogDir, move: FutureLog | None) -> None:
        self.partition = partition
        self.target = target
        self.move = move
        """None before the copy has begun."""
        self.last_piece = LAST_PIECE

    @property
    def copy_lag(self) -> int:
        """Records that the copy lacks; all of them before it has begun."""
        log = self.partition.log
        return log.end_offset - log.start_offset if self.move is None else self.move.lag


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
        """Running and waiting moves, in the order of their requests."""
        self._running: dict[TopicPartition, _Moving] = {}
        self._preferred: dict[TopicPartition, str] = {}
        """Directories for replicas that are not here yet."""
        self.apply_broker_config(config)

    def apply_broker_config(self, config: BrokerConfig) -> None:
        """Apply changed settings of this broker."""
        self._rate = config.replica_alter_log_dirs_io_max_bytes_per_second

    def stop_moves(self) -> None:
        """Forget all moves because the logs are about to be closed. Moves under way continue after the next start."""
        self._moves.clear()
        self._running.clear()

    @property
    def max_lag(self) -> int:
        """Records that the copy with the largest lag lacks; a move that has not begun lacks all."""
        return max((each.copy_lag for each in self._moves.values()), default=0)

    def waiting_for(self, target: LogDir) -> list[TopicPartition]:
        """Replicas that are moved to a directory when those before them are done."""
        # Moves are few, and only those that were asked for: no other replica is looked at.
        return [tp for tp, each in self._moves.items() if each.move is None and each.target is target]

    def is_waiting(self, tp: TopicPartition, target: LogDir) -> bool:
        """Whether a replica is one of them."""
        moving = self._moves.get(tp)
        return moving is not None and moving.move is None and moving.target is target

    # -- AlterReplicaLogDirs -------------------------------------------------------------------------------------------

    def alter_partition(self, tp: TopicPartition, path: str) -> None:
        """Begin to move a replica to that log directory, instead of a move elsewhere. Does not wait for the copy.

        Raises ApiError: LOG_DIR_NOT_FOUND, KAFKA_STORAGE_ERROR (a directory is offline), REPLICA_NOT_AVAILABLE (the
        replica is not here; if it is created later, it is created in that directory).
        """
        target = self._dir_at(path)
        partition = self._hosted.find_partition(*tp)
        # 1. Not here: an error, as in Kafka, which also remembers the directory for later.
        if partition is None:
            self._remember_preferred(tp, target)
            raise ApiError(ErrorCode.REPLICA_NOT_AVAILABLE, f"no replica of {tp} is on this broker")
        if partition.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the replica of {tp} is out of service")
        # 2. It moves there already.
        present = self._moves.get(tp)
        if present is not None and present.target is target:
            return
        # 3. Another move, or, to the directory in which it is, only the end of a move.
        self._cancel_partition(tp)
        if partition.log.disk.name != target.name:
            self._moves[tp] = _Moving(partition, target, None)
            self._begin_next_moves()

    def _dir_at(self, path: str) -> LogDir:
        found = next((each for each in self._logs.dirs if each.name.rstrip("/") == path.rstrip("/")), None)
        if found is None:
            raise ApiError(ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is not among log.dirs")
        if found.offline is not None:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"log directory {path} is offline")
        return found

    def _remember_preferred(self, tp: TopicPartition, target: LogDir) -> None:
        self._preferred.pop(tp, None)
        self._preferred[tp] = target.name
        if len(self._preferred) > PREFERRED_KEPT:
            del self._preferred[next(iter(self._preferred))]

    def take_preferred_dir(self, tp: TopicPartition) -> str:
        """Take the directory that was requested before the replica existed; empty if there is none."""
        return self._preferred.pop(tp, "")

    @changes_state
    def _cancel_partition(self, tp: TopicPartition) -> None:
        moving = self._moves.pop(tp, None)
        self._running.pop(tp, None)
        if moving is not None and moving.move is not None:
            _log.info("stopped moving %s to %s; deleting the copy", tp, moving.target.name)
            try:
                moving.move.give_up()
            except Failure as failure:
                _log.warning(
                    "could not delete the copy of %s in %s, the next start does: %s", tp, moving.target.name, failure
                )

    # -- events of the replica -----------------------------------------------------------------------------------------

    def resume_move(self, partition: Partition) -> None:
        """Continue the move of a new replica if a stop of the broker has interrupted it."""
        try:
            move = self._logs.find_move(partition.tp)
        except Failure as failure:
            _log.error("cannot continue the move of %s, the replica stays where it is: %s", partition.tp, failure)
            return
        if move is not None:
            self._moves[partition.tp] = _Moving(partition, move.target_dir, move)
            self._begin_next_moves()

    def truncate_copy(self, partition: Partition) -> None:
        """Cut the copy after the replica's log was cut."""
        moving = self._moves.get(partition.tp)
        if moving is None or moving.move is None or not moving.move.can_continue:
            return
        try:
            moving.move.follow_cut()
        except (Failure, ApiError) as error:
            _log.warning(
                "could not truncate the copy of %s in %s, ending the move: %s", partition.tp, moving.target.name, error
            )
            self._cancel_partition(partition.tp)

    # -- step by step --------------------------------------------------------------------------------------------------

    def _begin_next_moves(self) -> None:
        for tp, moving in self._moves.items():
            if len(self._running) >= self._slots:
                break
            if tp not in self._running:
                self._running[tp] = moving
                self._schedule_step(PAUSE_MS, moving)

    def _schedule_step(self, delay_ms: int, moving: _Moving) -> None:
        self._purgatory.look_after(delay_ms, lambda: self._step_move(moving))

    def _can_continue(self, moving: _Moving) -> bool:
        """Whether the move is still wanted and possible. Each step and completion checks this first.

        A move that became impossible is ended here.
        """
        partition, move = moving.partition, moving.move
        # 1. It was cancelled or replaced by a move elsewhere.
        if self._running.get(partition.tp) is not moving:
            return False
        # 2. It is impossible: a directory failed, the copy was deleted, or the replica is gone or another one.
        possible = moving.target.offline is None if move is None else move.can_continue
        if possible and self._hosted.find_partition(*partition.tp) is partition and partition.offline is None:
            return True
        self._on_done(moving)
        return False

    @changes_state
    def _on_done(self, moving: _Moving) -> None:
        del self._moves[moving.partition.tp], self._running[moving.partition.tp]
        self._begin_next_moves()

    def _step_move(self, moving: _Moving) -> None:
        if not self._can_continue(moving):
            return
        now_ns = self._clock.now().mono_ns
        if self._rate < UNLIMITED and self._recent.per_second(now_ns) > self._rate:
            self._schedule_step(LOOK_MS, moving)
            return
        self._advance_move(moving)

    @changes_state
    def _advance_move(self, moving: _Moving) -> None:
        try:
            move = moving.move = moving.move or self._begin_move(moving)
            if move is None:
                self._schedule_step(LOOK_MS, moving)
            elif move.lag:
                move.copy_piece(PIECE, lambda outcome: self._on_copied(moving, outcome))
            else:
                move.flush_copy(lambda outcome: self._on_flushed(moving, outcome))
        except (Failure, ApiError) as error:
            self._on_failed(moving, error.as_value())

    def _begin_move(self, moving: _Moving) -> FutureLog | None:
        """Begin the copy. None: the files of its last move are still there, or its log is compacted. Raises Failure."""
        tp = moving.partition.tp
        if self._logs.is_moving(tp) or moving.partition.log.cleaning.until is not None:
            return None
        _log.info("moving %s from %s to %s", tp, moving.partition.log.disk.name, moving.target.name)
        return self._logs.begin_move(tp, moving.target)

    @changes_state
    def _on_copied(self, moving: _Moving, outcome: int | Failure | ApiError) -> None:
        if not self._can_continue(moving):
            return
        if isinstance(outcome, (Failure, ApiError)):
            self._on_failed(moving, outcome)
        else:
            self._recent.record_bytes(outcome, self._clock.now().mono_ns)
            self._schedule_step(PAUSE_MS, moving)

    @changes_state
    def _on_flushed(self, moving: _Moving, outcome: int | Failure) -> None:
        """Copy the rest and swap log and copy, now that the copy is durable but for its newest records."""
        move = moving.move
        if not self._can_continue(moving) or move is None:
            return
        try:
            if isinstance(outcome, Failure):
                raise outcome
            if move.may_swap and move.catch_up(moving.last_piece):
                moving.partition.move_to(move.swap_in())
                _log.info("moved %s to %s", move.tp, move.target_dir.name)
                self._on_done(moving)
                return
        except (Failure, ApiError) as error:
            self._on_failed(moving, error.as_value())
            return
        # Too much was appended meanwhile: copy on, and allow the next swap to copy more, so that it succeeds some day.
        moving.last_piece = min(2 * moving.last_piece, LAST_PIECE_MOST)
        self._schedule_step(PAUSE_MS, moving)

    def _on_failed(self, moving: _Moving, error: Failure | ApiError) -> None:
        if not self._can_continue(moving):
            return
        tp = moving.partition.tp
        # Errors of the log's contents stay; errors of a disk may pass.
        if isinstance(error, ApiError) and error.code is not ErrorCode.KAFKA_STORAGE_ERROR:
            _log.error("cannot copy %s to %s, ending the move: %s", tp, moving.target.name, error)
            self._cancel_partition(tp)
            self._begin_next_moves()
        else:
            _log.warning("copying %s to %s failed, retrying in %d ms: %s", tp, moving.target.name, RETRY_MS, error)
            self._schedule_step(RETRY_MS, moving)
