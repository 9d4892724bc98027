"""How long to wait before trying again.

Zone: pure. The random number comes in as an argument; `retry` and other callers do the waiting.
"""

from __future__ import annotations

_JITTER = 0.2
"""Kafka's: each wait is drawn within ±20 % of its nominal length, so that clients do not retry at the same time."""


def backoff_ms(first: float, maximum: float, attempt: int, draw: float) -> float:
    """Length of wait number `attempt` (from 0): doubles from `first` up to `maximum`; `draw` in [0, 1) places it
    within the jitter. Never above `maximum`."""
    nominal = min(maximum, first * 2.0 ** min(attempt, 30))
    return float(min(maximum, nominal * (1 - _JITTER + 2 * _JITTER * draw)))
