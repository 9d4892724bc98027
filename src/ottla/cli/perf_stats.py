"""Statistics of a performance test: durations, rates, and when the next record is due.

Zone: pure. Times come in as numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_FINE = 8
"""Significant bits that are kept of a duration: a percentile is less than 1 % above the true one."""
QUANTILES: Mapping[str, float] = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99.9": 0.999}


class Latencies:
    """Durations in buckets whose width grows with the duration, so that memory does not grow with their number."""

    __slots__ = ("_buckets", "count", "largest_us", "total_us")

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()
        self.count = 0
        self.total_us = 0
        self.largest_us = 0

    def add_latency(self, us: int) -> None:
        """Count a duration in microseconds."""
        us = max(us, 0)
        shift = max(0, us.bit_length() - _FINE)
        self._buckets[us >> shift << shift] += 1
        self.count += 1
        self.total_us += us
        self.largest_us = max(self.largest_us, us)

    def quantile_ms(self, share: float) -> float:
        """The duration, in ms, that this share of all does not exceed; 0 when there are none."""
        left = max(1, -int(-share * self.count // 1))
        for low in sorted(self._buckets):
            left -= self._buckets[low]
            if left <= 0:
                return min(_bucket_top(low), self.largest_us) / 1_000
        return 0.0

    def mean_ms(self) -> float:
        """The mean, in ms."""
        return self.total_us / self.count / 1_000 if self.count else 0.0

    def histogram_rows(self) -> list[tuple[float, int]]:
        """Pairs of an upper bound in ms and a count, by powers of two, without empty ends."""
        coarse: Counter[int] = Counter()
        for low, count in self._buckets.items():
            coarse[low.bit_length()] += count
        bits = range(min(coarse, default=0), max(coarse, default=-1) + 1)
        return [((1 << bit) / 1_000, coarse[bit]) for bit in bits]

    def document(self) -> dict[str, float | list[dict[str, float]]]:
        """As JSON, in ms."""
        quantiles = {name: round(self.quantile_ms(share), 3) for name, share in QUANTILES.items()}
        return {
            "avg": round(self.mean_ms(), 3),
            "max": self.largest_us / 1_000,
            **quantiles,
            "histogram": [{"below": below, "count": count} for below, count in self.histogram_rows()],
        }

    def chart_lines(self, width: int = 40) -> list[str]:
        """The histogram as lines of text."""
        rows = self.histogram_rows()
        most = max((count for _, count in rows), default=1)
        return [f"{below:>12.3f} ms  {count:>10,}  {'█' * -(-count * width // most)}".rstrip() for below, count in rows]


def _bucket_top(low: int) -> int:
    """The largest duration of the bucket that begins at `low`."""
    shift = max(0, low.bit_length() - _FINE)
    return low + (1 << shift) - 1


def due_in_s(sent: int, per_second: float, elapsed_s: float) -> float:
    """How long to wait before the next record, so that `per_second` is not exceeded; a rate ≤ 0 is no limit."""
    return max(0.0, sent / per_second - elapsed_s) if per_second > 0 else 0.0
