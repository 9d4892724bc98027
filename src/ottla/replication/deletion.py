"""DeleteRecords on a partition: raises the log start, and waits until every live replica has raised its own.

Zone: deterministic. API 21 for one partition; `log_handlers` handles the request.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import DelayedOperation, Purgatory
from ottla.replication.leaders import Leaders
from ottla.replication.partition.partition import Partition
from ottla.types import NO_EPOCH

_HIGH_WATERMARK: Final = -1

Deleted = Callable[["int | ApiError"], None]
"""Receives the low watermark, which is the smallest log start of the live replicas, or an error."""


class DelayedDeleteRecords(DelayedOperation):
    """Waits until the low watermark of a partition has reached an offset."""

    __slots__ = ("_done", "_error", "_leaders", "_offset", "_partition")

    def __init__(self, partition: Partition, offset: int, leaders: Leaders, done: Deleted) -> None:
        super().__init__()
        self._partition = partition
        self._offset = offset
        self._leaders = leaders
        self._done = done
        self._error: ApiError | None = None

    def try_complete(self) -> bool:
        """Case A: every live replica has deleted the records. Case B: leadership is lost."""
        try:
            self._partition.check_leader(NO_EPOCH)
        except ApiError as error:
            self._error = error.as_value()
        else:
            if self._low_watermark() < self._offset:
                return self.completed
        return self.completed or self.force_complete()

    def _low_watermark(self) -> int:
        partition = self._partition
        # A dead follower raises its log start when it fetches again, so the deletion does not wait for it.
        starts = [start for node, start in partition.leader_role.log_starts() if self._leaders.is_alive(node)]
        return min([partition.log.start_offset, *starts])

    def on_expire(self) -> None:
        """Answer REQUEST_TIMED_OUT: the leader has deleted the records, some follower has not confirmed it."""
        self._error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "not every replica has deleted the records in time")

    def on_complete(self) -> None:
        """Report the low watermark or the error."""
        self._done(self._error or self._low_watermark())


def delete_records(
    partition: Partition, offset: int, timeout_ms: int, leaders: Leaders, purgatory: Purgatory, done: Deleted
) -> None:
    """Raise the log start to `offset` (-1: the high watermark); `done` receives the result now or later.

    Raises ApiError OFFSET_OUT_OF_RANGE above the high watermark, POLICY_VIOLATION on a compacted-only topic,
    NOT_LEADER_OR_FOLLOWER, KAFKA_STORAGE_ERROR.
    """
    partition.check_leader(NO_EPOCH)
    # As in Kafka. With compact,delete the policy itself deletes from the start of the log, so a request may do so as
    # well.
    if partition.config.compact and not partition.config.delete:
        message = f"{partition.tp} is compacted, records cannot be deleted by offset"
        raise ApiError(ErrorCode.POLICY_VIOLATION, message)
    target = partition.high_watermark if offset == _HIGH_WATERMARK else offset
    if not 0 <= target <= partition.high_watermark:
        message = f"offset {offset} is not between 0 and the high watermark {partition.high_watermark}"
        raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message)
    # The leader's start moves now. Followers get it with their next fetch, and report theirs with the one after that,
    # which the response waits for.
    partition.leader_role.raise_start(max(target, partition.log.start_offset))
    waiting = DelayedDeleteRecords(partition, target, leaders, done)
    purgatory.try_complete_else_watch(waiting, (partition,), max(0, timeout_ms))
