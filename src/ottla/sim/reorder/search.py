"""All schedules within bounds, and what they add up to.

Zone: deterministic. A tree of schedules is walked depth first, without chance; its branches can be walked apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.sim.reorder.checker import found, violations
from ottla.sim.reorder.choices import Choices, Path
from ottla.sim.reorder.schedule import Bounds, Play, Redundant


class Broken(NamedTuple):
    """A schedule after which something does not hold."""

    path: Path
    violations: list[tuple[str, str]]


@dataclass(slots=True)
class Tally:
    """What schedules add up to."""

    schedules: int = 0
    redundant: int = 0
    """Paths that turned out to be another schedule, and were left."""
    broken: int = 0
    by_property: dict[str, int] = field(default_factory=dict)
    examples: list[Broken] = field(default_factory=list)
    """The first ones that break each property."""

    def add(self, other: Tally) -> None:
        """What another branch has seen."""
        self.schedules += other.schedules
        self.redundant += other.redundant
        self.broken += other.broken
        for name, count in other.by_property.items():
            if name not in self.by_property:
                self.examples += [each for each in other.examples if name in dict(each.violations)][:1]
            self.by_property[name] = self.by_property.get(name, 0) + count

    def add_schedule(self, path: Path, seen: list[tuple[str, str]]) -> None:
        """One schedule."""
        self.schedules += 1
        if not seen:
            return
        self.broken += 1
        names = dict.fromkeys(name for name, _ in seen)
        if any(name not in self.by_property for name in names):
            self.examples.append(Broken(path, seen))
        for name in names:
            self.by_property[name] = self.by_property.get(name, 0) + 1


def play(
    bounds: Bounds, choices: Choices, trace: Callable[[str], None] | None = None, known: set[bytes] | None = None
) -> list[tuple[str, str]]:
    """One schedule: what does not hold after it. Raises Redundant."""
    played = Play(bounds, choices, trace, known)
    try:
        played.run()
    except AssertionError as error:
        return [("nothing_leaves_a_turn", str(error))]
    return violations(found(played.stage, played.producer))


def walk(
    bounds: Bounds, root: Path = (), *, until_broken: bool = False, prune: bool = True, known: set[bytes] | None = None
) -> Tally:
    """All schedules that begin with `root`, or all up to the first that breaks something.

    `prune`: leave what goes on like another one. `known`: states that were met in other walks of the same tree, whose
    forks have been, or are going to be, walked there.
    """
    tally = Tally()
    if prune and known is None:
        known = set()
    path: Path | None = root
    while path is not None and not (until_broken and tally.broken):
        choices = Choices(path)
        try:
            seen = play(bounds, choices, None, known if prune else None)
            tally.add_schedule(choices.path, seen)
        except Redundant:
            tally.redundant += 1
        path = choices.next_path(len(root))
    return tally


def run_schedule(bounds: Bounds, path: Path) -> Tally:
    """A single schedule."""
    tally = Tally()
    try:
        tally.add_schedule(path, play(bounds, Choices(path)))
    except Redundant:
        tally.redundant += 1
    return tally


def branches(bounds: Bounds, depth: int = 2) -> Iterator[tuple[Path, bool]]:
    """The tree in parts: (root, whether it is one schedule only)."""
    roots: list[Path] = [()]
    for _ in range(depth):
        below: list[Path] = []
        for root in roots:
            choices = Choices(root)
            with suppress(Redundant):
                play(bounds, choices)
            yield choices.path, True
            below += choices.branches(len(root))
        roots = below
    yield from ((root, False) for root in roots)
