"""The options and the run of a bench whose rows can be measured one by one: `spark`, `schemas` and `tables`."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.filling import Filling, judge
from bench.report import keep, number, write
from bench.rows import Row


class Program(NamedTuple):
    """A bench: its report, and its options where they differ from those of others."""

    name: str
    """Of the reports: `<NAME>.md` and `<name>.json`."""
    description: str
    """The docstring of its module."""
    runs: int
    """The default of --runs."""
    each: str
    """One of the things that are run, in the plural."""


def line(row: Row) -> str:
    """A row of the report: the peer's figure, and the ratio to it."""
    own, peer = row.figure("ottla"), row.figure(row.against) if row.against else None
    limit = "–" if row.limit is None else f"≤ {row.limit:.3g}" + (" ×" if row.against else "")
    ratio = row.measured if row.against else None
    cells = [row.title, row.unit, number(own), number(peer), number(ratio), limit, f"**{row.verdict}**"]
    return "| " + " | ".join(cells) + " |\n"


def parse_options(program: Program, arguments: Sequence[str]) -> argparse.Namespace:
    """The options."""
    report = f"{program.name.upper()}.md"
    parser = argparse.ArgumentParser(
        description=program.description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=program.runs, help=f"starts of {program.each} (default {program.runs})"
    )
    parser.add_argument("--only", default="", help="keys of rows, separated by commas")
    parser.add_argument(
        "--keep", action="store_true", help="rows that are not in --only stay as they were measured last"
    )
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help=f"where {report} goes")
    return parser.parse_args(arguments)


def run_program(
    program: Program,
    make: Callable[[argparse.Namespace, Path], Filling],
    head: str,
    arguments: Sequence[str],
    notes: Callable[[dict[str, Row]], list[str]] = lambda _: [],
) -> int:
    """Run a bench, and write its report. Returns the exit code: 1 when a row is over its limit.

    make: of the options and a directory that is removed afterwards. notes: the texts below the rows, of their figures.
    """
    options = parse_options(program, arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-", ignore_cleanup_errors=True) as name:
        bench = make(options, Path(name))
        bench.run()
    kept = keep(bench.rows, bench.only, options.out, program.name) if options.keep else []
    texts = kept + notes(bench.rows)
    command = " ".join([f"bench/{program.name}.py", *arguments])
    rows, loads = bench.rows, bench.loads
    write(rows, loads, options.runs, command, options.out, name=program.name, head=head, notes=texts, line=line)
    return judge(rows, bench.only)
