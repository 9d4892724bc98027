"""Sticky assignment for members with different topics: partitions move one by one until no move improves the balance.

Zone: pure. The general case of Java's AbstractStickyAssignor, with the same order of attempts; see `sticky`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.client.consumer.assignment.assignors import Assignment, Subscriptions, Topics
from ottla.client.consumer.assignment.java_order import PartitionSet, hash_order, string_key
from ottla.client.consumer.protocol import NO_GENERATION
from ottla.types import TopicPartition


class Claim(NamedTuple):
    """The partitions that a member claims to own."""

    partitions: Sequence[TopicPartition]
    generation: int | None
    """The generation of the claim; None if the member does not report one."""

    @property
    def generation_or_none(self) -> int:
        """The generation, or NO_GENERATION if the member does not report one."""
        return NO_GENERATION if self.generation is None else self.generation


class Racks(NamedTuple):
    """Racks of consumers and replicas; empty if they do not matter."""

    consumers: Mapping[str, str]
    partitions: Mapping[TopicPartition, frozenset[str]]
    crowd: Mapping[TopicPartition, int]
    """Number of consumers that share a rack with the partition."""

    def lacks_replica(self, consumer: str, tp: TopicPartition) -> bool:
        """Whether no replica is in the consumer's rack."""
        rack = self.consumers.get(consumer)
        return rack is not None and rack not in self.partitions.get(tp, ())

    def next_consumer(self, tp: TopicPartition, consumers: Sequence[str], first: int) -> int:
        """Index of the next consumer from `first` on, in turn, with a replica in its rack; -1: there is
        none."""
        racks = self.partitions.get(tp, ())
        for step in range(len(consumers)):
            at = (first + step) % len(consumers)
            if self.consumers.get(consumers[at]) in racks:
                return at
        return -1


class _Movements:
    """The moves so far: prevents that one partition of a topic moves to a member while another one moves back."""

    def __init__(self) -> None:
        self._by_topic: dict[str, dict[tuple[str, str], PartitionSet]] = {}
        self._pairs: dict[TopicPartition, tuple[str, str]] = {}

    def record_move(self, tp: TopicPartition, old: str, new: str) -> None:
        """Record a move; a partition that returns to its first owner counts as not moved."""
        before = self._pairs.get(tp)
        if before is None:
            self._add_partition(tp, (old, new))
            return
        self._remove_partition(tp, before)
        if before[0] != new:
            self._add_partition(tp, (before[0], new))

    def partition_to_move(self, tp: TopicPartition, old: str, new: str) -> TopicPartition:
        """The partition to move: one of the same topic that moved the opposite way before, if there is one."""
        pairs = self._by_topic.get(tp.topic)
        if pairs is None:
            return tp
        if tp in self._pairs:
            old = self._pairs[tp][0]
        back = pairs.get((new, old))
        return back.first_partition() if back else tp

    def _add_partition(self, tp: TopicPartition, pair: tuple[str, str]) -> None:
        self._pairs[tp] = pair
        self._by_topic.setdefault(tp.topic, {}).setdefault(pair, PartitionSet()).add_partition(tp)

    def _remove_partition(self, tp: TopicPartition, pair: tuple[str, str]) -> None:
        del self._pairs[tp]
        pairs = self._by_topic[tp.topic]
        pairs[pair].discard_partition(tp)
        if not pairs[pair]:
            del pairs[pair]
        if not pairs:
            del self._by_topic[tp.topic]


class _ByLoad:
    """Members by number of partitions, then by name: Java's TreeSet over the current assignment."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._sorted: list[tuple[int, bytes, str]] = []
        self._keys: dict[str, tuple[int, bytes, str]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter([member for _, _, member in self._sorted])

    def add_member(self, member: str) -> None:
        """Add a member with its present load."""
        key = (len(self._assignment[member]), string_key(member), member)
        self._keys[member] = key
        insort(self._sorted, key)

    def remove_member(self, member: str) -> None:
        """Remove a member. Call this before its load changes."""
        key = self._keys.pop(member, None)
        if key is not None:
            del self._sorted[bisect_left(self._sorted, key)]

    @property
    def least_loaded(self) -> str:
        """The member with the fewest partitions."""
        return self._sorted[0][2]

    @property
    def most_loaded(self) -> str:
        """The member with the most partitions."""
        return self._sorted[-1][2]

    def __bool__(self) -> bool:
        return bool(self._sorted)


class GeneralAssignment:
    """One run of the algorithm."""

    def __init__(
        self, topics: Topics, racks: Racks, owned: Assignment, members: Subscriptions, claims: Mapping[str, Claim]
    ) -> None:
        self._topics = topics
        self._racks = racks
        self._current = owned
        order = hash_order(members)
        self._wanted = {
            member: {topic: None for topic in members[member].topics if topic in topics} for member in order
        }
        self._consumers = {topic: [each for each in order if topic in self._wanted[each]] for topic in topics}
        self._owner = {tp: member for member, partitions in owned.items() for tp in partitions}
        self._previous = _previous_owners(order, claims)
        ordered = sorted(topics, key=lambda topic: (len(self._consumers[topic]), string_key(topic)))
        self._all = [TopicPartition(topic, number) for topic in ordered for number in range(len(topics[topic]))]
        self._by_load = _ByLoad(self._current)
        self._movements = _Movements()
        self._revoking = False

    def build_assignment(self) -> Assignment:
        """The assignment."""
        kept = self._keep_owned()
        unassigned = [tp for tp in self._all if tp not in kept]
        for member in self._current:
            self._by_load.add_member(member)
        self._balance_members(unassigned)
        return self._current

    def _keep_owned(self) -> set[TopicPartition]:
        """Drop partitions that their owners may not keep; returns the kept ones."""
        kept: set[TopicPartition] = set()
        for member, partitions in self._current.items():
            stays = [
                tp
                for tp in partitions
                if tp.topic in self._wanted[member] and not self._racks.lacks_replica(member, tp)
            ]
            self._revoking |= len(stays) < len(partitions)
            partitions[:] = stays
            kept.update(stays)
        return kept

    def _balance_members(self, unassigned: Sequence[TopicPartition]) -> None:
        # Java's steps: 1. Assign what is unassigned, within racks first. 2. Take aside members whose partitions cannot
        # move. 3. Improve the balance, first with new partitions only, so that owned ones move as little as possible.
        # 4. Keep the assignment before step 3 if the result is not better. 5. Put the members of step 2 back.
        initializing = not self._current[self._by_load.most_loaded]
        rest = self._assign_partitions(unassigned, match=True) if self._racks.consumers else unassigned
        self._assign_partitions(rest, match=False)
        movable = {topic for topic, consumers in self._consumers.items() if len(consumers) >= 2}
        fixed = {member: self._current[member] for member in self._wanted if not self._may_change(member, movable)}
        for member in fixed:
            self._by_load.remove_member(member)
            del self._current[member]
        before = {member: list(partitions) for member, partitions in self._current.items()}
        if not self._revoking:
            self._reassign_partitions([tp for tp in unassigned if tp.topic in movable])
        changed = self._reassign_partitions([tp for tp in self._all if tp.topic in movable])
        if not initializing and changed and _load_imbalance(self._current) >= _load_imbalance(before):
            self._current.update(before)
        self._current.update(fixed)

    def _assign_partitions(self, partitions: Iterable[TopicPartition], *, match: bool) -> list[TopicPartition]:
        """Assign each to the member with the fewest partitions that wants it; returns those that no member wants."""
        return [tp for tp in partitions if not self._assign_one(tp, match)]

    def _assign_one(self, tp: TopicPartition, match: bool) -> bool:
        for member in self._by_load:
            if tp.topic in self._wanted[member] and not (match and self._racks.lacks_replica(member, tp)):
                self._by_load.remove_member(member)
                self._current[member].append(tp)
                self._owner[tp] = member
                self._by_load.add_member(member)
                return True
        return False

    def _may_change(self, member: str, movable: set[str]) -> bool:
        partitions = self._current[member]
        return len(partitions) < self._most_for(member) or any(tp.topic in movable for tp in partitions)

    def _most_for(self, member: str) -> int:
        return sum(len(self._topics[topic]) for topic in self._wanted[member])

    def _reassign_partitions(self, partitions: Sequence[TopicPartition]) -> bool:
        """Move partitions while that improves the balance; returns whether one moved."""
        moved_any = False
        while True:
            moved = False
            for tp in partitions:
                if self._is_balanced():
                    break
                moved |= self._move_if_better(tp)
            if not moved:
                return moved_any
            moved_any = True

    def _move_if_better(self, tp: TopicPartition) -> bool:
        # 1. Back to its owner of an earlier generation, if that has at least two fewer. 2. To the member with the
        # fewest, if any other consumer of the topic has at least two fewer.
        consumer = self._owner[tp]
        load = len(self._current[consumer])
        previous = self._previous.get(tp)
        back = previous is not None and previous in self._current and tp.topic in self._wanted[previous]
        if previous is not None and back and load > len(self._current[previous]) + 1:
            self._move_partition(tp, previous)
            return True
        # A check for consumers in the partition's racks would only find that some consumer has fewer: so does this one.
        if any(load > len(self._current[other]) + 1 for other in self._consumers[tp.topic]):
            self._move_partition(tp, next(each for each in self._by_load if tp.topic in self._wanted[each]))
            return True
        return False

    def _move_partition(self, tp: TopicPartition, new: str) -> None:
        moved = self._movements.partition_to_move(tp, self._owner[tp], new)
        old = self._owner[moved]
        self._by_load.remove_member(old)
        self._by_load.remove_member(new)
        self._movements.record_move(moved, old, new)
        self._current[old].remove(moved)
        self._current[new].append(moved)
        self._owner[moved] = new
        self._by_load.add_member(new)
        self._by_load.add_member(old)

    def _is_balanced(self) -> bool:
        """Whether no member has two partitions more than another one that could take one of them."""
        if not self._by_load:
            return True
        least, most = len(self._current[self._by_load.least_loaded]), len(self._current[self._by_load.most_loaded])
        return least >= most - 1 or not any(self._could_get(member) for member in self._by_load)

    def _could_get(self, member: str) -> bool:
        count = len(self._current[member])
        if count == self._most_for(member):
            return False
        return any(
            (owner := self._owner[tp]) != member and count + 1 < len(self._current[owner])
            for topic in self._wanted[member]
            for number in range(len(self._topics[topic]))
            if (tp := TopicPartition(topic, number)) in self._owner
        )


def _previous_owners(order: Sequence[str], claims: Mapping[str, Claim]) -> dict[TopicPartition, str]:
    """Owners of partitions in earlier generations: they may get them back."""
    newest = max(each.generation_or_none for each in claims.values())
    found: dict[TopicPartition, tuple[int, str]] = {}
    for member in order:
        generation = claims[member].generation_or_none
        if generation < newest:
            for tp in claims[member].partitions:
                if tp not in found or generation > found[tp][0]:
                    found[tp] = (generation, member)
    return {tp: member for tp, (_, member) in found.items()}


def _load_imbalance(assignment: Assignment) -> int:
    """The sum of the differences between all pairs of loads."""
    loads = sorted(len(partitions) for partitions in assignment.values())
    return sum(load * (2 * at - len(loads) + 1) for at, load in enumerate(loads))
