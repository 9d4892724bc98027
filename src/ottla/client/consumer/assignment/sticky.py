"""The assignors sticky and cooperative-sticky: balance first, then as few moves as possible.

Zone: pure. This module evaluates the partitions that members claim, and handles groups in which all members subscribe
to the same topics; `sticky_general` handles the rest. Results equal those of Java's AbstractStickyAssignor, also for
ties (KIP-54, KIP-429, KIP-792, KIP-881).
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
    """Sticky assignment with eager rebalances: the user data of members lists the partitions they had."""

    name = "sticky"
    cooperative = False

    def user_data(self, owned: Sequence[TopicPartition] | None, generation: int) -> bytes | None:
        """The partitions that the member had, and their generation."""
        return None if owned is None else encode_sticky(owned, generation)

    def assign_partitions(self, topics: Topics, members: Subscriptions) -> Assignment:
        """See Assignor."""
        claims = {member: Claim(*decode_sticky(each.user_data)) for member, each in members.items()}
        return assign_sticky(topics, members, claims).partitions


class CooperativeSticky:
    """Sticky assignment with cooperative rebalances: a partition is assigned only after its owner gave it up."""

    name = "cooperative-sticky"
    cooperative = True

    def user_data(self, owned: Sequence[TopicPartition] | None, generation: int) -> bytes | None:  # noqa: ARG002
        """The generation, for leaders that cannot read version 2 of the subscription."""
        return encode_generation(generation)

    def assign_partitions(self, topics: Topics, members: Subscriptions) -> Assignment:
        """See Assignor. Partitions that move stay unassigned: their owner gives them up, and joins again."""
        found = assign_sticky(topics, members, {member: _claim_of(each) for member, each in members.items()})
        moving = found.moving
        if moving is None:
            moving = _moving_partitions(members, found.partitions)
        for tp, member in moving.items():
            found.partitions[member].remove(tp)
        return found.partitions


class StickyResult(NamedTuple):
    """An assignment."""

    partitions: Assignment
    moving: dict[TopicPartition, str] | None
    """New owners of partitions that another member still owns; None if this was not recorded."""


def assign_sticky(topics: Topics, members: Subscriptions, claims: Mapping[str, Claim]) -> StickyResult:
    """Assign partitions. A claim of a member counts unless a member of a later generation claims the same partition."""
    # Java iterates over a HashMap of members: ties are broken in its order, not in that of the names.
    order = hash_order(members)
    existing = {name: each for name, each in topics.items() if each and _is_wanted(name, members)}
    owned, doubtful = _owned_partitions(existing, order, members, claims)
    racks = _rack_map(existing, members)
    # 1. Equal subscriptions: partitions are interchangeable, one pass is enough. 2. Different subscriptions: the
    # general algorithm, which moves partitions one by one.
    if len({frozenset(each.topics) for each in members.values()}) == 1:
        return _Constrained(existing, racks, owned, doubtful).build_assignment()
    return StickyResult(GeneralAssignment(existing, racks, owned, members, claims).build_assignment(), None)


def _is_wanted(topic: str, members: Subscriptions) -> bool:
    return any(topic in each.topics for each in members.values())


def _claim_of(each: Subscription) -> Claim:
    generation = each.generation if each.generation >= 0 else decode_generation(each.user_data)
    return Claim(each.owned, generation)


def _owned_partitions(
    topics: Topics, order: Sequence[str], members: Subscriptions, claims: Mapping[str, Claim]
) -> tuple[Assignment, dict[TopicPartition, None]]:
    """(partitions of each member, partitions that two members of the same generation claim)."""
    owned: Assignment = {}
    doubtful: dict[TopicPartition, None] = {}
    owner: dict[TopicPartition, str] = {}
    for member in order:
        owned[member] = mine = []
        generation = claims[member].generation_or_none
        for tp in claims[member].partitions:
            # The topic was deleted, or recreated with fewer partitions, since the member got it.
            if not 0 <= tp.partition < len(topics.get(tp.topic, ())):
                continue
            other = owner.get(tp)
            # As in Java, the other claim has the generation in the fields of its subscription, not in its user data.
            theirs = NO_GENERATION if other is None else members[other].generation
            # 1. No other claim, or an older one: this member owns the partition. 2. Claims of the same generation:
            # neither owns it, it counts as unassigned. 3. A newer claim: ignore this one.
            if other is None or generation >= theirs:
                owner[tp] = member
                if other is not None and tp in owned[other]:
                    owned[other].remove(tp)
                if other is not None and generation == theirs:
                    doubtful[tp] = None
                else:
                    mine.append(tp)
    return owned, doubtful


def _rack_map(topics: Topics, members: Subscriptions) -> Racks:
    consumers = racks_of(members)
    partitions = {
        TopicPartition(name, number): each for name, racks in topics.items() for number, each in enumerate(racks)
    }
    if not consumers:
        return Racks({}, {}, {})
    of_rack = list(consumers.values())
    crowd = {tp: sum(of_rack.count(rack) for rack in racks) for tp, racks in partitions.items()}
    # Without racks that matter, `crowd` still orders the partitions, as in Java.
    if use_racks(of_rack, partitions.values()):
        return Racks(consumers, partitions, crowd)
    return Racks({}, {}, crowd)


def _moving_partitions(members: Subscriptions, result: Assignment) -> dict[TopicPartition, str]:
    """Partitions that move from one member to another, with their new owners."""
    added = {tp: member for member, got in result.items() for tp in set(got) - set(members[member].owned)}
    revoked = {tp for member, got in result.items() for tp in set(members[member].owned) - set(got)}
    return {tp: member for tp, member in added.items() if tp in revoked}


class _Constrained:
    """Assigns if all members want the same topics: each gets `least` partitions, and `extra` members one more."""

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
        """Members with fewer than `least` partitions."""
        self._at_least: list[str] = []
        """Members with `least` partitions, which may get one more."""
        self._moving: dict[TopicPartition, str] = {}

    def build_assignment(self) -> StickyResult:
        """The assignment."""
        # In this order, as in Java: 1. members keep what they may; 2. the rest is ordered by name, and partitions
        # that few consumers share a rack with come first; 3. it is dealt out within racks; 4. then to any member.
        self._keep_owned()
        left = self._unassigned_partitions()
        self._under.sort(key=string_key)
        self._at_least.sort(key=string_key)
        left.sort(key=lambda tp: self._racks.crowd.get(tp, 0))
        if self._racks.consumers:
            left = self._deal_within_racks(left)
        self._deal_partitions(left)
        return StickyResult(self._result, self._moving)

    def _keep_owned(self) -> None:
        for member, partitions in self._owned.items():
            owned = []
            for tp in partitions:
                if self._racks.lacks_replica(member, tp):
                    self._given_up[tp] = member
                elif tp not in self._doubtful:
                    owned.append(tp)
            owned.sort(key=lambda tp: (tp.partition, string_key(tp.topic)))
            self._keep_partitions(member, owned)

    def _keep_partitions(self, member: str, owned: list[TopicPartition]) -> None:
        # 1. Fewer than `least`: keep all, and get more later. 2. Enough for an extra one, and some are left: keep
        # `most`. 3. Else keep `least`; the member may get an extra one later, while some are left.
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
            # All extra partitions are given: no member with `least` may get one more.
            self._at_least.clear()

    def _unassigned_partitions(self) -> list[TopicPartition]:
        taken = {tp for partitions in self._result.values() for tp in partitions}
        return [
            tp
            for topic in sorted(self._topics, key=string_key)
            for number in range(len(self._topics[topic]))
            if (tp := TopicPartition(topic, number)) not in taken
        ]

    def _deal_within_racks(self, left: list[TopicPartition]) -> list[TopicPartition]:
        """Deal to members in the racks of the partitions; returns the partitions that none of these may have."""
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
        # Members with fewer than `least` first, in turn; then members that may have one more, from the first.
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

    def _deal_partitions(self, left: Sequence[TopicPartition]) -> None:
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
        # Its former owner may still read it: under the cooperative protocol it is assigned one rebalance later.
        if self._given_up.get(tp, member) != member or tp in self._doubtful:
            self._moving[tp] = member
