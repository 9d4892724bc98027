"""How much memory a piece of code takes.

Zone: real.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable


def peak_of(call: Callable[[], object]) -> int:
    """The most bytes that `call` has at once. Threads of brokers that other tests share can only add, so the least of
    several counts."""
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
