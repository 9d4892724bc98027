"""Shared by benches with many rows: selects rows, collects samples, and prints the verdicts."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Collection
from pathlib import Path

from bench.rows import Row


class Filling:
    """The rows of one bench during a run."""

    def __init__(self, rows: dict[str, Row], options: argparse.Namespace, directory: Path) -> None:
        self.rows = rows
        self.scale = 0.15 if options.quick else 1.0
        self.only = set(options.only.split(",")) if options.only else set(rows)
        self.directory = directory
        self.loads: list[float] = []
        self.options = options

    def run(self) -> None:
        """Measure the selected rows."""
        raise NotImplementedError

    def wants(self, *keys: str) -> bool:
        """Whether one of these rows is selected."""
        return any(key in self.only for key in keys)

    def add(self, key: str, peer: str, value: float) -> None:
        """Keep a sample, and print it."""
        self.rows[key].add(peer, value)
        self.say(f"  {key:20} {peer:8} {value:9.3f} {self.rows[key].unit}")

    def say(self, text: str) -> None:
        """Progress, on stderr."""
        print(text, file=sys.stderr, flush=True)

    def begin_run(self, at: int, what: str = "") -> None:
        """Print the number of a run, and note the load of the machine."""
        self.say(f"{what}{': ' if what else ''}run {at + 1} of {self.options.runs}")
        self.loads.append(os.getloadavg()[0])


def judge(rows: dict[str, Row], only: Collection[str]) -> int:
    """Print the verdict of each selected row. Returns the exit code: 1 when one is over, or not measured."""
    judged = [row for key, row in rows.items() if key in only]
    for row in judged:
        measured = "–" if row.measured is None else f"{row.measured:.3g}"
        limit = "none" if row.limit is None else f"{row.limit:g}"
        print(f"{row.verdict:13} {measured:>8} (limit {limit})  {row.title}")
    return int(any(row.verdict in ("over", "not measured") for row in judged))
