"""Many cases of damage, counted.

Zone: deterministic. The seed of a case chooses the directory that it damages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ottla.sim.entropy import Streams
from testbench.damage import brokers, clusters
from testbench.damage.harm import KINDS
from testbench.damage.logs import Case, bases, try_one


@dataclass
class Result:
    """Counts and findings."""

    cases: int = 0
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By kind of file and outcome."""
    findings: list[str] = field(default_factory=list)

    def json(self) -> dict[str, object]:
        """The report as a JSON value."""
        rows = [
            {"kind": kind, "outcome": outcome, "count": count}
            for (kind, outcome), count in sorted(self.outcomes.items())
        ]
        return {"cases": self.cases, "outcomes": rows, "findings": self.findings}


def run(
    cases: int,
    *,
    seed: int = 1,
    kinds: tuple[str, ...] = KINDS,
    level: str = "logs",
    told: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Run the whole campaign; `told` is called with the result so far after every case."""
    result = Result()
    for case, number in _cases(cases, seed, kinds, level):
        result.cases += 1
        if case.harm is not None:
            result.outcomes[case.harm.kind, case.outcome] += 1
        if case.wrong:
            harm = "" if case.harm is None else f"{case.harm.harm} {case.harm.path} ({case.harm.what})"
            result.findings.append(f"seed {number}, {case.base}: {harm}: {case.outcome}: {case.wrong[0]}")
        told(result)
    return result


def _cases(cases: int, seed: int, kinds: tuple[str, ...], level: str) -> Iterator[tuple[Case, int]]:
    if level == "cluster":
        worlds = list(clusters.bases())
        for number in range(seed, seed + cases):
            yield clusters.try_one(Streams(number).named_stream("base").choice(worlds), number, kinds), number
        return
    if level == "broker":
        directories = list(brokers.bases())
        for number in range(seed, seed + cases):
            yield brokers.try_one(Streams(number).named_stream("base").choice(directories), number), number
        return
    shelves = list(bases())
    for number in range(seed, seed + cases):
        yield try_one(Streams(number).named_stream("base").choice(shelves), number, kinds), number
