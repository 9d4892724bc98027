"""Throttles of replication, alone."""

from __future__ import annotations

import pytest

from ottla.replication.throttle import RecentBytes, Throttle, Throttles
from ottla.types import TopicPartition

SECOND = 1_000_000_000


def test_bytes_per_second_over_the_window() -> None:
    recent = RecentBytes(samples=3, sample_seconds=1)
    assert recent.per_second(0) == 0
    recent.record_bytes(1000, 0)
    assert recent.per_second(0) == 1000, "over one sample's time at least"
    assert recent.per_second(2 * SECOND) == 500
    recent.record_bytes(500, 2 * SECOND)
    assert recent.per_second(2 * SECOND) == 750
    assert recent.per_second(3 * SECOND) == 500, "the first sample is too old by now"
    assert recent.per_second(60 * SECOND) == 0


def test_a_steady_stream_is_held_to_its_rate() -> None:
    throttle = Throttle(1, samples=11, sample_seconds=1)
    throttle.set_rate(1000)
    moved, now = 0, 0
    while now < 60 * SECOND:
        if not throttle.is_exceeded(now):
            throttle.record_bytes(100, now)
            moved += 100
        now += SECOND // 100
    assert 55_000 < moved < 66_000


@pytest.mark.parametrize(
    ("entries", "throttled"),
    [
        ((), []),
        (("*",), [0, 1, 2]),
        (("0:1", "2:1"), [0, 2]),
        (("0:2", "1:1", "2:3"), [1]),
        (("0:2",), []),
    ],
)
def test_which_partitions_are_throttled_here(entries: tuple[str, ...], throttled: list[int]) -> None:
    throttle = Throttle(1, 11, 1)
    throttle.mark_topic("t", entries)
    assert [index for index in range(3) if throttle.applies_to(TopicPartition("t", index))] == throttled
    assert not throttle.applies_to(TopicPartition("u", 0))
    assert throttle.is_idle == (not throttled)
    throttle.forget_topic("t")
    assert throttle.is_idle


def test_without_a_rate_nothing_is_throttled() -> None:
    throttles = Throttles(1, 11, 1)
    throttles.mark_topic("t", ("*",), ("0:1",))
    for each in (throttles.leader, throttles.follower):
        each.record_bytes(1 << 40, 0)
        assert not each.is_exceeded(0)
    throttles.set_rates(10, 1 << 62)
    assert (throttles.leader.is_exceeded(0), throttles.follower.is_exceeded(0)) == (True, False)
