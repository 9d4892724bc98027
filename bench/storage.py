#!/usr/bin/env python3
"""Measure the log of one broker: flush before acknowledgement, recovery, many clean partitions, compaction.

    bench/storage.py [--runs N] [--only KEY,KEY…] [--quick] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.compaction_work import Keyed
from bench.filling import Filling, judge
from bench.flush_work import PRODUCERS, SYNC_MS
from bench.flush_work import Producers as Flushing
from bench.memory import in_memory
from bench.opening_work import GIB, Clean, Unclean
from bench.report import write
from bench.rows import Row

HEAD = """# Results: the log

Written by `make bench` (`bench/storage.py`); do not edit. One broker, medians of {runs} runs. Limits are absolute.
Flush before acknowledgement: every fsync takes {sync_ms} ms (`bench/slow_broker.py`). The files of that row and of the
many partitions are in memory, so that other users of the disk do not count. A start
is from the command until requests are answered, with whatever else that takes; recovery is what a start takes longer
than the one before it, after a clean stop. Compaction is of one closed segment of 16 KiB batches, with as
many keys as a tenth of the records; CPU is that of the broker and its worker, and meanwhile one client asks
(ApiVersions), every 2 ms; it does so before, too, for comparison.

Machine: {machine}. Load average during the runs: {load}. Measured {when}.
Command: `{command}`

| what | unit | Ottla | Apache Kafka | ratio | limit | C floor | × floor | verdict |
|---|---|---|---|---|---|---|---|---|
"""
PARTITIONS = 10_000
COMPACTION_ROWS = ("compact-1k", "compact-100")
COMPACTION_BYTES = 192 << 20
FLUSH_ROWS = ("flush-syncs", "flush-p50", "flush-p99")


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    flush = f"flush before acknowledgement, {PRODUCERS} producers, fsync of {SYNC_MS} ms"
    rows = [
        Row("flush-syncs", f"{flush}: fsyncs", "per 100 acknowledgements", 5, None),
        Row("flush-p50", f"{flush}: p50", "ms", 12, None),
        Row("flush-p99", f"{flush}: p99", "ms", None, None),
        Row("recovery", "recovery after an unclean stop, 16 KiB batches beyond the recovery point", "s/GiB", 2, None),
        Row("compact-1k", "compaction, records of 1 KiB, a tenth of them keys", "CPU s/GB", 1000 / 60, None),
        Row("compact-100", "compaction, records of 100 B, a tenth of them keys", "µs of CPU per record", 10, None),
        Row("compact-wait", "a request during compaction, p99.9", "ms", 20, None),
        Row("compact-before", "the same before it", "ms", None, None),
        Row("opening", f"start with {PARTITIONS:,} clean partitions", "s", 10, None),
    ]
    return {row.key: row for row in rows}


class Bench(Filling):
    """Runs the rows."""

    def flush(self) -> None:
        """Row of many producers with one record in flight each."""
        if not self.wants(*FLUSH_ROWS):
            return
        producers = Flushing(self.directory)
        try:
            producers.run(2_000)
            for at in range(self.options.runs):
                self.begin_run(at, "flush")
                seen = producers.run(int(20_000 * self.scale))
                for key, value in zip(FLUSH_ROWS, seen, strict=True):
                    self.add(key, "ottla", value)
        finally:
            producers.stop()

    def recovery(self) -> None:
        """Row of a start with a GiB above the recovery point."""
        if not self.wants("recovery"):
            return
        self.say("writing a log")
        log = Unclean(self.directory / "recovery", int(GIB * self.scale))
        for at in range(self.options.runs):
            self.begin_run(at, "recovery")
            self.add("recovery", "ottla", log.start())

    def compaction(self) -> None:
        """Rows of compaction, large records and small ones in turn."""
        if not self.wants(*COMPACTION_ROWS, "compact-wait", "compact-before"):
            return
        self.say("writing logs to be compacted")
        size = int(COMPACTION_BYTES * self.scale)
        large = Keyed(self.directory / "compact-1k", 1024, size)
        small = Keyed(self.directory / "compact-100", 100, size // 4)
        for at in range(self.options.runs):
            self.begin_run(at, "compaction")
            of_large, of_small = large.run(), small.run()
            self.add("compact-1k", "ottla", of_large.seconds_per_gb)
            self.add("compact-100", "ottla", of_small.us_per_record)
            self.add("compact-wait", "ottla", _longest(of_large.waits_ms + of_small.waits_ms))
            self.add("compact-before", "ottla", _longest(of_large.before_ms + of_small.before_ms))

    def opening(self) -> None:
        """Row of a start with thousands of partitions."""
        if not self.wants("opening"):
            return
        self.say("making partitions")
        with tempfile.TemporaryDirectory(prefix="ottla-bench-", dir=in_memory()) as name:
            logs = Clean(Path(name), int(PARTITIONS * self.scale))
            for at in range(self.options.runs):
                self.begin_run(at, "opening")
                self.add("opening", "ottla", logs.start())


def _longest(waits: list[float]) -> float:
    """The 99.9 % quantile."""
    return sorted(waits)[int((len(waits) - 1) * 0.999)]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="runs of each row (default 5)")
    parser.add_argument("--only", default="", help="keys of rows, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where STORAGE.md goes")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        bench = Bench(table(), options, Path(name))
        bench.flush()
        bench.recovery()
        bench.compaction()
        bench.opening()
    command = "bench/storage.py " + " ".join(arguments)
    head = HEAD.replace("{sync_ms}", str(SYNC_MS))
    write(bench.rows, bench.loads, options.runs, command.rstrip(), options.out, name="storage", head=head)
    return judge(bench.rows, bench.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
