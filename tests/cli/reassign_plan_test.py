"""Plans of reassignments: complete, spread, and no more moves than needed."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.reassign_plan import moved_partitions, plan_assignment
from ottla.types import TopicPartition


def partitions(*replicas: tuple[int, ...]) -> dict[TopicPartition, tuple[int, ...]]:
    return {TopicPartition("t", number): each for number, each in enumerate(replicas)}


def test_well_placed_replicas_stay() -> None:
    present = partitions((1, 2), (2, 3), (3, 1))
    assert moved_partitions(present, plan_assignment(present, {1: None, 2: None, 3: None}, None)) == {}


def test_a_broker_is_emptied_by_moving_only_its_replicas() -> None:
    present = partitions((1, 2), (2, 3), (3, 1), (1, 3))
    planned = plan_assignment(present, {2: None, 3: None, 4: None}, None)
    for tp, replicas in present.items():
        assert set(replicas) - {1} <= set(planned[tp])
        assert 1 not in planned[tp]


def test_a_new_broker_gets_its_share() -> None:
    present = partitions(*[(1, 2)] * 6)
    planned = plan_assignment(present, dict.fromkeys((1, 2, 3)), None)
    assert Counter(node for replicas in planned.values() for node in replicas) == {1: 4, 2: 4, 3: 4}


def test_more_replicas_go_to_racks_of_their_own() -> None:
    present = partitions((1,), (2,))
    planned = plan_assignment(present, {1: "a", 2: "a", 3: "b", 4: "b"}, 2)
    for replicas in planned.values():
        assert {"a" if node < 3 else "b" for node in replicas} == {"a", "b"}


def test_more_replicas_than_brokers_cannot_be() -> None:
    with pytest.raises(ValueError, match="3 replicas need as many brokers, and only 2 may be used"):
        plan_assignment(partitions((1,)), {1: None, 2: None}, 3)


assignments = st.lists(
    st.lists(st.integers(1, 8), min_size=1, max_size=4, unique=True).map(tuple), min_size=1, max_size=30
)


@given(assignments, st.sets(st.integers(1, 8), min_size=4), st.none() | st.integers(1, 4))
def test_every_plan_is_complete_and_balanced(replicas, nodes, factor) -> None:
    present = partitions(*replicas)
    planned = plan_assignment(present, dict.fromkeys(sorted(nodes)), factor)
    assert list(planned) == list(present)
    held: Counter[int] = Counter()
    for tp, new in planned.items():
        assert len(new) == len(set(new)) == (factor or len(present[tp]))
        assert set(new) <= nodes
        held.update(new)
    share = -(-sum(held.values()) // len(nodes))
    assert max(held.values()) <= share + 1 or max(held.values()) <= len(present)
    leads = Counter(new[0] for new in planned.values())
    assert sum(leads.values()) == len(present)
