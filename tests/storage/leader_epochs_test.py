"""The leader epoch cache against Kafka's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.storage.indexes.leader_epochs import EpochEntry, LeaderEpochs


class Written(list):
    """What was persisted, newest last."""


@pytest.fixture
def written() -> Written:
    return Written()


def cache(written: list, *entries: tuple[int, int], end: int = 1000) -> LeaderEpochs:
    made = LeaderEpochs([], lambda: end, written.append)
    for entry in entries:
        made.assign_epoch(*entry)
    return made


def test_a_leader_that_writes_again_adds_nothing(written) -> None:
    epochs = cache(written, (0, 0), (1, 120), (1, 200))
    assert epochs.entries == ((0, 0), (1, 120))
    assert len(written) == 2
    assert epochs.latest == 1


def test_the_end_of_an_epoch_is_the_start_of_the_next(written) -> None:
    epochs = cache(written, (2, 10), (4, 30), (7, 70), end=99)
    assert epochs.end_offset_for(7) == (7, 99)
    assert epochs.end_offset_for(4) == (4, 70)
    assert epochs.end_offset_for(5) == (4, 70)
    assert epochs.end_offset_for(3) == (2, 30)
    assert epochs.end_offset_for(1) == (1, 10)
    assert epochs.end_offset_for(8) == (-1, -1)
    assert epochs.end_offset_for(-1) == (-1, -1)
    assert cache(written).end_offset_for(0) == (-1, -1)


def test_an_entry_that_contradicts_later_ones_removes_them(written) -> None:
    epochs = cache(written, (0, 0), (2, 10), (5, 20))
    epochs.assign_epoch(3, 8)
    assert epochs.entries == ((0, 0), (3, 8))
    epochs.assign_epoch(4, 8)
    assert epochs.entries == ((0, 0), (4, 8))


def test_truncation_from_both_ends(written) -> None:
    epochs = cache(written, (0, 0), (1, 10), (2, 20), (3, 30))
    epochs.truncate_from_end(20)
    assert epochs.entries == ((0, 0), (1, 10))
    epochs.truncate_from_start(5)
    assert epochs.entries == ((0, 5), (1, 10))
    epochs.truncate_from_start(10)
    assert epochs.entries == ((1, 10),)
    epochs.truncate_from_start(15)
    assert epochs.entries == ((1, 15),) == written[-1]
    epochs.truncate_from_end(15)
    assert epochs.entries == ()
    assert epochs.latest == -1


def test_the_epoch_of_an_offset(written) -> None:
    epochs = cache(written, (2, 10), (4, 30))
    assert [epochs.epoch_of(offset) for offset in (9, 10, 29, 30, 500)] == [-1, 2, 2, 4, 4]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 60)), max_size=30), st.integers(0, 70), st.integers(0, 70))
def test_entries_always_rise(steps, start, end) -> None:
    written: list[tuple[EpochEntry, ...]] = []
    epochs = cache(written, *steps)
    epochs.truncate_from_start(start)
    epochs.truncate_from_end(end)
    entries = epochs.entries
    assert list(entries) == sorted(entries)
    assert len({entry.epoch for entry in entries}) == len({entry.start_offset for entry in entries}) == len(entries)
    assert all(entry.start_offset < end for entry in entries)
    assert (written[-1] if written else ()) == entries
    for epoch in range(10):
        found, offset = epochs.end_offset_for(epoch)
        assert found <= epoch
        assert offset in (-1, 1000, *(entry.start_offset for entry in entries))
