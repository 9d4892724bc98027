"""The resources of brokers during a soak: resident memory, and disk use of their data directories.

Zone: real. Takes, keeps and checks samples; it starts and ends nothing.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testbench.process import NodeError

GROWTH_MAX = 0.05
"""Maximum growth of resident memory, from the first to the last tenth of the second half of a run."""
JUDGED_MINUTES = 60
"""A shorter run is only warm-up: its growth is reported, but not checked."""
BLOCK = 512


@dataclass
class Samples:
    """Samples of one broker: memory by process, so that a restart does not count as growth, and disk."""

    rss: list[tuple[float, int, int]] = field(default_factory=list)
    """(seconds since the beginning, process id, bytes)"""
    disk: list[tuple[float, int]] = field(default_factory=list)
    """(seconds since the beginning, bytes)"""

    def look(self, at: float, pid: int, data: Sequence[Path], topics: Sequence[str]) -> None:
        """Take a sample; skip processes and files that vanish meanwhile."""
        try:
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            self.rss.append((at, pid, pages * os.sysconf("SC_PAGE_SIZE")))
            self.disk.append((at, sum(size for each in data for size in _sizes(each, topics))))
        except (OSError, NodeError):
            return

    def growth(self, end: float) -> float | None:
        """Growth of the last process's memory in the second half, as a part of 1; None when the process is younger
        than that."""
        pid = self.rss[-1][1] if self.rss else -1
        first = [size for at, who, size in self.rss if who == pid and end * 0.5 <= at < end * 0.55]
        last = [size for at, who, size in self.rss if who == pid and at >= end * 0.95]
        return statistics.mean(last) / statistics.mean(first) - 1 if first and last else None

    @property
    def peak_disk(self) -> int:
        """Maximum disk use in bytes."""
        return max((size for _, size in self.disk), default=0)


def _sizes(data: Path, topics: Sequence[str]) -> Iterator[int]:
    """Bytes of the files of these topics, including files that wait for their removal."""
    names = tuple(f"{topic}-" for topic in topics)
    for directory in data.iterdir():
        if directory.name.startswith(names):
            yield from (file.stat().st_blocks * BLOCK for file in directory.iterdir())


def judge_growth(samples: dict[str, Samples], seconds: float) -> list[str]:
    """Complaints about the memory of brokers that ran long enough."""
    if seconds < JUDGED_MINUTES * 60:
        return []
    grown = {name: each.growth(seconds) for name, each in samples.items()}
    found = [
        f"{name}: resident memory grew by {growth:.1%} in the last half, more than {GROWTH_MAX:.0%}"
        for name, growth in grown.items()
        if growth is not None and growth > GROWTH_MAX
    ]
    return found if any(growth is not None for growth in grown.values()) else ["no broker lived through the last half"]


def judge_disk(samples: dict[str, Samples], bound: int) -> list[str]:
    """Complaints about disk use beyond `bound` bytes."""
    return [
        f"{name}: {each.peak_disk:,} bytes were in use, retention bounds them to {bound:,}"
        for name, each in samples.items()
        if each.peak_disk > bound
    ]
