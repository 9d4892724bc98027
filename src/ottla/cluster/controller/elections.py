"""Choice of a partition's next leader: one function per occasion.

Zone: pure. Values in, values out. `online` are the replicas that could lead now: their broker is alive and not
stopping, and the log directory they are in works. Every function returns the next state of the partition, or None when
there is nothing to change or no replica to elect.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from ottla.cluster.image import NO_LEADER, PartitionImage


class Elected(NamedTuple):
    """The outcome of an election: the next state, and whether records may be lost by it."""

    partition: PartitionImage
    unclean: bool = False


def first_eligible(order: Sequence[int], isr: Collection[int], online: Collection[int]) -> int | None:
    """The first replica in that order that is in sync and online."""
    return next((replica for replica in order if replica in isr and replica in online), None)


def offline_election(partition: PartitionImage, online: Collection[int], unclean: bool) -> Elected | None:
    """The next state when replicas went away or came back, or the partition has no leader.

    1. The leader is online: it stays, and the ISR loses the replicas that are offline.
    2. A member of the ISR is online: the first one in assignment order leads.
    3. `unclean` allows it: the first replica that is online leads, as the only member of the ISR. Records may be lost.
    4. Otherwise the partition has no leader. It keeps its last ISR: one of those replicas has all records.
    """
    isr = tuple(replica for replica in partition.isr if replica in online)
    if partition.leader in online:
        return None if isr == partition.isr else Elected(_next_state(partition, partition.leader, isr))
    leader = first_eligible(partition.replicas, partition.isr, online)
    if leader is not None:
        return Elected(_next_state(partition, leader, isr if leader in isr else (leader,)))
    leader = first_eligible(partition.replicas, partition.replicas, online) if unclean else None
    if leader is not None:
        return Elected(_next_state(partition, leader, (leader,)), unclean=True)
    if partition.leader == NO_LEADER:
        return None
    return Elected(_next_state(partition, NO_LEADER, partition.isr))


def restarted_election(partition: PartitionImage, online: Collection[int], elders: Collection[int]) -> Elected | None:
    """The next state when the leader or a member of the ISR has restarted, and no controller noticed its death.

    `elders` are the replicas online that did not restart. An in-sync one among them leads, as after a death. If there
    is none the leader stays in a new epoch: it may have lost what it appended before, while followers have it.
    None: the leader is offline, which `offline_election` handles.
    """
    elected = offline_election(partition, elders, False)
    if elected is not None and elected.partition.leader != NO_LEADER:
        return elected
    if partition.leader not in online:
        return None
    return Elected(_next_state(partition, partition.leader, tuple(each for each in partition.isr if each in online)))


def distrusting_election(partition: PartitionImage, online: Collection[int], blank: Collection[int]) -> Elected | None:
    """The next state when brokers in the ISR have lost their logs: they leave it if other members are left.

    The other members may be offline: having no leader until one returns is better than a leader without the records.
    If no other member is left, no replica has more records than they have, and they stay.
    """
    isr = tuple(replica for replica in partition.isr if replica not in blank)
    if not isr or isr == partition.isr:
        return None
    leader: int | None = partition.leader
    if leader in blank or leader not in online:
        leader = first_eligible(partition.replicas, isr, online)
    return Elected(_next_state(partition, NO_LEADER if leader is None else leader, isr))


def preferred_election(partition: PartitionImage, online: Collection[int]) -> Elected | None:
    """Give leadership to the first replica of the assignment if it is in sync and online and does not lead already."""
    preferred = partition.replicas[0]
    if preferred == partition.leader or preferred not in partition.isr or preferred not in online:
        return None
    return Elected(_next_state(partition, preferred, partition.isr))


def shutdown_election(partition: PartitionImage, online: Collection[int], leaving: Collection[int]) -> Elected | None:
    """The next state when brokers (`leaving`) stop in an orderly way: they give up leadership and leave the ISR.

    None when no other replica is in sync: the partition stays as it is until the broker is gone.
    """
    isr = tuple(replica for replica in partition.isr if replica not in leaving)
    if not isr or isr == partition.isr or partition.leader == NO_LEADER:
        return None
    if partition.leader not in leaving:
        return Elected(_next_state(partition, partition.leader, isr))
    leader = first_eligible(partition.replicas, isr, online)
    return None if leader is None else Elected(_next_state(partition, leader, isr))


def reassigned_election(partition: PartitionImage, target: Sequence[int], online: Collection[int]) -> Elected | None:
    """The state that ends a move: leader and ISR are among the target replicas. None: none of them could lead.

    The epoch rises in any case, so that the leader learns of the new replicas.
    """
    isr = tuple(replica for replica in partition.isr if replica in target)
    leader = partition.leader
    if leader not in target or leader not in online:
        eligible = first_eligible(target, isr, online)
        if eligible is None:
            return None
        leader = eligible
    return Elected(_next_state(partition, leader, isr))


def bump_epoch(partition: PartitionImage) -> Elected:
    """The same leader and ISR under the next epoch, which makes earlier ISR proposals void."""
    return Elected(_next_state(partition, partition.leader, partition.isr))


def _next_state(partition: PartitionImage, leader: int, isr: tuple[int, ...]) -> PartitionImage:
    """The next state. Its version in the store is known after the write."""
    assert leader in (NO_LEADER, *isr), f"leader {leader} is not among the in-sync replicas {isr}"
    return partition._replace(leader=leader, isr=isr, leader_epoch=partition.leader_epoch + 1)
