"""The assignors sticky and cooperative-sticky: balance first, then as few moves as possible.

Zone: pure. What members claim to own, and the case in which all want the same topics, are here; different wishes are
`sticky_general`'s. Results are those of Java's AbstractStickyAssignor, ties included (KIP-54, KIP-429, KIP-792,
KIP-881).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ottla.client.consumer.assignment.assignors import Assignment, Subscriptions, Topics, racks_of, use_racks
from ottla.client.consumer.assignment.java_order import hash_order, string_key
from ottla.client.consumer.assignment.sticky_general import Claim, GeneralAssignment, Racks
from ottla.client.consumer.protocol import (
    NO_GENERATION,
    Subscription,
    decode_generation,
    decode_sticky,
    encode_generation,
    encode_sticky,
)
from ottla.types import TopicPartition


class Sticky:
    """Sticky assignment over eager rebalances: members tell in their user data what they had."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition] | None, generation: int) -> bytes | None:
        """What the member had, and in which generation."""
        return None if owned is None else encode_sticky(owned, generation)

    def assign(self, topics: Topics, members: Subscriptions) -> Assignment:
        """See Assignor."""
        claims = {member: Claim(*decode_sticky(each.user_data)) for member, each in members.items()}
        return assign_sticky(topics, members, claims).partitions


class CooperativeSticky:
    """Sticky assignment over cooperative rebalances: nobody gets a partition before its owner has given it up."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Sequence[TopicPartition] | None, generation: int) -> bytes | None:  # noqa: ARG002
        """The generation, for members that read no subscription of version 2."""
        return encode_generation(generation)

    def assign(self, topics: Topics, members: Subscriptions) -> Assignment:
        """See Assignor. Partitions that move are with nobody: their owner gives them up, and joins again."""
        found = assign_sticky(topics, members, {member: _claim(each) for member, each in members.items()})
        moving = found.moving
        if moving is None:
            moving = _moving(members, found.partitions)
        for tp, member in moving.items():
            found.partitions[member].remove(tp)
        return found.partitions


class StickyResult(NamedTuple):
    """Who gets what."""

    partitions: Assignment
    moving: dict[TopicPartition, str] | None
    """Partitions that somebody else owns still, with their new owners; None when that was not kept account of."""


def assign_sticky(topics: Topics, members: Subscriptions, claims: Mapping[str, Claim]) -> StickyResult:
    """Assign; what members say they own counts as far as nobody of a later generation says so, too."""
    order = hash_order(members)
    existing = {name: each for name, each in topics.items() if each and _is_wanted(name, members)}
    owned, doubtful = _owned(existing, order, members, claims)
    racks = _racks(existing, members)
    if len({frozenset(each.topics) for each in members.values()}) == 1:
        return _Constrained(existing, racks, owned, doubtful).build()
    return StickyResult(GeneralAssignment(existing, racks, owned, members, claims).build(), None)


def _is_wanted(topic: str, members: Subscriptions) -> bool:
    return any(topic in each.topics for each in members.values())


def _claim(each: Subscription) -> Claim:
    generation = each.generation if each.generation >= 0 else decode_generation(each.user_data)
    return Claim(each.owned, generation)


def _owned(
    topics: Topics, order: Sequence[str], members: Subscriptions, claims: Mapping[str, Claim]
) -> tuple[Assignment, dict[TopicPartition, None]]:
    """(what each member owns, partitions that two members of one generation claim)."""
    owned: Assignment = {}
    doubtful: dict[TopicPartition, None] = {}
    owner: dict[TopicPartition, str] = {}
    for member in order:
        owned[member] = mine = []
        generation = claims[member].generation_or_none
        for tp in claims[member].partitions:
            if not 0 <= tp.partition < len(topics.get(tp.topic, ())):
                continue
            other = owner.get(tp)
            # As in Java, a rival counts with what the fields of its subscription say, not with its user data.
            theirs = NO_GENERATION if other is None else members[other].generation
            if other is None or generation >= theirs:
                owner[tp] = member
                if other is not None and tp in owned[other]:
                    owned[other].remove(tp)
                if other is not None and generation == theirs:
                    doubtful[tp] = None
                else:
                    mine.append(tp)
    return owned, doubtful


def _racks(topics: Topics, members: Subscriptions) -> Racks:
    consumers = racks_of(members)
    partitions = {
        TopicPartition(name, number): each for name, racks in topics.items() for number, each in enumerate(racks)
    }
    if not consumers:
        return Racks({}, {}, {})
    of_rack = list(consumers.values())
    crowd = {tp: sum(of_rack.count(rack) for rack in racks) for tp, racks in partitions.items()}
    if use_racks(of_rack, partitions.values()):
        return Racks(consumers, partitions, crowd)
    return Racks({}, {}, crowd)


def _moving(members: Subscriptions, result: Assignment) -> dict[TopicPartition, str]:
    """Partitions that are with somebody else than before."""
    added = {tp: member for member, got in result.items() for tp in set(got) - set(members[member].owned)}
    revoked = {tp for member, got in result.items() for tp in set(members[member].owned) - set(got)}
    return {tp: member for tp, member in added.items() if tp in revoked}


class _Constrained:
    """All members want the same topics: everybody gets `least` partitions, and `extra` members one more."""

    def __init__(
        self, topics: Topics, racks: Racks, owned: Assignment, doubtful: Mapping[TopicPartition, None]
    ) -> None:
        self._topics = topics
        self._racks = racks
        self._owned = owned
        self._doubtful = doubtful
        self._least, self._extra = divmod(sum(len(each) for each in topics.values()), len(owned))
        self._most = self._least + (self._extra > 0)
        self._with_extra = 0
        self._result: Assignment = {member: [] for member in owned}
        self._given_up: dict[TopicPartition, str] = {}
        self._under: list[str] = []
        """Members that must get more."""
        self._at_least: list[str] = []
        """Members that may get one more."""
        self._moving: dict[TopicPartition, str] = {}

    def build(self) -> StickyResult:
        """The assignment."""
        self._keep_owned()
        left = self._unassigned()
        self._under.sort(key=string_key)
        self._at_least.sort(key=string_key)
        left.sort(key=lambda tp: self._racks.crowd.get(tp, 0))
        if self._racks.consumers:
            left = self._deal_within_racks(left)
        self._deal(left)
        return StickyResult(self._result, self._moving)

    def _keep_owned(self) -> None:
        for member, partitions in self._owned.items():
            owned = []
            for tp in partitions:
                if self._racks.mismatch(member, tp):
                    self._given_up[tp] = member
                elif tp not in self._doubtful:
                    owned.append(tp)
            owned.sort(key=lambda tp: (tp.partition, string_key(tp.topic)))
            self._keep(member, owned)

    def _keep(self, member: str, owned: list[TopicPartition]) -> None:
        more_allowed = self._with_extra < self._extra
        if len(owned) < self._least:
            self._result[member] += owned
            self._under.append(member)
            return
        kept = self._least
        if len(owned) >= self._most and more_allowed:
            kept = self._most
            self._count_extra()
        elif more_allowed:
            self._at_least.append(member)
        self._result[member] += owned[:kept]
        self._given_up.update(dict.fromkeys(owned[kept:], member))

    def _count_extra(self) -> None:
        self._with_extra += 1
        if self._with_extra == self._extra:
            self._at_least.clear()

    def _unassigned(self) -> list[TopicPartition]:
        taken = {tp for partitions in self._result.values() for tp in partitions}
        return [
            tp
            for topic in sorted(self._topics, key=string_key)
            for number in range(len(self._topics[topic]))
            if (tp := TopicPartition(topic, number)) not in taken
        ]

    def _deal_within_racks(self, left: list[TopicPartition]) -> list[TopicPartition]:
        """Deal to members of the same rack; returns what nobody there may have."""
        rest = []
        turn = 0
        for tp in left:
            member, turn = self._next_in_rack(tp, turn)
            if member is None:
                rest.append(tp)
            else:
                self._give_partition(tp, member)
        return rest

    def _next_in_rack(self, tp: TopicPartition, turn: int) -> tuple[str | None, int]:
        at = self._racks.next_consumer(tp, self._under, turn)
        if at >= 0:
            member = self._under[at]
            count = len(self._result[member]) + 1
            if count < self._least:
                at += 1
            else:
                self._under.remove(member)
                if count < self._most and self._with_extra < self._extra:
                    self._at_least.append(member)
            return member, at % len(self._under) if self._under else 0
        at = self._racks.next_consumer(tp, self._at_least, 0)
        if at < 0:
            return None, turn
        member = self._at_least[at]
        if len(self._result[member]) + 1 == self._most:
            del self._at_least[at]
            self._count_extra()
        return member, turn

    def _deal(self, left: Sequence[TopicPartition]) -> None:
        turn = 0
        for tp in left:
            if not self._under:
                self._give_partition(tp, self._at_least.pop(0))
                continue
            turn = turn if turn < len(self._under) else 0
            member = self._under[turn]
            self._give_partition(tp, member)
            if len(self._result[member]) == self._least:
                del self._under[turn]
                self._at_least.append(member)
            else:
                turn += 1

    def _give_partition(self, tp: TopicPartition, member: str) -> None:
        self._result[member].append(tp)
        if self._given_up.get(tp, member) != member or tp in self._doubtful:
            self._moving[tp] = member
