"""Policies: which errors are retried, when, and in which topic a record ends.

Zone: pure.
"""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.retry.policy import (
    MAX_DELAY_MS,
    Dead,
    Later,
    PolicyError,
    RetryPolicy,
    dead_topic,
    duration_ms,
    duration_text,
    origin_of,
    retry_topic,
)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("30s", 30_000), ("5m", 300_000), ("1h30m", 5_400_000), ("1.5s", 1500), ("250ms", 250), ("2 d", 172_800_000),
     ("3", 3000), (0.25, 250), (timedelta(minutes=1), 60_000), ("5min", 300_000)],
)  # fmt: skip
def test_durations_are_read(text: str | float | timedelta, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize("text", ["", "s", "5x", "-3s", "1e400", "9" * 400, "400d", float("nan"), -1, "3s?", "∞"])
def test_invalid_durations_are_refused(text: str | float) -> None:
    with pytest.raises(PolicyError):
        duration_ms(text)


@given(st.integers(0, MAX_DELAY_MS))
def test_a_duration_is_read_as_it_is_written(ms: int) -> None:
    assert duration_ms(duration_text(ms)) == ms


@given(st.from_regex(r"[a-z.0-9]{1,20}", fullmatch=True), st.integers(1, 9999))
def test_the_name_of_a_retry_topic_contains_its_topic_and_level(topic: str, level: int) -> None:
    assert origin_of(retry_topic(topic, level)) == (topic, level)


def test_other_names_are_no_retry_topics() -> None:
    assert [origin_of(each) for each in ("orders", "orders.retry", "orders.retry.0", ".retry.1", "orders.retry.x")] == (
        [None] * 5
    )


def test_each_delay_has_its_topic_and_after_the_last_comes_the_dead_letter() -> None:
    policy = RetryPolicy.fixed(["30s", "5m"])
    decisions = [policy.decide("orders", failures, ValueError()) for failures in (1, 2, 3)]
    assert decisions == [
        Later("orders.retry.1", 30_000),
        Later("orders.retry.2", 300_000),
        Dead("orders.dead", "failed 3 times"),
    ]
    assert policy.topics("orders") == ("orders.retry.1", "orders.retry.2", "orders.dead")


def test_the_last_delay_is_used_for_all_further_attempts() -> None:
    policy = RetryPolicy.fixed(["1s"], attempts=4, dead="graves")
    assert [policy.decide("t", n, "E") for n in (1, 2, 3, 4)] == [
        *[Later("t.retry.1", 1000)] * 3,
        Dead("graves", "failed 4 times"),
    ]


def test_errors_are_chosen_by_class_and_by_name() -> None:
    policy = RetryPolicy.fixed(["1s"], retry_on=[OSError, "KeyError"], abort_on=["builtins.FileNotFoundError"])
    retried = [
        policy.retries(each) for each in (OSError(), TimeoutError(), KeyError(), ValueError(), FileNotFoundError())
    ]
    assert retried == [True, True, True, False, False]
    assert [policy.retries(each) for each in ("OSError", "builtins.KeyError", "ValueError")] == [True, True, False]
    assert not policy.retries("builtins.FileNotFoundError")


@given(
    st.integers(2, 50), st.integers(0, 10**6), st.integers(0, 10**9), st.floats(1, 1000), st.floats(0, 1),
    st.integers(1, 10_000), st.floats(0, 1, exclude_max=True),
)  # fmt: skip
def test_growing_delays_stay_within_their_bounds(
    attempts: int, first: int, more: int, factor: float, jitter: float, failures: int, draw: float
) -> None:
    policy = RetryPolicy.growing(
        attempts, first=first / 1000, longest=(first + more) / 1000, factor=factor, jitter=jitter
    )
    delay = policy.delay_ms(failures, draw)
    assert first - 1 <= delay <= (first + more) * (1 + jitter) + 1
    assert policy.delay_ms(failures) <= policy.delay_ms(failures + 1)


@pytest.mark.parametrize(
    "wrong",
    [lambda: RetryPolicy.fixed([]) and RetryPolicy.fixed([], attempts=2), lambda: RetryPolicy.fixed("30s"),
     lambda: RetryPolicy.growing(0), lambda: RetryPolicy.growing(3, first="1h", longest="1m"),
     lambda: RetryPolicy.growing(3, jitter=1.5), lambda: RetryPolicy.growing(3, factor=0.5)],
)  # fmt: skip
def test_policies_without_sense_are_refused(wrong: object) -> None:
    assert callable(wrong)
    with pytest.raises(PolicyError):
        wrong()


def test_a_policy_without_retries_has_a_dead_letter_topic_only() -> None:
    assert RetryPolicy.fixed([]).topics("t") == (dead_topic("t"),)
    assert RetryPolicy.fixed([]).decide("t", 1, "E") == Dead("t.dead", "failed 1 times")
