"""Shrinks a failing run: finds a small set of faults with which it still fails.

Zone: deterministic. Leaves out faults in smaller and smaller groups, as long as one of the properties that were
violated at first is violated again. A run with fewer faults is a different run: the result is small, but not always the
smallest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.sim.cluster.runner import ClusterOptions, ClusterResult, run_cluster

_FRAME: Final = re.compile(r"\s*[\d.]+ c\d+ [<>]")


class Shrunk(NamedTuple):
    """A smaller run that fails in the same way."""

    result: ClusterResult
    runs: int
    """How many runs were tried."""
    story: list[str]
    """The trace of the run, without the frames on the network."""


def shrink_faults(
    failed: ClusterResult, options: ClusterOptions, limit: int, tried: Callable[[int], None] = lambda _left: None
) -> Shrunk:
    """Leave out faults, with at most `limit` runs. `tried` is called after each run with the number of faults left."""
    wanted = {name for name, _ in failed.violations}
    best, runs = failed, 0
    size = max(1, len(failed.strikes) // 2)
    # 1. Try to leave out each group of `size` faults; with the first success, start again with the rest.
    # 2. When no group can be left out, halve the size; at size 1 nothing more can be left out.
    while runs < limit:
        numbers = [strike.number for strike in best.strikes]
        for start in range(0, len(numbers), size):
            candidate = tuple(number for number in numbers if number not in numbers[start : start + size])
            runs += 1
            result = run_cluster(failed.seed, replace(options, strikes=candidate, trace=None))
            tried(len(best.strikes))
            if wanted & {name for name, _ in result.violations}:
                best = result
                break
            if runs >= limit:
                break
        else:
            if size == 1:
                break
            size = max(1, size // 2)
    return Shrunk(best, runs, replay_story(best, options))


def replay_story(result: ClusterResult, options: ClusterOptions) -> list[str]:
    """Run it once more, and return its trace without the frames."""
    lines: list[str] = []
    strikes = tuple(strike.number for strike in result.strikes)
    run_cluster(result.seed, replace(options, strikes=strikes, trace=lines.append))
    return [line for line in lines if not _FRAME.match(line)]
