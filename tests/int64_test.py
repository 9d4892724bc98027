"""Sums that stay within 64 bits."""

from __future__ import annotations

from ottla.int64 import INT64_MAX, INT64_MIN, add_saturating


def test_a_sum_stays_within_64_bits() -> None:
    assert add_saturating(2, 3) == 5
    assert add_saturating(INT64_MAX, 1) == INT64_MAX
    assert add_saturating(INT64_MAX, INT64_MAX) == INT64_MAX
    assert add_saturating(INT64_MIN, -1) == INT64_MIN
    assert add_saturating(INT64_MIN, INT64_MAX) == -1
