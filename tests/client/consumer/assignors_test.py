"""Assignors: the examples of Kafka's documentation, and properties that hold for every group."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.client.consumer.groups import ASSIGNORS, Case, draw_case, with_user_data

from ottla.client.consumer.assignment.assignors import Assignment, Assignor, Range, RoundRobin, Topics
from ottla.client.consumer.assignment.java_order import hash_order, string_hash
from ottla.client.consumer.assignment.sticky import CooperativeSticky, Sticky
from ottla.client.consumer.protocol import Subscription, encode_sticky
from ottla.types import TopicPartition

NOWHERE: frozenset[str] = frozenset()
EACH_ASSIGNOR = pytest.mark.parametrize("assignor", ASSIGNORS, ids=lambda each: each.name)


def topics(**counts: int) -> Topics:
    return {name: [NOWHERE] * count for name, count in counts.items()}


def members(**wanted: str) -> dict[str, Subscription]:
    """Subscriptions from keywords: `members(C0="t0 t1")`."""
    return {name: Subscription(tuple(each.split())) for name, each in wanted.items()}


def short(found: Assignment) -> dict[str, str]:
    """An assignment in the notation of Kafka's documentation: t0p0."""
    return {member: " ".join(f"{tp.topic}p{tp.partition}" for tp in sorted(got)) for member, got in found.items()}


def test_range_gives_runs_of_each_topic() -> None:
    """The example in the documentation of RangeAssignor."""
    found = Range().assign_partitions(topics(t0=3, t1=3), members(C0="t0 t1", C1="t0 t1"))
    assert short(found) == {"C0": "t0p0 t0p1 t1p0 t1p1", "C1": "t0p2 t1p2"}


def test_range_prefers_static_members_by_instance_id() -> None:
    """The documentation's example with static members: the order is by instance id, not by member id."""
    group = members(b="t0", a="t0")
    group = {"b": group["b"]._replace(instance_id="I1"), "a": group["a"]._replace(instance_id="I2")}
    assert short(Range().assign_partitions(topics(t0=2), group)) == {"b": "t0p0", "a": "t0p1"}


def test_range_keeps_partitions_in_their_rack() -> None:
    """KIP-881: with one replica per partition every consumer reads within its rack."""
    racks: Topics = {"t0": [frozenset("c"), frozenset("b"), frozenset("a")]}
    group = {name: Subscription(("t0",), rack=name) for name in "abc"}
    assert short(Range().assign_partitions(racks, group)) == {"a": "t0p2", "b": "t0p1", "c": "t0p0"}


def test_round_robin_deals_partitions_in_turn() -> None:
    """Both examples in the documentation of RoundRobinAssignor."""
    found = RoundRobin().assign_partitions(topics(t0=3, t1=3), members(C0="t0 t1", C1="t0 t1"))
    assert short(found) == {"C0": "t0p0 t0p2 t1p1", "C1": "t0p1 t1p0 t1p2"}
    found = RoundRobin().assign_partitions(topics(t0=1, t1=2, t2=3), members(C0="t0", C1="t0 t1", C2="t0 t1 t2"))
    assert short(found) == {"C0": "t0p0", "C1": "t1p0", "C2": "t1p1 t2p0 t2p1 t2p2"}


def owning(group: dict[str, Subscription], found: Assignment, gone: str) -> dict[str, Subscription]:
    return {
        name: each._replace(user_data=encode_sticky(found[name], 1)) for name, each in group.items() if name != gone
    }


def test_sticky_leaves_partitions_where_they_are() -> None:
    """The first example in the documentation of StickyAssignor; when C1 leaves, five partitions stay."""
    there = topics(t0=2, t1=2, t2=2, t3=2)
    group = members(C0="t0 t1 t2 t3", C1="t0 t1 t2 t3", C2="t0 t1 t2 t3")
    found = Sticky().assign_partitions(there, group)
    assert short(found) == {"C0": "t0p0 t1p1 t3p0", "C1": "t0p1 t2p0 t3p1", "C2": "t1p0 t2p1"}
    after = short(Sticky().assign_partitions(there, owning(group, found, "C1")))
    assert after == {"C0": "t0p0 t0p1 t1p1 t3p0", "C2": "t1p0 t2p0 t2p1 t3p1"}


def test_sticky_with_different_subscriptions() -> None:
    """The second example in the documentation of StickyAssignor."""
    there = topics(t0=1, t1=2, t2=3)
    group = members(C0="t0", C1="t0 t1", C2="t0 t1 t2")
    found = Sticky().assign_partitions(there, group)
    assert short(found) == {"C0": "t0p0", "C1": "t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}
    after = short(Sticky().assign_partitions(there, owning(group, found, "C0")))
    assert after == {"C1": "t0p0 t1p0 t1p1", "C2": "t2p0 t2p1 t2p2"}


def test_a_later_generation_wins_a_partition_that_two_claim() -> None:
    tp = TopicPartition("t", 0)
    old, new = (Subscription(("t",), None, (tp,), generation) for generation in (4, 5))
    found = CooperativeSticky().assign_partitions(topics(t=2), {"old": old, "new": new})
    assert found == {"old": [TopicPartition("t", 1)], "new": [tp]}


def test_cooperative_sticky_assigns_no_partition_that_another_member_owns() -> None:
    owned = tuple(TopicPartition("t", number) for number in range(4))
    group = {"a": Subscription(("t",), None, owned, 3), "b": Subscription(("t",))}
    assert short(CooperativeSticky().assign_partitions(topics(t=4), group)) == {"a": "tp0 tp1", "b": ""}


GROUPS = st.builds(
    lambda seed, racks, alike: draw_case(Random(seed), racks=racks, alike=alike),
    st.integers(0, 2**32),
    st.booleans(),
    st.booleans(),
)


def partitions_of(case: Case) -> set[TopicPartition]:
    """The partitions of subscribed topics."""
    wanted = {topic for each in case.members.values() for topic in each.topics}
    return {TopicPartition(name, n) for name in wanted & set(case.topics) for n in range(len(case.topics[name]))}


@EACH_ASSIGNOR
@given(case=GROUPS)
def test_every_partition_goes_to_one_member_that_wants_it(assignor: Assignor, case: Case) -> None:
    case = with_user_data(case, assignor)
    found = assignor.assign_partitions(case.topics, case.members)
    given_out = [tp for got in found.values() for tp in got]
    assert set(found) == set(case.members)
    assert len(given_out) == len(set(given_out))
    assert all(tp.topic in case.members[member].topics for member, got in found.items() for tp in got)
    held_back = partitions_of(case) - set(given_out)
    if assignor.cooperative:
        assert held_back <= {tp for each in case.members.values() for tp in each.owned}
    else:
        assert not held_back


def settle(assignor: Assignor, case: Case) -> tuple[Case, Assignment]:
    """Enough rebalances for the assignment to become stable."""
    for generation in range(4, 9):
        found = assignor.assign_partitions(case.topics, case.members)
        kept = {}
        for name, each in case.members.items():
            owned = tuple(found[name])
            data = assignor.user_data(owned, generation)
            kept[name] = each._replace(owned=owned, generation=generation, user_data=data)
        case = case._replace(members=kept)
    return case, found


STICKY = pytest.mark.parametrize("assignor", [Sticky(), CooperativeSticky()], ids=lambda each: each.name)


@STICKY
@given(case=GROUPS)
def test_members_that_want_the_same_differ_by_one_at_most(assignor: Assignor, case: Case) -> None:
    everything = tuple(case.topics)
    case = case._replace(members={name: each._replace(topics=everything) for name, each in case.members.items()})
    _, found = settle(assignor, with_user_data(case, assignor))
    sizes = [len(got) for got in found.values()]
    assert max(sizes) - min(sizes) <= 1


@STICKY
@given(case=GROUPS)
def test_a_balanced_assignment_does_not_change(assignor: Assignor, case: Case) -> None:
    case = case._replace(members={name: each._replace(rack=None) for name, each in case.members.items()})
    case, found = settle(assignor, with_user_data(case, assignor))
    again = assignor.assign_partitions(case.topics, case.members)
    assert {member: set(got) for member, got in again.items()} == {member: set(got) for member, got in found.items()}


@STICKY
@given(case=GROUPS)
def test_a_member_that_goes_takes_no_partition_from_others(assignor: Assignor, case: Case) -> None:
    everything = tuple(case.topics)
    case = case._replace(
        members={name: each._replace(topics=everything, rack=None) for name, each in case.members.items()}
    )
    case, found = settle(assignor, with_user_data(case, assignor))
    gone = min(case.members)
    left = {name: each for name, each in case.members.items() if name != gone}
    if left:
        after = assignor.assign_partitions(case.topics, left)
        assert all(set(found[name]) <= set(after[name]) for name in left)


def test_hashes_and_orders_are_those_of_java() -> None:
    """Values of Java 17: "Aa" and "BB" collide, and keep their order of insertion."""
    assert (string_hash("Aa"), string_hash("BB"), string_hash("consumer-1")) == (2112, 2112, 0xF617641A)
    assert hash_order(["BB", "Aa"]) == ["BB", "Aa"]
    assert hash_order(["Aa", "BB"]) == ["Aa", "BB"]
