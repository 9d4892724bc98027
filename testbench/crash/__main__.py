"""Crash points: python -m testbench.crash [--script NAME …] [--every N] [--seed N] [--jobs N] [--output FILE] …

Runs the workloads of `scripts` against Ottla's storage over simulated drives. After every single write, sync, creation,
rename and unlink the drives lose power: data that was not synced is kept (a kill), lost, torn, or kept in any order.
Each time the directory is opened and compared with an independent model, opened again with a power cut during the
opening, and once more after a clean stop. Exit code 1 when anything is wrong.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from pathlib import Path

from testbench.crash.campaign import Result, run
from testbench.crash.judge import Fate
from testbench.crash.scripts import SCRIPTS

FINDINGS_SHOWN = 20


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m testbench.crash", description=__doc__)
    parser.add_argument("--script", action="append", choices=sorted(SCRIPTS), help="only this one; may be repeated")
    parser.add_argument("--fate", action="append", choices=[fate.value for fate in Fate], help="only this one")
    parser.add_argument("--every", type=int, default=1, help="try every N-th point only (default 1: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the simulated machine (default 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--output", type=Path, default=None, help="write the result there, as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run, print the counts and what was found."""
    logging.disable(logging.CRITICAL)
    options = parse(arguments)
    names = options.script or list(SCRIPTS)
    fates = [fate for fate in Fate if options.fate is None or fate.value in options.fate]
    began = time.monotonic()

    def told(total: Result) -> None:
        if not options.quiet:
            done = "#" * (40 * total.scripts // len(names))
            print(
                f"\r[{done:40}] {total.scripts}/{len(names)} scripts, {total.points:,} points, "
                f"{total.starts:,} crashes, {len(total.findings)} found, {time.monotonic() - began:.0f} s",
                end="", file=sys.stderr, flush=True,
            )  # fmt: skip

    total = run(names, every=options.every, seed=options.seed, fates=fates, jobs=options.jobs, told=told)
    if not options.quiet:
        print(file=sys.stderr)
    if options.output:
        options.output.write_text(json.dumps(total.json(), indent=1) + "\n")
    for finding in total.findings[:FINDINGS_SHOWN]:
        print(
            f"{finding.script}, point {finding.point} ({finding.change} in `{finding.step}`), "
            f"{finding.fate}: {finding.what}"
        )
    changes = ", ".join(f"{count:,} {name}" for name, count in sorted(total.changes.items()))
    print(
        f"{total.points:,} points of {total.scripts} scripts ({changes}), "
        f"{total.starts:,} crashes, {len(total.findings)} found"
    )
    return int(bool(total.findings))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
