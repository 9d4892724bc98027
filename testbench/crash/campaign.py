"""All crash points of all scripts, in several processes.

Zone: real. Chooses points, counts, and reports progress; `judge` checks the results.
"""

from __future__ import annotations

import logging
import multiprocessing
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from testbench.crash.judge import Fate, judge
from testbench.crash.scripts import SCRIPTS
from testbench.crash.story import Point, Story


class Finding(NamedTuple):
    """A crash with a wrong recovery."""

    script: str
    point: int
    step: str
    change: str
    fate: str
    seed: int
    what: str


@dataclass
class Result:
    """Counts and findings."""

    scripts: int = 0
    points: int = 0
    starts: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    fates: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Result) -> None:
        """Add the counts of another report."""
        self.scripts += other.scripts
        self.points += other.points
        self.starts += other.starts
        self.changes += other.changes
        self.fates += other.fates
        self.findings += other.findings

    def json(self) -> dict[str, object]:
        """The report as a JSON value."""
        counts = {name: getattr(self, name) for name in ("scripts", "points", "starts")}
        tables = {"changes": dict(self.changes), "fates": dict(self.fates)}
        return {**counts, **tables, "findings": [finding._asdict() for finding in self.findings]}


class Share(NamedTuple):
    """One script's part of a campaign."""

    script: str
    every: int
    """Try every N-th point; 1: all."""
    seed: int
    fates: tuple[Fate, ...]


def play(share: Share) -> Result:
    """Run a script and try its points."""
    story = Story(SCRIPTS[share.script], share.seed)
    crashes = story.play()
    result = Result(scripts=1, changes=story.changes)
    result.findings += [Finding(share.script, -1, "the script itself", "", "", share.seed, text) for text in crashes]
    offset = zlib.crc32(share.script.encode()) % share.every
    for point in story.points[offset :: share.every]:
        result.points += 1
        for fate in share.fates:
            seed = zlib.crc32(f"{share.script}/{point.number}/{fate.value}/{share.seed}".encode())
            result.starts += 1
            result.fates[fate.value] += 1
            for what in _judged(point, fate, seed):
                result.findings.append(
                    Finding(share.script, point.number, point.step, point.change, fate.value, share.seed, what)
                )
    return result


def _judged(point: Point, fate: Fate, seed: int) -> list[str]:
    """The findings after one crash. An exception of the check is also a finding."""
    try:
        return judge(point, fate, seed)
    except Exception as error:
        return [f"the check failed: {error!r}"]


def run(
    names: Sequence[str],
    *,
    every: int = 1,
    seed: int = 1,
    fates: Sequence[Fate] = tuple(Fate),
    jobs: int = 1,
    told: Callable[[Result], None] = lambda _: None,
) -> Result:
    """Run the whole campaign; `told` is called with the sum after every script."""
    shares = [Share(name, every, seed, tuple(fates)) for name in names]
    total = Result()
    for part in _parts(shares, jobs):
        total.add(part)
        told(total)
    return total


def _parts(shares: list[Share], jobs: int) -> Iterator[Result]:
    if jobs == 1:
        yield from map(play, shares)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, logging.disable, (logging.CRITICAL,)) as pool:
        yield from pool.imap_unordered(play, shares)
