"""A leader's knowledge of the replicas of one partition, and the arithmetic on it.

Zone: pure. Numbers in, numbers out; no log, no clock. `isr` keeps these values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.types import NO_EPOCH, NO_OFFSET

NEVER: Final = -(2**63)
"""A time in ns before all others."""
NO_LEADER: Final = -1


class PartitionState(NamedTuple):
    """The controller's state of a partition (LeaderAndIsr): leader, epochs, ISR, replicas."""

    leader: int
    """Broker id; -1: none."""
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    """Version of the partition's state node; grows with each change of it, also within a leader epoch."""
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False
    """Whether the partition was just created, so that its log is created instead of missing."""


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in a log: the offset after its last record."""

    epoch: int
    end_offset: int


class IsrProposal(NamedTuple):
    """The ISR that a leader asks the controller for (AlterPartition, KIP-497)."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """The broker epoch of each member's latest fetch, -1: not known. The channel fills in the leader's own."""
    leader_epoch: int
    partition_epoch: int
    """The state that this proposal changes."""


class IsrOutcome(NamedTuple):
    """The controller's decision on a proposal: the state that it wrote, or its error."""

    proposal: IsrProposal
    error: ErrorCode
    isr: tuple[int, ...] = ()
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH


class Replica(NamedTuple):
    """A follower as of its latest fetch. Times in ns of the monotonic clock."""

    end_offset: int = NO_OFFSET
    """Its LEO: the offset of its latest fetch. -1: it has not fetched in this leader epoch."""
    log_start: int = NO_OFFSET
    broker_epoch: int = NO_EPOCH
    caught_up_ns: int = NEVER
    """Kafka's lastCaughtUpTime: when it last had all records of the leader."""
    fetched_ns: int = NEVER
    leader_end: int = NO_OFFSET
    """The leader's LEO at that fetch."""


def after_fetch(
    before: Replica, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ns: int, contact_ns: int
) -> Replica:
    """The new values of a follower that fetches from `offset` while the leader's LEO is `leader_end`.

    It is caught up now if it has all records. It was caught up at its previous fetch if it now has all records of that
    time, so that a follower of a busy leader counts as caught up although it never has the very latest record.
    `contact_ns` is the latest fetch of its session that did not name this partition: a fetch at the same offset.
    """
    caught_up_ns = before.caught_up_ns
    if offset >= leader_end:
        caught_up_ns = now_ns
    elif offset >= before.leader_end:
        caught_up_ns = max(caught_up_ns, before.fetched_ns, _caught_up_by_contact(before, contact_ns))
    return Replica(offset, log_start, broker_epoch, caught_up_ns, now_ns, leader_end)


def _caught_up_by_contact(replica: Replica, contact_ns: int) -> int:
    return contact_ns if replica.end_offset >= replica.leader_end > NO_OFFSET else NEVER


def is_caught_up(replica: Replica, leader_end: int, now_ns: int, contact_ns: int, lag_ns: int) -> bool:
    """Whether a follower belongs in the ISR: it has all records, or had within `lag_ns` (replica.lag.time.max.ms)."""
    if replica.end_offset == leader_end:
        return True
    return now_ns - max(replica.caught_up_ns, _caught_up_by_contact(replica, contact_ns)) <= lag_ns


def may_join(replica: Replica, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower may join the ISR: it has all committed records, and has reached the start of this epoch."""
    return replica.end_offset >= high_watermark and replica.end_offset >= epoch_start


def maximal_isr(isr: tuple[int, ...], proposed: Iterable[int]) -> tuple[int, ...]:
    """All replicas that may be in the ISR by now: its members, even if their removal is proposed, and joiners."""
    return isr + tuple(each for each in proposed if each not in isr)


def effective_min_isr(configured: int, replicas: Collection[int], adding: Collection[int]) -> int:
    """The number of in-sync replicas that acks=all and the high watermark need: min.insync.replicas, or all replicas
    if there are fewer.

    Replicas that a reassignment is adding do not count, unlike in Kafka: otherwise a topic with one replica would
    refuse acks=all from the beginning of its reassignment until the first added replica is in sync.
    """
    return min(configured, max(1, len(replicas) - len(adding)))


def next_high_watermark(current: int, end_offsets: Iterable[int], isr_size: int, min_isr: int) -> int:
    """The high watermark after an end offset has moved.

    `end_offsets` are those of the *maximal* ISR. The high watermark never decreases, and does not move while the ISR is
    smaller than `effective_min_isr` (KIP-966).
    """
    if isr_size < min_isr:
        return current
    return max(current, min(end_offsets))
