"""Arithmetic on values that end in a 64-bit field: offsets and times.

Zone: pure. Settings may be as large as a field holds (`delete.retention.ms`, `retention.ms`), so a sum of one and the
time of day may not fit. Such a sum stays at the largest value, which every comparison takes for "never".
"""

from __future__ import annotations

from typing import Final

INT64_MAX: Final = 2**63 - 1
"""The largest offset or time."""
INT64_MIN: Final = -(2**63)


def add_saturating(left: int, right: int) -> int:
    """The sum of two 64-bit numbers; the largest or smallest such number where it does not fit."""
    return max(INT64_MIN, min(left + right, INT64_MAX))
