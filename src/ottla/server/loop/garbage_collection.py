"""When this process collects cyclic garbage, and how much of the heap a collection walks.

Zone: real. A collection stops every client for as long as it walks. What survives one is the broker's state: it is
frozen, so that a collection walks only what was made since the one before, however large the heap is. Frozen objects
are freed by their reference counts; those that die in a cycle would never be: what lives long (logs, connections,
sessions, groups) is therefore taken apart where it ends, which `tests/server/garbage_collection_test.py` checks.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import Final

from ottla.metrics import Registry

YOUNG: Final = 5_000
"""Objects made and not freed, after which Python looks at these."""
ROUNDS: Final = 2
"""Such looks after which what has survived all of them is looked at once more, and frozen."""
_OLDEST: Final = 1
"""The oldest generation that is ever looked at: it is always emptied into the frozen ones."""
_NEVER: Final = 1_000_000_000


class GarbageCollection:
    """The collections of one process that runs a broker and nothing else."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        """The longest collection since the start."""
        self._began = 0.0

    def start(self) -> None:
        """Collect once, freeze what is there, and keep every later collection small."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, ROUNDS, _NEVER)
        gc.callbacks.append(self._observe)

    def stop(self) -> None:
        """Leave the process's collections alone again; what is frozen stays so."""
        gc.callbacks.remove(self._observe)

    def collect(self) -> None:
        """Collect what has become garbage since the last time."""
        gc.collect(_OLDEST)

    def _observe(self, phase: str, info: dict[str, int]) -> None:
        """Python calls this before and after each collection, its own ones included."""
        if phase == "start":
            self._began = perf_counter()
            return
        if info["generation"] >= _OLDEST:
            gc.freeze()
        self.longest_s = max(self.longest_s, perf_counter() - self._began)

    def declare_metrics(self, registry: Registry) -> None:
        """What is collected, under the names that Prometheus' client for Python uses, and the longest collection."""
        registry.counter("python_gc_collections_total", "Garbage collections.", lambda: _sum("collections"))
        registry.counter("python_gc_objects_collected_total", "Objects found in cycles.", lambda: _sum("collected"))
        registry.gauge("ottla_gc_longest_seconds", "The longest garbage collection.", lambda: self.longest_s)


def _sum(field: str) -> float:
    return float(sum(generation[field] for generation in gc.get_stats()))
