"""What a leader knows of the replicas of one partition, and the arithmetic on it.

Zone: pure. Numbers in, numbers out; no log, no clock. Who keeps these values is `isr`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from ottla.errors import ErrorCode
from ottla.types import NO_EPOCH, NO_OFFSET

if TYPE_CHECKING:
    from ottla.replication.partition.partition import Partition

NEVER: Final = -(2**63)
"""A time in ns before all others."""
NO_LEADER: Final = -1


class PartitionState(NamedTuple):
    """What the controller says of a partition (LeaderAndIsr): who leads, since when, who is in sync."""

    leader: int
    """Broker id, -1: nobody."""
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    """Version of the partition's state node; grows with every change of it, also within a leader epoch."""
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False
    """Created just now: a log that is not there is made, not missed."""


class EpochEnd(NamedTuple):
    """Where a leader epoch ends in a log: the offset after its last record."""

    epoch: int
    end_offset: int


class IsrProposal(NamedTuple):
    """The ISR that a leader asks the controller for (AlterPartition, KIP-497)."""

    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    """Per member the broker epoch with which it fetched, -1: not known. The leader's own is the channel's to put in."""
    leader_epoch: int
    partition_epoch: int
    """The state that this proposal changes."""


class IsrOutcome(NamedTuple):
    """The controller's own word on a proposal: the state it wrote, or why it refused."""

    proposal: IsrProposal
    error: ErrorCode
    isr: tuple[int, ...] = ()
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = NO_EPOCH


class IsrChannel(Protocol):
    """The way of a leader to the controller."""

    def propose(self, partition: Partition, proposal: IsrProposal) -> None:
        """Ask the controller for another ISR; `Partition.isr_answered` follows in a later turn, exactly once.

        Only a definite word comes back: what may or may not have been carried out (lost connections, time-outs,
        NOT_CONTROLLER) is asked again by the channel. OPERATION_NOT_ATTEMPTED: it certainly was not.
        """
        ...


class Replica(NamedTuple):
    """What a leader knows of one follower, as of its latest fetch. Times in ns of the monotonic clock."""

    end_offset: int = NO_OFFSET
    """Its LEO: the offset it fetched from. -1: it has not fetched in this leader epoch."""
    log_start: int = NO_OFFSET
    broker_epoch: int = NO_EPOCH
    caught_up_ns: int = NEVER
    """Kafka's lastCaughtUpTime: when it last had everything that the leader had."""
    fetched_ns: int = NEVER
    leader_end: int = NO_OFFSET
    """The leader's LEO at that fetch."""


def after_fetch(
    before: Replica, offset: int, log_start: int, broker_epoch: int, leader_end: int, now_ns: int, contact_ns: int
) -> Replica:
    """What is known of a follower that fetches from `offset` while the leader's LEO is `leader_end`.

    It is caught up now if it has all, and was at its previous fetch if it now has all that there was then (so that a
    follower just behind a busy leader counts as caught up). `contact_ns` is the latest fetch of its session that had
    nothing to say about this partition: one more at the same place.
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
    """Whether a follower belongs in the ISR: it has everything, or had within `lag_ns` (replica.lag.time.max.ms)."""
    if replica.end_offset == leader_end:
        return True
    return now_ns - max(replica.caught_up_ns, _caught_up_by_contact(replica, contact_ns)) <= lag_ns


def may_join(replica: Replica, high_watermark: int, epoch_start: int) -> bool:
    """Whether a follower may be proposed for the ISR: it has all that is committed, and the start of this epoch."""
    return replica.end_offset >= high_watermark and replica.end_offset >= epoch_start


def maximal_isr(isr: tuple[int, ...], proposed: Iterable[int]) -> tuple[int, ...]:
    """Everybody who is in the ISR or may be by now: members (a proposed shrink still counts them), and joiners."""
    return isr + tuple(each for each in proposed if each not in isr)


def effective_min_isr(configured: int, replicas: Collection[int], adding: Collection[int]) -> int:
    """How many in-sync replicas acks=all and the high watermark need: min.insync.replicas, or all if there are fewer.

    Replicas that a reassignment is adding do not count: otherwise a topic with one replica would refuse acks=all from
    the beginning of its reassignment until the first added replica is in sync. Kafka counts them.
    """
    return min(configured, max(1, len(replicas) - len(adding)))


def next_high_watermark(current: int, end_offsets: Iterable[int], isr_size: int, min_isr: int) -> int:
    """The high watermark after some end offset moved.

    `end_offsets` are those of the *maximal* ISR. The watermark never goes back, and does not move while the ISR is
    smaller than `effective_min_isr` (KIP-966).
    """
    if isr_size < min_isr:
        return current
    return max(current, min(end_offsets))
