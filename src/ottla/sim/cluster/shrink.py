"""The fewest faults with which a failing run still fails.

Zone: deterministic. Faults are left out in ever smaller groups for as long as a property that was violated first is
violated again. A run with fewer faults is another run: what remains is small, not always the smallest.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final, NamedTuple

from ottla.sim.cluster.runner import ClusterOptions, ClusterResult, run_cluster

_FRAME: Final = re.compile(r"\s*[\d.]+ c\d+ [<>]")


class Shrunk(NamedTuple):
    """A smaller run that fails like the one before."""

    result: ClusterResult
    runs: int
    """How many were tried."""
    story: list[str]
    """What happened in it, without the frames on the network."""


def shrink(
    failed: ClusterResult, options: ClusterOptions, limit: int, tried: Callable[[int], None] = lambda _left: None
) -> Shrunk:
    """Leave out faults, with at most `limit` runs; `tried` is told after each how many faults are left."""
    wanted = {name for name, _ in failed.violations}
    best, runs = failed, 0
    size = max(1, len(failed.strikes) // 2)
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
    return Shrunk(best, runs, story(best, options))


def story(result: ClusterResult, options: ClusterOptions) -> list[str]:
    """The run once more, told without its frames."""
    lines: list[str] = []
    strikes = tuple(strike.number for strike in result.strikes)
    run_cluster(result.seed, replace(options, strikes=strikes, trace=lines.append))
    return [line for line in lines if not _FRAME.match(line)]
