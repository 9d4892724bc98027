#!/usr/bin/env python3
"""Measure how costs grow with topics, partitions and ids, compared with Apache Kafka.

    bench/growth.py [--rows NAME ...] [--quick] [--no-kafka] [--out DIR]

Writes GROWTH.md and growth.json after every measured size; other rows keep their last values. Rows that are measured
together with a chosen one are written, too. Exit code 1 when a row is
over a limit, except with --quick, whose sizes are too small for a verdict.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbench.apache_kafka.packages import BenchError
from testbench.process import NodeError

from bench.growth_bad import BAD_SWEEPS
from bench.growth_cluster import CLUSTER_SWEEPS
from bench.growth_ids import ID_SWEEPS
from bench.growth_report import Results
from bench.growth_rows import SWEEPS, Sweep
from bench.growth_work import Bench

ALL: tuple[Sweep, ...] = (*SWEEPS, *ID_SWEEPS, *CLUSTER_SWEEPS, *BAD_SWEEPS)


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    keys = [row.key for sweep in ALL for row in sweep.rows]
    parser.add_argument("--rows", nargs="+", choices=keys, metavar="NAME", help=f"of {', '.join(keys)}")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it runs, not what it costs")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent)
    return parser.parse_args(arguments)


def measure(sweep: Sweep, peer: str, options: argparse.Namespace, results: Results) -> None:
    """Run one sweep on one peer, and write each result at once."""
    names = ", ".join(row.key for row in sweep.rows)
    sizes = sweep.quick if options.quick else sweep.sizes
    if peer == "kafka":
        sizes = tuple(size for size in sizes if size <= sweep.kafkas_most)
    if not sizes:
        return
    begin = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - begin:6.1f} s] {names} on {peer}: {text}", flush=True)

    say("begins")
    with tempfile.TemporaryDirectory(prefix="ottla-growth-") as directory:
        for point in sweep.run(Bench(peer, Path(directory), options.quick, say), sizes):
            results.add(peer, point)
            wait = "" if point.wait_ms is None else f", longest wait {point.wait_ms:.1f} ms"
            say(f"{point.row} at {point.size:,g}: {point.cost:.4g}{wait}")


def main(arguments: list[str]) -> int:
    """Run the sweeps."""
    options = parse(arguments)
    results = Results(options.out, [row for sweep in ALL for row in sweep.rows])
    failed: list[str] = []
    for sweep in ALL:
        if options.rows is None or any(row.key in options.rows for row in sweep.rows):
            for peer in ("ottla",) if options.no_kafka else ("ottla", "kafka"):
                try:
                    measure(sweep, peer, options, results)
                except (BenchError, NodeError, OSError) as error:  # continue with the other sweeps
                    failed.append(f"{sweep.rows[0].key} on {peer}")
                    print(f"{failed[-1]} failed: {error}", flush=True)
    results.write()
    print(f"over a limit: {', '.join(results.over) or 'none'}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", flush=True)
        return 1
    return 1 if results.over and not options.quick else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
