"""Hours of mixed load on real brokers: python -m testbench.soak [--minutes M] [--rate N] [--seed N] [--out DIR]

Three brokers, each with a file system of its own. A stream with retention by size, a compacted table, transactions with
their reader; a broker is killed, stopped, loses its disk, disks fill up and are freed. Zero loss, memory that does not
grow, disk use within what retention allows; docs/chaos.md. Otherwise the exit code is 1. Needs root.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from testbench.apache_kafka.packages import BenchError
from testbench.disk import VolumeError
from testbench.network import NetworkError
from testbench.soak.run import run


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m testbench.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=120, help="of load (default 120)")
    parser.add_argument("--rate", type=float, default=4_000, help="records a second altogether (default 4000)")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which the log names")
    parser.add_argument("--out", type=Path, default=None, help="where logs go; default: build/soak/<seed>")
    parser.add_argument("--quiet", action="store_true", help="print the verdict only")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run, print the verdict."""
    options = parse(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    out = options.out or Path("build") / "soak" / str(seed)
    if out.exists() and any(out.iterdir()):
        print(f"soak: {out} is not empty: remove it, or name another with --out", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    say = (lambda _line: None) if options.quiet else (lambda line: print(line, file=sys.stderr, flush=True))
    try:
        complaints, counts = run(out.resolve(), minutes=options.minutes, seed=seed, rate=options.rate, say=say)
    except (BenchError, NetworkError, VolumeError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2
    print(f"{counts.pop('acknowledged'):,} records acknowledged: {counts}")
    print("\n".join(complaints) or "nothing was lost, memory and disks stayed within their bounds")
    print(f"seed {seed}, result {out}/soak.json")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
