"""Saturating arithmetic on values that are stored in 64 bits: offsets and times.

Zone: pure. Settings may have the largest value of 64 bits (`delete.retention.ms`, `retention.ms`), so the sum of one
and the time of day may not fit. Such a sum is the largest value, which means "never" in comparisons.
"""

from __future__ import annotations

from typing import Final

INT64_MAX: Final = 2**63 - 1
"""The largest offset or time."""
INT64_MIN: Final = -(2**63)


def add_saturating(left: int, right: int) -> int:
    """The sum of two 64-bit numbers; the largest or smallest such number if the sum does not fit."""
    return max(INT64_MIN, min(left + right, INT64_MAX))
