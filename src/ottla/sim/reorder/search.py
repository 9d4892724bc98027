"""All schedules within bounds, and their sums.

Zone: deterministic. Walks the tree of schedules depth first; its branches can be walked separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.sim.mutants.ablation import without_safeguard
from ottla.sim.reorder.checker import find_violations, gather_found
from ottla.sim.reorder.choices import Choices, Path
from ottla.sim.reorder.schedule import Bounds, Play, Redundant


class Broken(NamedTuple):
    """A schedule that violates a property."""

    path: Path
    violations: list[tuple[str, str]]


@dataclass(slots=True)
class Tally:
    """Sums over schedules."""

    schedules: int = 0
    redundant: int = 0
    """Paths that were left because the rest is the same as in another schedule."""
    broken: int = 0
    by_property: dict[str, int] = field(default_factory=dict)
    examples: list[Broken] = field(default_factory=list)
    """The first schedules that violate each property."""

    def add_tally(self, other: Tally) -> None:
        """Add the sums of another branch."""
        self.schedules += other.schedules
        self.redundant += other.redundant
        self.broken += other.broken
        for name, count in other.by_property.items():
            if name not in self.by_property:
                self.examples += [each for each in other.examples if name in dict(each.violations)][:1]
            self.by_property[name] = self.by_property.get(name, 0) + count

    def add_schedule(self, path: Path, seen: list[tuple[str, str]]) -> None:
        """Count one schedule and its violations."""
        self.schedules += 1
        if not seen:
            return
        self.broken += 1
        names = dict.fromkeys(name for name, _ in seen)
        if any(name not in self.by_property for name in names):
            self.examples.append(Broken(path, seen))
        for name in names:
            self.by_property[name] = self.by_property.get(name, 0) + 1


def play_schedule(
    bounds: Bounds, choices: Choices, trace: Callable[[str], None] | None = None, known: set[bytes] | None = None
) -> list[tuple[str, str]]:
    """Run one schedule, and return its violations. Raises Redundant."""
    with without_safeguard(bounds.without):
        played = Play(bounds, choices, trace, known)
        try:
            played.run_to_end()
        except AssertionError as error:
            return [("nothing_leaves_a_turn", str(error))]
        return find_violations(gather_found(played.stage, played.producer))


def walk_schedules(
    bounds: Bounds, root: Path = (), *, until_broken: bool = False, prune: bool = True, known: set[bytes] | None = None
) -> Tally:
    """Run all schedules that begin with `root`; with `until_broken`, up to the first violation.

    `prune` leaves a schedule when its rest is the same as in another one. `known` has states that other walks of the
    same tree have met; those walks cover the forks of these states.
    """
    tally = Tally()
    if prune and known is None:
        known = set()
    path: Path | None = root
    while path is not None and not (until_broken and tally.broken):
        choices = Choices(path)
        try:
            seen = play_schedule(bounds, choices, None, known if prune else None)
            tally.add_schedule(choices.path, seen)
        except Redundant:
            tally.redundant += 1
        path = choices.next_path(len(root))
    return tally


def run_schedule(bounds: Bounds, path: Path) -> Tally:
    """Run a single schedule."""
    tally = Tally()
    try:
        tally.add_schedule(path, play_schedule(bounds, Choices(path)))
    except Redundant:
        tally.redundant += 1
    return tally


def split_tree(bounds: Bounds, depth: int = 2) -> Iterator[tuple[Path, bool]]:
    """Split the tree into parts: (root, whether the part is a single schedule)."""
    roots: list[Path] = [()]
    for _ in range(depth):
        below: list[Path] = []
        for root in roots:
            choices = Choices(root)
            with suppress(Redundant):
                play_schedule(bounds, choices)
            yield choices.path, True
            below += choices.list_branches(len(root))
        roots = below
    yield from ((root, False) for root in roots)
