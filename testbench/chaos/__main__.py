"""Chaos on real processes: python -m testbench.chaos [--engine embedded|zookeeper|kafka] [--minutes M] [--seed N] …

Three brokers, replication factor 3, min.insync.replicas 2; idempotent producers with acks=all and consumers, of
librdkafka and of Java; and a nemesis that kills and stops brokers, cuts links and cuts the power. At the end every
acknowledged record must have been consumed exactly once, and the replicas must be byte-identical. Otherwise the exit
code is 1, and the logs and data of the brokers stay beside the log of the run.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from testbench.apache_kafka.packages import BenchError
from testbench.chaos.arena import ENGINES
from testbench.chaos.run import run
from testbench.disk import VolumeError
from testbench.network import NetworkError


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(prog="python -m testbench.chaos", description=__doc__)
    parser.add_argument("--engine", choices=ENGINES, default="embedded", help="what runs (default embedded)")
    parser.add_argument("--minutes", type=float, default=30, help="of faults (default 30)")
    parser.add_argument("--seed", type=int, default=None, help="default: a random one, which the log names")
    parser.add_argument("--rate", type=float, default=2_400, help="records a second of all producers (default 2400)")
    parser.add_argument("--out", type=Path, default=None, help="where logs go; default: build/chaos/<engine>-<seed>")
    parser.add_argument(
        "--flush", action="store_true", help="flush before acknowledging; all brokers lose power at once"
    )
    parser.add_argument("--quiet", action="store_true", help="print the verdict only")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run, print the verdict."""
    options = parse(arguments)
    seed = secrets.randbelow(10**6) if options.seed is None else options.seed
    out = options.out or Path("build") / "chaos" / f"{options.engine}-{seed}"
    if out.exists() and any(out.iterdir()):
        print(f"chaos: {out} is not empty: remove it, or name another with --out", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    say = (lambda _line: None) if options.quiet else (lambda line: print(line, file=sys.stderr, flush=True))
    try:
        complaints, counts = run(
            options.engine,
            out.resolve(),
            minutes=options.minutes,
            seed=seed,
            rate=options.rate,
            say=say,
            flush=options.flush,
        )
    except (BenchError, NetworkError, VolumeError) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    print(f"{counts.pop('acknowledged')} records acknowledged, {counts.pop('faults')} faults: {counts}")
    print("\n".join(complaints) or "every acknowledged record was consumed exactly once; replicas are equal")
    print(f"seed {seed}, log {out}/chaos.log")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
