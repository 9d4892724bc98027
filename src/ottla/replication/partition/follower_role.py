"""What a replica does while it follows: takes records and offsets from its leader, and cuts its log to match it.

Zone: deterministic. `fetcher` fetches from the leader and decides where to cut.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.local_replica import LocalReplica
from ottla.seams import Failure


class FollowerRole:
    """The follower's part of one replica."""

    __slots__ = ("replica",)

    def __init__(self, replica: LocalReplica) -> None:
        self.replica = replica

    def append(self, records: memoryview, leader_epoch: int) -> int:
        """Append batches that were fetched in `leader_epoch`, unchanged; ignores an incomplete batch at the end.

        Returns the log end. Raises ApiError NOT_LEADER_OR_FOLLOWER (it does not follow in that epoch any more),
        CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR; batches before the error are in the log.
        """
        replica = self.replica
        if replica.offline is not None or replica.is_leader or leader_epoch != replica.leader_epoch:
            raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{replica.tp} does not follow in epoch {leader_epoch}")
        replica.shared.replication_bytes_in += len(records)
        return replica.log.append_replica(records, leader_epoch)

    def take_from_leader(self, high_watermark: int, log_start: int) -> None:
        """Take the leader's high watermark and log start, after its records are in the log.

        The high watermark becomes min(own LEO, the leader's), but never decreases: committed records stay so, even if a
        new leader has not learned of it yet. The log start rises, but not above the high watermark (KAFKA-9491).
        """
        replica = self.replica
        log = replica.log
        mark = min(high_watermark, log.end_offset)
        start = min(log_start, max(mark, replica.high_watermark))
        moved = start > log.start_offset
        if moved:
            log.set_start_offset(start)
        mark = max(mark, replica.high_watermark, log.start_offset)
        if moved or mark != replica.high_watermark:
            replica.move_high_watermark(mark)

    def truncate_to(self, offset: int) -> None:
        """Follower: delete all records from `offset` on, and epochs without records. Raises KAFKA_STORAGE_ERROR."""
        replica = self.replica
        self._cut_log(replica.log.truncate_to, offset)
        replica.log.epochs.truncate_from_end(replica.log.end_offset)

    def restart_at(self, offset: int) -> None:
        """Follower: delete all records and restart the log at `offset`, the leader's log start. Raises ApiError."""
        replica = self.replica
        self._cut_log(replica.log.restart_at, offset)

    def _cut_log(self, cut: Callable[[int], None], offset: int) -> None:
        replica = self.replica
        assert not replica.is_leader, f"{replica.tp} is led here: a leader never truncates its log"
        try:
            cut(offset)
        except Failure as failure:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, failure.message) from failure
        replica.shared.on_cut(replica)
        replica.high_watermark = replica.log.high_watermark
        replica.wake_watchers()
