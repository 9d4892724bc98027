"""The offsets in the checkpoint, and how batches are cut, against plain arithmetic."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.spark import offsets
from ottla.spark.errors import BadCheckpoint
from ottla.spark.offsets import End, Range, Split
from ottla.types import TopicPartition

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)

places = st.builds(TopicPartition, st.sampled_from(["a", "b", "c.d"]), st.integers(0, 12))
numbers = st.dictionaries(places, st.integers(0, 1 << 50), min_size=1, max_size=8)
sizes = st.dictionaries(places, st.integers(0, 1000), min_size=1, max_size=8)


def test_offsets_look_like_those_of_sparks_own_source() -> None:
    assert json.dumps(offsets.to_json({B0: 7, A1: 2, A0: 1})) == '{"a": {"0": 1, "1": 2}, "b": {"0": 7}}'
    many = offsets.to_json({TopicPartition("a", number): number for number in range(11)})
    assert list(many["a"]) == [str(number) for number in range(11)]


@pytest.mark.slow
@settings(deadline=None)
@given(numbers, st.none() | numbers, numbers, st.integers(1, 9), st.integers(1, 9))
def test_an_end_offset_survives_the_checkpoint(end: dict, start: dict | None, new: dict, least: int, most: int) -> None:
    for one in (End(end, start, new, Split(least, most)), End(end), End(end, on_driver=True)):
        assert offsets.read_end(json.loads(json.dumps(offsets.write_end(one)))) == one


def test_an_empty_plan_is_left_out() -> None:
    """Spark's own source can then continue the checkpoint."""
    assert offsets.write_end(End({A0: 5})) == {"a": {"0": 5}}
    assert offsets.PLAN not in offsets.write_end(End({A0: 5}, None, {}, Split()))


def test_the_first_batch_begins_at_the_start_in_its_end_offset() -> None:
    end = offsets.write_end(End({A0: 25, A1: 3}, {A0: 20, A1: 3}))
    assert offsets.ranges_of(offsets.INITIAL, end) == [Range(A0, 20, 25)]


def test_later_batches_begin_where_the_one_before_ended() -> None:
    before = offsets.write_end(End({A0: 25}, {A0: 20}, {}, Split(3)))
    assert offsets.ranges_of(before, {"a": {"0": 30}}) == [Range(A0, 25, 30)]


def test_new_partitions_begin_at_the_offsets_in_the_end_offset() -> None:
    end = offsets.write_end(End({A0: 25, A1: 9}, None, {A1: 4}))
    assert offsets.ranges_of({"a": {"0": 20}}, end) == [Range(A0, 20, 25), Range(A1, 4, 9)]


def test_a_recreated_topic_is_read_from_its_start_although_the_checkpoint_is_ahead() -> None:
    end = offsets.write_end(End({A0: 5}, None, {A0: 0}))
    assert offsets.ranges_of({"a": {"0": 100}}, end) == [Range(A0, 0, 5)]


def test_a_first_batch_planned_by_sparks_own_source_needs_explicit_offsets() -> None:
    """Its start is in a file that only that source reads."""
    end = {"a": {"0": 30}}
    with pytest.raises(BadCheckpoint, match="startingOffsets"):
        offsets.ranges_of(offsets.INITIAL, end)
    assert offsets.ranges_of(offsets.INITIAL, end, {A0: 10}) == [Range(A0, 10, 30)]


@pytest.mark.parametrize("offset", [{"a": 5}, {"a": {"x": 5}}, {"a": {"0": "y"}}, {"a": {"0": None}}])
def test_an_offset_of_something_else_is_refused(offset: dict) -> None:
    with pytest.raises(BadCheckpoint, match="checkpoint"):
        offsets.from_json(offset)


def test_a_partition_without_a_beginning_is_refused() -> None:
    with pytest.raises(BadCheckpoint, match="a-1"):
        offsets.ranges_of({"a": {"0": 20}}, {"a": {"0": 25, "1": 9}})


@settings(deadline=None)
@given(sizes, st.integers(1, 3000))
def test_a_limited_batch_takes_at_most_what_it_may_and_moves_every_partition(behind: dict, most: int) -> None:
    start = dict.fromkeys(behind, 1000)
    latest = {where: 1000 + size for where, size in behind.items()}
    end = offsets.limit_offsets(start, latest, most)
    taken = {where: end[where] - start[where] for where in behind}
    waiting = [where for where, size in behind.items() if size]
    assert all(0 <= taken[where] <= behind[where] for where in behind)
    assert all(taken[where] >= 1 for where in waiting)
    if sum(behind.values()) <= most:
        assert end == latest
    else:
        assert sum(taken.values()) == max(most, len(waiting))
    for where in waiting:
        assert taken[where] <= behind[where] * most // max(1, sum(behind.values())) + 1


def test_partitions_of_equal_lag_share_equally() -> None:
    start = dict.fromkeys((A0, A1, B0), 0)
    assert offsets.limit_offsets(start, dict.fromkeys(start, 1000), 999) == dict.fromkeys(start, 333)


@settings(deadline=None)
@given(st.lists(st.tuples(places, st.integers(0, 500), st.integers(1, 500)), max_size=6), st.data())
def test_split_ranges_are_the_same_offsets_in_the_same_order(given_ranges: list, data: st.DataObject) -> None:
    ranges = [Range(where, start, start + size) for where, start, size in given_ranges]
    split = Split(
        data.draw(st.none() | st.integers(1, 40), label="minPartitions"),
        data.draw(st.none() | st.integers(1, 40), label="maxRecordsPerPartition"),
    )
    parts = offsets.split_ranges(ranges, split)
    assert [(one.tp, o) for one in parts for o in range(one.start, one.end)] == [
        (one.tp, o) for one in ranges for o in range(one.start, one.end)
    ]
    assert all(part.size > 0 for part in parts)
    if split.max_records is not None:
        assert all(part.size <= split.max_records for part in parts)
    if split.min_partitions is not None and ranges:
        assert len(parts) >= min(split.min_partitions, sum(one.size for one in ranges))
    if split == Split():
        assert parts == ranges


def test_larger_ranges_get_more_parts() -> None:
    parts = offsets.split_ranges([Range(A0, 0, 900), Range(A1, 0, 100)], Split(10))
    assert [part.tp for part in parts] == [A0] * 9 + [A1]
    assert {part.size for part in parts} == {100}
