"""Damage at rest: python -m testbench.damage [--cases N] [--seed N] [--level logs|broker|cluster] [--kind KIND …] …

Random flips, truncations, zeroed ranges and swapped files in every kind of file of a data directory; then the directory
is opened and read like a client reads. Allowed outcomes: all records are exact; a log line names the partition; the
reader gets an error; the directory is offline. A wrong byte or a traceback is a finding, with exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from pathlib import Path

from testbench.damage.campaign import Result, run
from testbench.damage.harm import KINDS

FINDINGS_SHOWN = 20


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m testbench.damage", description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000, help="how many (default 100,000)")
    parser.add_argument("--seed", type=int, default=1, help="of the first case; each case has the next one (default 1)")
    parser.add_argument(
        "--level", choices=("logs", "broker", "cluster"), default="logs", help="what is opened (default logs)"
    )
    parser.add_argument("--kind", action="append", choices=KINDS, help="only files of this kind; may be repeated")
    parser.add_argument("--output", type=Path, default=None, help="write the result there, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run, print the counts and what was found."""
    options = parse(arguments)
    began = time.monotonic()

    def told(result: Result) -> None:
        if not options.quiet and (result.cases % 200 == 0 or result.cases == options.cases):
            done = "#" * (40 * result.cases // options.cases)
            print(
                f"\r[{done:40}] {result.cases:,} cases, {len(result.findings)} found, {time.monotonic() - began:.0f} s",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip

    result = run(options.cases, seed=options.seed, kinds=tuple(options.kind or KINDS), level=options.level, told=told)
    if not options.quiet:
        print(file=sys.stderr)
    if options.output:
        options.output.write_text(json.dumps(result.json(), indent=1) + "\n")
    for finding in result.findings[:FINDINGS_SHOWN]:
        print(finding)
    table: dict[str, Counter[str]] = {}
    for (kind, outcome), count in sorted(result.outcomes.items()):
        table.setdefault(kind, Counter())[outcome] += count
    for kind, outcomes in table.items():
        print(f"{kind:34}" + "  ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())))
    print(f"{result.cases:,} cases, {len(result.findings)} found")
    return int(bool(result.findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
