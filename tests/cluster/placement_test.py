"""Placement against the published algorithm, its published examples, and its promises.

Zone: real.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cluster.placement import Start, alternate_racks, assign_replicas
from ottla.errors import ApiError, ErrorCode

NO_RACKS = dict.fromkeys(range(5))


def published(brokers, partitions, factor, start, shift, first=0):
    """The algorithm as Kafka's documentation of replica assignment describes it, with Kafka's names."""
    current, next_shift, found = first, shift, []
    for _ in range(partitions):
        if current > 0 and current % len(brokers) == 0:
            next_shift += 1
        first_index = (current + start) % len(brokers)
        replicas = [brokers[first_index]]
        for j in range(factor - 1):
            move = 1 + (next_shift + j) % (len(brokers) - 1)
            replicas.append(brokers[(first_index + move) % len(brokers)])
        found.append(tuple(replicas))
        current += 1
    return found


def test_placement_five():
    """Five brokers, five partitions, partition 0 on broker 4 (counted from 1: 5); 1, 2, 3, 4 of the others follow."""
    assignment = assign_replicas(5, 1, NO_RACKS, Start(4, 0))
    assert [replicas[0] for replicas in assignment] == [4, 0, 1, 2, 3]
    assert assign_replicas(5, 3, NO_RACKS, Start(4, 2)) == published(range(5), 5, 3, 4, 2)
    with pytest.raises(ApiError) as error:
        assign_replicas(5, 6, NO_RACKS, Start(0, 0))
    assert error.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    added = assign_replicas(2, 1, NO_RACKS, Start(4, 4), first_partition=5)
    assert [replicas[0] for replicas in added] == [4, 0]


def test_the_example_in_the_description_of_the_algorithm():
    """Ten partitions, three replicas, five brokers, start at 0: the table that Kafka's source shows."""
    table = [
        (0, 1, 2),
        (1, 2, 3),
        (2, 3, 4),
        (3, 4, 0),
        (4, 0, 1),
        (0, 2, 3),
        (1, 3, 4),
        (2, 4, 0),
        (3, 0, 1),
        (4, 1, 2),
    ]
    assert assign_replicas(10, 3, NO_RACKS, Start(0, 0)) == table


def test_racks_alternate_as_in_the_published_example():
    racks = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
    assert alternate_racks(racks) == [0, 3, 1, 5, 4, 2]
    table = [(0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2)]
    assert assign_replicas(7, 3, racks, Start(0, 0)) == table


def test_racks_are_ignored_unless_all_brokers_have_one():
    racks = {0: "a", 1: None, 2: "a"}
    assert assign_replicas(3, 3, racks, Start(1, 1)) == published([0, 1, 2], 3, 3, 1, 1)


@pytest.mark.slow
@given(st.data())
def test_plain_placement_equals_the_published_algorithm(data):
    brokers = sorted(data.draw(st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)))
    factor = data.draw(st.integers(1, len(brokers)))
    count, first = data.draw(st.integers(1, 40)), data.draw(st.integers(0, 30))
    start, shift = data.draw(st.integers(0, 10)), data.draw(st.integers(0, 10))
    found = assign_replicas(count, factor, dict.fromkeys(brokers), Start(start, shift), first)
    assert found == published(brokers, count, factor, start, shift, first)


@pytest.mark.slow
@given(
    st.dictionaries(st.integers(0, 100), st.sampled_from("abc"), min_size=1, max_size=9),
    st.integers(1, 60),
    st.integers(1, 9),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_replicas_are_distinct_and_spread_over_racks(racks, partitions, factor, start, shift):
    factor = min(factor, len(racks))
    assignment = assign_replicas(partitions, factor, racks, Start(start, shift))
    distinct_racks = len(set(racks.values()))
    for replicas in assignment:
        assert len(set(replicas)) == factor
        assert len({racks[broker] for broker in replicas}) == min(factor, distinct_racks)
    leaders = Counter(replicas[0] for replicas in assignment)
    assert max(leaders.values()) - min(leaders.get(broker, 0) for broker in racks) <= 1


@pytest.mark.parametrize(("partitions", "factor"), [(0, 1), (-1, 1), (1, 0), (1, -1), (1, 32767)])
def test_invalid_counts_are_refused(partitions, factor):
    with pytest.raises(ApiError) as error:
        assign_replicas(partitions, factor, NO_RACKS, Start(0, 0))
    expected = ErrorCode.INVALID_PARTITIONS if partitions <= 0 else ErrorCode.INVALID_REPLICATION_FACTOR
    assert error.value.code is expected


# -- several brokers on one machine ----------------------------------------------------------------------------------


def hosted(*sizes: int) -> dict[int, str]:
    """Brokers numbered over machines of these sizes."""
    hosts, broker = {}, 0
    for machine, size in enumerate(sizes):
        for _ in range(size):
            hosts[broker] = f"machine{machine}"
            broker += 1
    return hosts


def test_machines_are_ignored_if_there_is_one_or_one_per_broker():
    plain = assign_replicas(7, 3, NO_RACKS, Start(2, 1))
    assert assign_replicas(7, 3, NO_RACKS, Start(2, 1), hosts=hosted(1, 1, 1, 1, 1)) == plain
    assert assign_replicas(7, 3, NO_RACKS, Start(2, 1), hosts=hosted(5)) == plain
    racks = {0: "a", 1: "b", 2: "a", 3: "b", 4: "c"}
    assert assign_replicas(7, 3, racks, Start(2, 1), hosts=hosted(1, 1, 1, 1, 1)) == assign_replicas(
        7, 3, racks, Start(2, 1)
    )


def test_replicas_of_a_partition_are_on_different_machines():
    hosts = hosted(3, 3, 3)
    for replicas in assign_replicas(18, 3, dict.fromkeys(range(9)), Start(4, 2), hosts=hosts):
        assert len({hosts[broker] for broker in replicas}) == 3


def test_more_replicas_than_machines_are_spread_evenly():
    hosts = hosted(2, 2, 2)
    for replicas in assign_replicas(12, 5, dict.fromkeys(range(6)), Start(0, 0), hosts=hosts):
        counts = Counter(hosts[broker] for broker in replicas)
        assert sorted(counts.values()) == [1, 2, 2]


def test_machines_come_before_racks():
    """Two racks of two machines each; one machine has both brokers of its rack's other half."""
    hosts = {0: "m1", 1: "m1", 2: "m2", 3: "m3"}
    racks = {0: "a", 1: "b", 2: "a", 3: "b"}
    for replicas in assign_replicas(12, 2, racks, Start(0, 0), hosts=hosts):
        assert hosts[replicas[0]] != hosts[replicas[1]]
        assert racks[replicas[0]] != racks[replicas[1]], "both can be had"
    hosts = {0: "m1", 1: "m1", 2: "m2"}
    racks = {0: "a", 1: "b", 2: "a"}
    for replicas in assign_replicas(6, 2, racks, Start(0, 0), hosts=hosts):
        assert hosts[replicas[0]] != hosts[replicas[1]], "rather the same rack than the same machine"


@pytest.mark.slow
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=5),
    st.lists(st.sampled_from("abc"), min_size=20, max_size=20),
    st.integers(1, 5),
    st.integers(0, 9),
    st.integers(0, 9),
)
def test_machines_and_leaders_are_balanced(sizes, rack_names, factor, start, shift):
    hosts = hosted(*sizes)
    racks = {broker: rack_names[broker] for broker in hosts}
    factor = min(factor, len(hosts))
    assignment = assign_replicas(3 * len(hosts), factor, racks, Start(start, shift), hosts=hosts)
    for replicas in assignment:
        assert len(set(replicas)) == factor
        if 1 < len(sizes) < len(hosts):
            assert len({hosts[broker] for broker in replicas}) == min(factor, len(sizes))
    assert set(Counter(replicas[0] for replicas in assignment).values()) == {3}
