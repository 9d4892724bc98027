"""The way of a cluster from one release to the other and back: which broker is replaced when, and by what.

Zone: pure. Everything is drawn before a run begins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.sim.entropy import Stream
from ottla.sim.world import MS, SECOND
from testbench.mixed.formats import Release

UP, DOWN, HALF_UP = "up", "down", "half up"
ROUTES: Final = (
    (UP,),
    (UP, DOWN),
    (UP, DOWN),
    (HALF_UP, DOWN),
    (UP, DOWN, UP),
    (HALF_UP,),
)
"""From the earlier release on. A run whose route ends with all brokers of this release may finalize a level."""
KILLED: Final = 0.3
"""Chance that a broker is killed instead of stopped when it is replaced."""


class Replacement(NamedTuple):
    """A broker becomes one of a release."""

    at_ns: int
    broker: int
    release: Release
    kill: bool


@dataclass(frozen=True, slots=True)
class RollPlan:
    """The schedule of a run."""

    route: tuple[str, ...]
    replacements: tuple[Replacement, ...]
    done_ns: int
    """When the last part of the route is over."""
    finalized: tuple[tuple[int, int], ...] = field(default=())
    """When which level of transaction.version is finalized."""


def plan_rolls(random: Stream, brokers: Sequence[int], begin_ns: int, end_ns: int) -> RollPlan:
    """Draw a route, the order of the brokers in each part of it, and the pauses."""
    route = random.choice(ROUTES)
    # The last part of the run is left for the cluster as it is after the last part of the route.
    part_ns = (end_ns - begin_ns) // (len(route) + 1)
    replacements: list[Replacement] = []
    for number, way in enumerate(route):
        replacements += _plan_part(random, way, brokers, begin_ns + number * part_ns, part_ns)
    done_ns = begin_ns + len(route) * part_ns
    last = [done_ns + (end_ns - done_ns) * share // 10 for share in (1, 4)]
    levels = [(last[0], random.choice((0, 1, 2))), (last[1], random.choice((0, 0, 1, 2)))] if route[-1] == UP else []
    return RollPlan(route, tuple(replacements), done_ns, tuple(levels))


def _plan_part(random: Stream, way: str, brokers: Sequence[int], begin_ns: int, part_ns: int) -> Iterator[Replacement]:
    order = _shuffled(random, brokers)
    if way == HALF_UP:
        order = order[: max(1, len(order) // 2)]
    pause_ns = min(random.between(1500, 5000) * MS, part_ns // len(order))
    release = Release.EARLIER if way == DOWN else Release.PRESENT
    for number, broker in enumerate(order):
        at_ns = begin_ns + number * pause_ns + random.random_below(SECOND // 2)
        yield Replacement(at_ns, broker, release, random.chance(KILLED))


def _shuffled(random: Stream, items: Sequence[int]) -> list[int]:
    left = list(items)
    return [left.pop(random.random_below(len(left))) for _ in items]
