"""Errors for requests with a stale leader epoch, for the wrong replica, or with an offset out of range.

Zone: pure. Each function builds an error with Kafka's code and a text; the partition decides when to raise it.
"""

from __future__ import annotations

from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition.replica_state import EpochEnd
from ottla.types import NO_EPOCH, TopicPartition


def leader_epoch_error(tp: TopicPartition, current: int, asked: int) -> ApiError:
    """The error for a request that names an older or a newer leader epoch (KIP-320)."""
    code = ErrorCode.FENCED_LEADER_EPOCH if asked < current else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ApiError(code, f"{tp} has leader epoch {current}, the request has {asked}")


def not_leader_error(tp: TopicPartition, node_id: int, leader: int) -> ApiError:
    """The error for a partition that another broker leads, or that has no leader."""
    return ApiError(
        ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {node_id} does not lead {tp}; its leader is {leader} (-1: none)"
    )


def unknown_replica_error(tp: TopicPartition, replica_id: int, leader_epoch: int) -> ApiError:
    """The error for a fetch of a broker that is not an assigned replica."""
    # With the leader's own epoch the broker may know of a reassignment before this one does: it has to retry.
    code = ErrorCode.NOT_LEADER_OR_FOLLOWER if leader_epoch == NO_EPOCH else ErrorCode.UNKNOWN_LEADER_EPOCH
    return ApiError(code, f"broker {replica_id} is not a replica of {tp}")


def unconfirmed_gap_error(gap: ApiError) -> ApiError:
    """The error for a sequence gap while another broker may lead: the producer refreshes its metadata and retries.

    Not NOT_LEADER_OR_FOLLOWER, after which a producer has to assume that the batch may have been written.
    """
    text = f"{gap.message}; this leader waits for its followers to confirm that no other broker leads"
    return ApiError(ErrorCode.LEADER_NOT_AVAILABLE, text)


def out_of_range_error(tp: TopicPartition, start_offset: int, end_offset: int, asked: int) -> ApiError:
    """The error for an offset that the log does not have."""
    message = f"{tp} has offsets {start_offset} to {end_offset}, the request has {asked}"
    return ApiError(ErrorCode.OFFSET_OUT_OF_RANGE, message)


def divergence_of(found: EpochEnd, offset: int, last_epoch: int) -> EpochEnd | None:
    """Where a log that ends at `offset` in `last_epoch` diverges from the leader's; None if it does not (KIP-595).

    `found` is the largest epoch of the leader that is not above `last_epoch`, and its end offset there.
    """
    return found if found.epoch < last_epoch or found.end_offset < offset else None
