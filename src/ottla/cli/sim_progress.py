"""What `ottla sim` says while many seeds run, and when it is stopped before the last one.

Zone: real. Lines on standard error; what the seeds covered is reported by `ottla.sim.report`.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator

from ottla.sim.runner import Result
from ottla.sim.swarm import Coverage
from ottla.terminal import draw_status

WIDTH = 24
"""Characters of the bar."""
LINE_EVERY_S = 60.0
"""Where there is no terminal."""


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: with KeyboardInterrupt, so that hours of work are told of."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class SwarmProgress:
    """How far a range of seeds is."""

    def __init__(self, seeds: range, quiet: bool) -> None:
        self._seeds = seeds
        self._quiet = quiet
        self._draws = sys.stderr.isatty()
        self._ran: set[int] = set()
        self._began = self._said = time.monotonic()

    def note(self, result: Result, coverage: Coverage) -> None:
        """One more seed. A failure is told at once; in a terminal the line is drawn anew, elsewhere one a minute."""
        self._ran.add(result.seed)
        if self._quiet:
            return
        if not result.ok:
            self._say(f"seed {result.seed} failed")
        now = time.monotonic()
        if self._draws:
            draw_status(self._line(coverage, now))
        elif now >= self._said + LINE_EVERY_S:
            self._said = now
            self._say(self._line(coverage, now))

    def end(self) -> None:
        """Leave the line of the terminal."""
        if self._draws and not self._quiet:
            sys.stderr.write("\n")

    def stopped(self) -> str | None:
        """Which seeds ran, when they are not all; None when they are."""
        if len(self._ran) == len(self._seeds):
            return None
        first, last = self._seeds[0], self._seeds[-1]
        missing = next(seed for seed in self._seeds if seed not in self._ran)
        more = len(self._ran) - (missing - first)
        whole = f"{first}..{missing - 1}" if missing > first else "none"
        return f"stopped       of {first}..{last} ran {whole}" + (f" and {more} behind them" if more else "")

    def _say(self, line: str) -> None:
        if self._draws:
            draw_status(line, end="\n")
        else:
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    def _line(self, coverage: Coverage, now: float) -> str:
        full = WIDTH * coverage.seeds // len(self._seeds)
        return (
            f"{'█' * full}{'·' * (WIDTH - full)} {coverage.seeds}/{len(self._seeds)} seeds,"
            f" {coverage.simulated_seconds / max(now - self._began, 0.001):,.0f}× real time,"
            f" {sum(coverage.faults.values()):,} faults, {coverage.acknowledged:,} acknowledged,"
            f" {len(coverage.failed)} failed"
        )
