"""Rolls between releases in simulation: python -m testbench.mixed [--seeds 1..500] [--seconds S] [--gates] [--jobs N]

Each seed is a cluster of brokers of release 0.1 that are replaced by brokers of this release one by one, and in most
runs back, under load and with faults. `--seed N` runs one, `--trace` event by event. `--gate NAME` switches the gate of
a format off: runs have to fail. `--gates` finds a failing seed for each gate.
"""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from typing import Final

from ottla.sim.report import coverage_lines
from ottla.sim.runner import Result
from ottla.sim.swarm import Coverage, run_swarm
from testbench.mixed.gates import GATES
from testbench.mixed.package import PackageError, renamed_source
from testbench.mixed.runner import MixedOptions
from testbench.releases import ReleaseError

_PROGRESS: Final = 25
"""A line of progress after this number of seeds."""


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m testbench.mixed", description=__doc__)
    parser.add_argument("--seeds", default="1..20", help="first..last (default 1..20)")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--seconds", type=int, default=60, help="simulated seconds with faults (default 60)")
    parser.add_argument("--brokers", type=int, default=0, help="default: the seed chooses 3 to 5")
    parser.add_argument("--jobs", type=int, default=None, help="processes (default: one per processor)")
    parser.add_argument("--trace", action="store_true", help="print each event; with --seed")
    parser.add_argument("--gate", choices=sorted(GATES), help="switch this gate off")
    parser.add_argument("--gates", action="store_true", help="switch each gate off in turn, until a seed fails")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run, print the verdict: 0 if all seeds are right, and with `--gates` if each gate has a failing one."""
    options = parse(arguments)
    logging.disable(logging.CRITICAL)
    try:
        renamed_source()
        seeds = [options.seed] if options.seed is not None else _seeds(options.seeds)
        if options.gates:
            return _run_gates(seeds, options)
        return _run_seeds(seeds, _settings(options, options.gate), 1 if options.trace else options.jobs)
    except (PackageError, ReleaseError) as error:
        print(f"mixed: {error}", file=sys.stderr)
        return 2


def _seeds(text: str) -> Sequence[int]:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def _settings(options: argparse.Namespace, gate: str | None) -> MixedOptions:
    trace = print if options.trace else None
    return MixedOptions(seconds=options.seconds, brokers=options.brokers, trace=trace, gate=gate)


def _run_seeds(seeds: Sequence[int], settings: MixedOptions, jobs: int | None) -> int:
    coverage = Coverage()
    for result in run_swarm(seeds, settings, jobs):
        coverage.add_result(result)
        if coverage.seeds % _PROGRESS == 0:
            print(f"{coverage.seeds} of {len(seeds)} seeds", file=sys.stderr, flush=True)
        if not result.ok:
            print("\n".join(_failure_lines(result, settings)), flush=True)
    failed = [result.seed for result in coverage.failed]
    coverage.failed.clear()
    print("\n".join(coverage_lines(coverage, settings)))
    print(f"{len(failed)} of {len(seeds)} seeds failed{': ' if failed else ''}{', '.join(map(str, failed))}")
    return 1 if failed else 0


def _failure_lines(result: Result, settings: MixedOptions) -> list[str]:
    gate = "" if settings.gate is None else f" --gate {settings.gate}"
    brokers = f" --brokers {settings.brokers}" if settings.brokers else ""
    again = f"python -m testbench.mixed --seed {result.seed} --seconds {settings.seconds}{brokers}{gate}"
    found = [f"  {name}: {sentence}" for name, sentence in result.violations]
    return [f"seed {result.seed} FAILED: {again}", *found]


def _run_gates(seeds: Sequence[int], options: argparse.Namespace) -> int:
    missed = [name for name in GATES if not _find_failing(name, seeds, options)]
    for name in missed:
        print(f"{name}: no seed of {seeds[0]}..{seeds[-1]} fails without it", file=sys.stderr)
    return 1 if missed else 0


def _find_failing(name: str, seeds: Sequence[int], options: argparse.Namespace) -> bool:
    wanted = GATES[name].noticed_by
    for result in run_swarm(seeds, _settings(options, name), options.jobs):
        for found, sentence in result.violations:
            if found == wanted:
                print(f"{name}: seed {result.seed}, {wanted}: {sentence}", flush=True)
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
