"""Rates: the same numbers as Kafka's formulas, computed here by an independent model.

Zone: pure.
"""

from __future__ import annotations

import random

import pytest

from ottla.security.quotas.rates import SampledRate, TokenBucket, Windows, throttle_ms


class ModelRate:
    """Kafka's ring of samples, as its documentation describes it: [begin, last, value] in order of use."""

    def __init__(self, windows: Windows) -> None:
        self.windows = windows
        self.ring: list[list[float]] = []
        self.current = -1

    def record(self, value: float, now: int) -> None:
        if self.current < 0:
            self.ring.append([now, now, 0.0])
            self.current = 0
        if now - self.ring[self.current][0] >= self.windows.size_ms:
            self.current += 1
            if self.current > self.windows.samples:
                self.current = 0
            if self.current >= len(self.ring):
                self.ring.append([now, now, 0.0])
            else:
                self.ring[self.current] = [now, now, 0.0]
        self.ring[self.current][2] += value
        self.ring[self.current][1] = now

    def measure(self, now: int) -> tuple[float, int]:
        if self.current < 0:
            self.ring.append([now, now, 0.0])
            self.current = 0
        for sample in self.ring:
            if now - sample[1] >= self.windows.samples * self.windows.size_ms:
                sample[:] = [now, now, 0.0]
        elapsed = now - min(sample[0] for sample in self.ring)
        full = int(elapsed // self.windows.size_ms)
        if full < self.windows.samples - 1:
            elapsed += (self.windows.samples - 1 - full) * self.windows.size_ms
        window = max(int(elapsed), 1)
        return sum(sample[2] for sample in self.ring) / (window / 1000), window


@pytest.mark.parametrize("seed", range(6))
def test_a_rate_is_that_of_the_model(seed: int) -> None:
    rng = random.Random(seed)
    windows = Windows(rng.choice((1, 2, 11)), rng.choice((100, 1000)))
    rate, model, now = SampledRate(windows), ModelRate(windows), rng.randrange(10)
    for _ in range(3_000):
        now += rng.choice((0, 1, 7, 90, 400, 1100, 1100, 30_000) if rng.random() < 0.3 else (1, 50))
        if rng.random() < 0.7:
            value = rng.choice((1, 100, 0.5, -3))
            rate.record(value, now)
            model.record(value, now)
        if rng.random() < 0.5:
            expected, window = model.measure(now)
            assert rate.measure(now) == pytest.approx(expected)
            assert rate.window_ms(now) == window


def test_the_first_record_is_not_a_high_rate() -> None:
    rate = SampledRate(Windows())
    rate.record(1000, 0)
    assert rate.measure(0) == 100.0, "as if ten seconds had passed"
    assert rate.measure(500) == pytest.approx(1000 / 10.5)
    assert rate.measure(10_999) == pytest.approx(1000 / 10.999)
    assert rate.measure(11_000) == 0.0
    single = SampledRate(Windows(samples=1))
    single.record(7, 5)
    assert single.measure(5) == 7000.0, "a window is at least a millisecond"


def test_the_throttle_time_brings_the_rate_to_the_bound() -> None:
    rate = SampledRate(Windows())
    rate.record(2_000, 0)
    assert throttle_ms(rate, 100, 0) == 10_000
    assert throttle_ms(rate, 100, 0, max_ms=1_000) == 1_000
    assert throttle_ms(rate, 200, 0) == 0, "the bound itself is within the quota"
    assert throttle_ms(rate, 199, 0) == 50


@pytest.mark.parametrize("bound", [0.0, -1.0, -0.0, float("nan"), float("inf")])
def test_a_bound_that_is_not_a_positive_number_limits_nothing(bound: float) -> None:
    rate, bucket = SampledRate(Windows()), TokenBucket(Windows())
    rate.record(10**12, 0)
    bucket.record(10**12, 10, 0)
    assert throttle_ms(rate, bound, 0) == 0
    assert bucket.throttle_ms(bound, 0) == 0


def test_a_tiny_bound_gives_the_longest_time_that_a_response_can_have() -> None:
    rate = SampledRate(Windows())
    rate.record(10**300, 0)
    assert throttle_ms(rate, 1e-300, 0) == 2**31 - 1


def test_a_bucket_lets_a_burst_pass_and_waits_for_the_excess() -> None:
    """KIP-599's example: 5 per second, 100 windows of a second, a burst of 560."""
    bucket = TokenBucket(Windows(samples=100))
    assert bucket.measure(5, 0) == 500
    bucket.record(560, 5, 0)
    assert bucket.measure(5, 0) == -60
    assert bucket.throttle_ms(5, 0) == 12_000
    assert bucket.throttle_ms(5, 11_999) == 1
    assert bucket.throttle_ms(5, 12_000) == 0
    assert bucket.measure(5, 10**9) == 500, "no more than the burst"
    bucket.record(-1_000, 5, 10**9)
    assert bucket.measure(5, 10**9) == 500


def test_a_bucket_whose_quota_changes() -> None:
    bucket = TokenBucket(Windows(samples=10))
    bucket.record(100, 10, 0)
    assert bucket.measure(10, 0) == 0
    assert bucket.measure(1, 5_000) == 5
    assert bucket.measure(1, 60_000) == 10
    assert bucket.measure(100, 61_000) == 110
