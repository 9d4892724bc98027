"""The assignors range and round-robin, and the code that all assignors share.

Zone: pure. The leader of a group runs them; the sticky ones are in `sticky`. Results equal Java's, partition by
partition and in the same order (KIP-881 for racks), so that any client may lead the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from ottla.client.consumer.assignment.java_order import hash_order, string_key
from ottla.client.consumer.protocol import Subscription
from ottla.types import TopicPartition

Topics = Mapping[str, Sequence[frozenset[str]]]
"""The racks of the replicas, by topic and partition number."""
Subscriptions = Mapping[str, Subscription]
"""By member id, in the order of the coordinator."""
Assignment = dict[str, list[TopicPartition]]
"""By member id; contains every member."""


class Assignor(Protocol):
    """A way to assign."""

    @property
    def name(self) -> str:
        """The name in `partition.assignment.strategy` and in JoinGroup requests."""

    @property
    def cooperative(self) -> bool:
        """Whether members keep their partitions during a rebalance (KIP-429)."""

    def user_data(self, owned: Sequence[TopicPartition] | None, generation: int) -> bytes | None:
        """User data of a member's subscription. owned: its last assignment (None: it had none), of `generation`."""

    def assign_partitions(self, topics: Topics, members: Subscriptions) -> Assignment:
        """The assignment. Topics that are missing in `topics` do not exist (yet)."""


def member_order(members: Subscriptions) -> list[str]:
    """Static members first, by instance id; then the others by member id."""

    def key(member: str) -> tuple[bool, bytes]:
        instance = members[member].instance_id
        return instance is None, string_key(member if instance is None else instance)

    return sorted(members, key=key)


def use_racks(consumer_racks: Iterable[str], racks: Iterable[frozenset[str]]) -> bool:
    """Whether racks matter: consumers and replicas share some, and some partition is not in all of them (KIP-881)."""
    partitions = list(racks)
    everywhere = frozenset().union(*partitions)
    return not everywhere.isdisjoint(consumer_racks) and any(each != everywhere for each in partitions)


def racks_of(members: Subscriptions) -> dict[str, str]:
    """The racks of those members that have one."""
    return {member: each.rack for member, each in members.items() if each.rack}


class Range:
    """Every member gets neighbouring partitions of every topic, so that co-partitioned topics stay together."""

    name = "range"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition] | None, generation: int) -> bytes | None:  # noqa: ARG002
        """None."""
        return None

    def assign_partitions(self, topics: Topics, members: Subscriptions) -> Assignment:
        """See Assignor."""
        order, racks = member_order(members), racks_of(members)
        wanted = {member: frozenset(members[member].topics) for member in members}
        mentioned = hash_order(each for member in hash_order(members) for each in members[member].topics)
        states = [
            _TopicState(name, topics[name], [each for each in order if name in wanted[each]], racks)
            for name in hash_order(name for name in mentioned if topics.get(name))
        ]
        result: Assignment = {member: [] for member in members}
        rack_aware = any(state.rack_aware for state in states)
        if rack_aware:
            _match_racks(states, result)
        for state in states:
            state.assign_ranges(lambda _member, _number: True, result)
        if rack_aware:
            for partitions in result.values():
                partitions.sort(key=lambda tp: (string_key(tp.topic), tp.partition))
        return result


class _TopicState:
    """The partitions of one topic that are not assigned yet."""

    def __init__(
        self, name: str, racks: Sequence[frozenset[str]], consumers: Sequence[str], consumer_racks: Mapping[str, str]
    ) -> None:
        self.name = name
        self.racks = racks
        self.consumers = tuple(consumers)
        self._rack = {each: consumer_racks[each] for each in consumers if each in consumer_racks}
        self._left = dict.fromkeys(range(len(racks)))
        self._given = dict.fromkeys(consumers, 0)
        self._each, self._extra = divmod(len(racks), len(consumers)) if consumers else (0, 0)
        self.rack_aware = use_racks(self._rack.values(), racks)

    def matches_rack(self, consumer: str, number: int) -> bool:
        """Whether the partition has a replica in the consumer's rack; a consumer without rack matches all."""
        rack = self._rack.get(consumer)
        return rack is None or rack in self.racks[number]

    def remaining_quota(self, consumer: str) -> int:
        """How many more partitions the consumer may get."""
        return max(0, self._each + (self._extra > 0) - self._given[consumer])

    def assign_ranges(self, may: Callable[[str, int], bool], result: Assignment) -> None:
        """Assign each consumer, in order, its share of the partitions that are left and allowed by `may`."""
        for consumer in self.consumers:
            chosen = [number for number in self._left if may(consumer, number)][: self.remaining_quota(consumer)]
            if chosen:
                self.give_partitions(consumer, chosen, result)

    def give_partitions(self, consumer: str, numbers: Sequence[int], result: Assignment) -> None:
        """Assign the partitions to the consumer."""
        result[consumer] += [TopicPartition(self.name, number) for number in numbers]
        self._given[consumer] += len(numbers)
        if self._given[consumer] > self._each:
            self._extra -= 1
        for number in numbers:
            self._left.pop(number, None)


def _match_racks(states: Sequence[_TopicState], result: Assignment) -> None:
    """Assign partitions with a replica in a consumer's rack first; co-partitioned topics stay together even then."""
    alike: dict[tuple[frozenset[str], int], list[_TopicState]] = {}
    for state in states:
        # As in Java, the number of partitions matters only if some consumer has a rack.
        alike.setdefault((frozenset(state.consumers), len(state.racks) if state._rack else 0), []).append(state)
    for (_, count), group in alike.items():
        if len(group) > 1:
            _match_together(group, count, result)
        elif group[0].rack_aware:
            group[0].assign_ranges(group[0].matches_rack, result)


def _match_together(group: Sequence[_TopicState], count: int, result: Assignment) -> None:
    remaining = list(group[0].consumers)
    for number in range(count):
        found = next((each for each in remaining if _fits_all(group, each, number)), None)
        if found is None:
            continue
        for state in group:
            state.give_partitions(found, [number], result)
        if not any(state.remaining_quota(found) for state in group):
            remaining.remove(found)


def _fits_all(group: Sequence[_TopicState], consumer: str, number: int) -> bool:
    return all(state.matches_rack(consumer, number) and state.remaining_quota(consumer) for state in group)


class RoundRobin:
    """Deals out all partitions of all topics in turn."""

    name = "roundrobin"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition] | None, generation: int) -> bytes | None:  # noqa: ARG002
        """None."""
        return None

    def assign_partitions(self, topics: Topics, members: Subscriptions) -> Assignment:
        """See Assignor."""
        result: Assignment = {member: [] for member in members}
        order = member_order(members)
        wanted = {member: frozenset(members[member].topics) for member in members}
        at = 0
        for topic in sorted({name for names in wanted.values() for name in names}, key=string_key):
            for number in range(len(topics.get(topic, ()))):
                # Ends, because every topic here is wanted by at least one member.
                while topic not in wanted[order[at % len(order)]]:
                    at += 1
                result[order[at % len(order)]].append(TopicPartition(topic, number))
                at += 1
        return result
