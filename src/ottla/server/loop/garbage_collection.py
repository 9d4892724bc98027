"""When this process collects cyclic garbage, and how much of the heap a collection walks.

Zone: real. A collection stops every client while it walks the heap. Objects that survive one are the broker's state:
they are frozen, so that the next collection walks only younger objects, however large the heap is. Frozen objects are
freed by their reference counts, but never when they die in a cycle. Therefore long-lived objects (logs, connections,
sessions, groups) break their cycles when they end, which `tests/server/garbage_collection_test.py` checks.
"""

from __future__ import annotations

import gc
from time import perf_counter
from typing import Final

from ottla.metrics import Registry

YOUNG: Final = 5_000
"""Allocations minus deallocations after which Python collects the youngest generation."""
ROUNDS: Final = 2
"""Collections of the youngest generation after which their survivors are collected as well, then frozen."""
_OLDEST: Final = 1
"""The oldest generation that is ever collected: its survivors are always frozen."""
_NEVER: Final = 1_000_000_000


class GarbageCollection:
    """Controls the garbage collections of a process that runs a broker and nothing else."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        """The longest collection since the start."""
        self._began = 0.0

    def start_managing(self) -> None:
        """Collect once, freeze all objects, and keep every later collection small."""
        # In this order: a cycle that is garbage when it is frozen is never freed.
        gc.collect()
        gc.freeze()
        gc.set_threshold(YOUNG, ROUNDS, _NEVER)
        gc.callbacks.append(self._on_collection)

    def stop_managing(self) -> None:
        """Stop observing collections; frozen objects stay frozen."""
        gc.callbacks.remove(self._on_collection)

    def collect_recent(self) -> None:
        """Collect the objects that have become garbage since the last collection."""
        gc.collect(_OLDEST)

    def _on_collection(self, phase: str, info: dict[str, int]) -> None:
        """Freeze and measure: Python calls this before and after each collection, its own ones included."""
        if phase == "start":
            self._began = perf_counter()
            return
        if info["generation"] >= _OLDEST:
            gc.freeze()
        self.longest_s = max(self.longest_s, perf_counter() - self._began)

    def declare_metrics(self, registry: Registry) -> None:
        """Declare the metrics of Prometheus' client for Python, and the longest collection."""
        registry.add_counter("python_gc_collections_total", "Garbage collections.", lambda: _sum_stats("collections"))
        registry.add_counter(
            "python_gc_objects_collected_total", "Objects found in cycles.", lambda: _sum_stats("collected")
        )
        registry.add_gauge("ottla_gc_longest_seconds", "The longest garbage collection.", lambda: self.longest_s)


def _sum_stats(field: str) -> float:
    return float(sum(generation[field] for generation in gc.get_stats()))
