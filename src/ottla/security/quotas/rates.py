"""How fast something happens: a rate over samples, and a token bucket, both computed as Kafka computes them.

Zone: deterministic.
"""

from __future__ import annotations

from math import floor, isfinite
from typing import Final, NamedTuple

_THROTTLE_MAX: Final = 2**31 - 1


class Windows(NamedTuple):
    """`quota.window.num` samples of `quota.window.size.seconds` each."""

    samples: int = 11
    size_ms: int = 1000


class SampledRate:
    """A rate per second over the last samples.

    A sample collects what is recorded during one window; then the next one begins. The rate is the sum of all samples
    by the time since the oldest one began, or by all windows but one if less time has passed, so that the first record
    is not a high rate. A sample without records in the whole time is emptied. There is one sample more than configured,
    for the one that overlaps the beginning of the time.
    """

    __slots__ = ("_begins", "_current", "_lasts", "_values", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._current = 0
        self._begins: list[int] = []
        self._lasts: list[int] = []
        """The time of the last record of each sample."""
        self._values: list[float] = []

    def record(self, value: float, now_ms: int) -> None:
        """Add a value, which may be negative to take back an earlier one."""
        if not self._begins:
            self._add_sample(now_ms)
        elif now_ms - self._begins[self._current] >= self._windows.size_ms:
            self._current = (self._current + 1) % (self._windows.samples + 1)
            if self._current == len(self._begins):
                self._add_sample(now_ms)
            else:
                self._empty_sample(self._current, now_ms)
        self._values[self._current] += value
        self._lasts[self._current] = now_ms

    def measure(self, now_ms: int) -> float:
        """The rate per second."""
        window_ms = self.window_ms(now_ms)  # empties old samples first
        return sum(self._values) * 1000 / window_ms

    def window_ms(self, now_ms: int) -> int:
        """The time by which the sum is divided."""
        samples, size_ms = self._windows
        if not self._begins:
            self._add_sample(now_ms)
        expired = now_ms - samples * size_ms
        if min(self._lasts) <= expired:
            for number, last in enumerate(self._lasts):
                if last <= expired:
                    self._empty_sample(number, now_ms)
        # As Kafka's `Rate.windowSize`: what has passed, and whole windows for those that have not, but one, which is in
        # progress.
        elapsed = now_ms - min(self._begins)
        missing = samples - 1 - elapsed // size_ms
        return max(elapsed + max(0, missing) * size_ms, 1)

    def _add_sample(self, now_ms: int) -> None:
        self._begins.append(now_ms)
        self._lasts.append(now_ms)
        self._values.append(0.0)

    def _empty_sample(self, number: int, now_ms: int) -> None:
        self._begins[number] = self._lasts[number] = now_ms
        self._values[number] = 0.0


def throttle_ms(rate: SampledRate, bound: float, now_ms: int, max_ms: int = _THROTTLE_MAX) -> int:
    """How long nothing may be recorded until the rate is the bound again; 0: the rate is within the bound.

    With the rate O over the window W and the bound T that is (O - T) / T * W. A bound that is not a positive number
    limits nothing: Kafka's formula then gives a time that it does not use.
    """
    if not bound > 0:
        return 0
    measured = rate.measure(now_ms)
    if measured <= bound:
        return 0
    return _round_ms((measured - bound) / bound * rate.window_ms(now_ms), max_ms)


class TokenBucket:
    """A bucket that refills at the rate of the quota, up to the quota times all windows; it begins full.

    It may become negative: what is recorded is accepted as a whole, and then nothing until the bucket has refilled.
    After a burst a client waits exactly the time of the excess, where a rate keeps it waiting for whole windows.
    """

    __slots__ = ("_at_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._tokens = 0.0
        self._at_ms: int | None = None

    def record(self, value: float, bound: float, now_ms: int) -> None:
        """Take tokens, or with a negative value return them."""
        self._tokens = min(self._burst(bound), self.measure(bound, now_ms) - value)

    def measure(self, bound: float, now_ms: int) -> float:
        """The tokens in the bucket."""
        burst = self._burst(bound)
        if self._at_ms is None:
            self._tokens = burst
        else:
            self._tokens = min(burst, self._tokens + bound * (now_ms - self._at_ms) / 1000)
        self._at_ms = now_ms
        return self._tokens

    def throttle_ms(self, bound: float, now_ms: int) -> int:
        """How long until the bucket is no longer negative; 0: it is not."""
        if not bound > 0:
            return 0
        return _round_ms(max(0.0, -self.measure(bound, now_ms)) / bound * 1000, _THROTTLE_MAX)

    def _burst(self, bound: float) -> float:
        return self._windows.samples * self._windows.size_ms / 1000 * bound


def _round_ms(time_ms: float, max_ms: int) -> int:
    """Round half up, as Java; at most `max_ms`."""
    return min(floor(time_ms + 0.5), max_ms) if isfinite(time_ms) else max_ms
