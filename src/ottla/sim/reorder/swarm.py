"""One search over many processes.

Zone: real. This module only distributes the work. Every process keeps the states that it has met, and leaves schedules
that reach one of them. Processes do not share states, so more processes run more schedules for the same tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache

from ottla.sim.reorder.choices import Path
from ottla.sim.reorder.schedule import Bounds
from ottla.sim.reorder.search import Tally, run_schedule, split_tree, walk_schedules


@cache
def _known_states(_: Bounds) -> set[bytes]:
    """The states that this process has met in this search."""
    return set()


def search_schedules(bounds: Bounds, jobs: int | None = None) -> Iterator[Tally]:
    """Tallies of parts of the tree, in the order of completion; in `jobs` processes (default: one per processor)."""
    jobs = jobs or os.cpu_count() or 1
    if jobs == 1:
        yield from (_run_part(bounds, *part) for part in split_tree(bounds))
        return
    with ProcessPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(_run_part, bounds, *part) for part in split_tree(bounds)]):
            yield future.result()


def _run_part(bounds: Bounds, root: Path, alone: bool) -> Tally:
    if alone:
        return run_schedule(bounds, root)
    return walk_schedules(bounds, root, known=_known_states(bounds))
