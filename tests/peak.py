"""The peak memory of a piece of code.

Zone: real.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def peak_of(call: Callable[[], object]) -> int:
    """The peak of the bytes that `call` allocates. Threads of shared brokers can only add to it, so the minimum of
    several runs counts."""
    return min(_peak(call) for _ in range(5))


def _peak(call: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
