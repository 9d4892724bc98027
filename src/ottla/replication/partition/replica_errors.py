"""Refusals of a partition: who asks as if the world were another.

Zone: pure. Each makes the error with Kafka's code and a text for people; when to raise it is the partition's.
"""

from __future__ import annotations

from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.replica_state import EpochEnd
from ottla.types import NO_EPOCH, TopicPartition


def wrong_epoch(tp: TopicPartition, current: int, asked: int) -> ApiError:
    """Somebody who knows an older or a newer leader (KIP-320)."""
    code = ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ApiError(code, f"{tp} is led in epoch {current}, asked for epoch {asked}")


def not_leader(tp: TopicPartition, node_id: int, leader: int) -> ApiError:
    """The partition is led elsewhere, or by nobody."""
    return ApiError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {node_id} does not lead {tp}, broker {leader} does (-1: nobody)"
    )


def stranger(tp: TopicPartition, replica_id: int, leader_epoch: int) -> ApiError:
    """A fetch of a broker that is not an assigned replica."""
    # With the leader's own epoch it comes from a broker that knows more than this one: it shall ask again.
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if leader_epoch == NO_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ApiError(code, f"broker {replica_id} is not a replica of {tp}")


def unconfirmed(gap: ApiError) -> ApiError:
    """A leader misses what a new leader may have; whoever asked looks for that one.

    Not NOT_LEADER_OR_FOLLOWER, on which a producer has to take the batch for written, perhaps.
    """
    text = f"{gap.message}, unless another broker leads by now: this one waits for its followers"
    return ApiError(ErrorCode.LEADER_NOT_AVAILABLE, text)


def out_of_range(tp: TopicPartition, start_offset: int, end_offset: int, asked: int) -> ApiError:
    """An offset that the log does not have."""
    message = f"{tp} has offsets {start_offset} to {end_offset}, asked for {asked}"
    return ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message)


def parting(found: EpochEnd, offset: int, last_epoch: int) -> EpochEnd | None:
    """Where a log that ends at `offset` in `last_epoch` parts from the leader's; None when it does not (KIP-595).

    `found` is the largest epoch of the leader that is not above `last_epoch`, and its end offset there.
    """
    return found if found.epoch < last_epoch or found.end_offset < offset else None
