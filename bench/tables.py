#!/usr/bin/env python3
"""Measure `ottla table copy`: topics as Iceberg and Delta tables, beside a writer of prepared columns and a script.

    bench/tables.py [--runs N] [--only KEY,KEY… [--keep]] [--quick] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import pyarrow as pa
from testbench.ottla_node import OttlaNode

from bench.filling import Filling
from bench.processes import Used, run_measured
from bench.program import Program, run_program
from bench.rows import Row
from bench.table_lag import Arrivals, slowest_lags
from bench.table_work import TABLE, catalog_properties
from bench.work import make_topic
from ottla.client import Consumer
from ottla.client.producer import Producer
from ottla.tables.rows import BytesRows

HEAD = """# Results: tables

Written by `bench/tables.py`; do not edit. {records:,} records with values of 1 KiB of text, which zstd makes half as
long, and keys of 12 bytes, in 2 partitions of one broker (Ottla). `ottla table copy … --exit-at-end`, with its
defaults, is started for a new table: CPU is that of its whole process, from its start to its end and with all threads;
not that of the broker. 20 s of CPU per GB of values are 50 MB/s per core. Medians of {{runs}} interleaved runs.

Beside it, in processes measured in the same way: a writer of prepared columns, which maps an Arrow file of the same
rows and gives 128 MiB of them at a time to pyiceberg {iceberg} or delta-rs {delta} with their defaults (delta-rs:
Snappy); and a script, which gets records of confluent-kafka, makes lists and Arrow columns of them, and writes as
often. Neither stores offsets, so that neither is exactly once.

Lag: the table is copied with the defaults (a commit every 30 s) while {second:,} records a second arrive; from a
record's timestamp until a reader of the table finds its file, the oldest record of all commits and runs.

Where the machine had other work during the runs, as its load average shows, times are longer than they need be: CPU and
ratios decide, times are stated.

Machine: {{machine}}. Load average during the runs: {{load}}. Measured {{when}}.
Command: `{{command}}`

| what | unit | Ottla | the other | × | limit | verdict |
|---|---|---|---|---|---|---|
"""
RECORDS = 1_000_000
VALUE_BYTES = 1024
PER_SECOND = 2_000
LAG_S = 100
SHORTEST_LAG_S = 60
"""Two commits."""
KINDS = {"iceberg": "Iceberg", "delta": "Delta"}
SOURCE, TICKS, EMPTY = "source", "ticks", "empty"
BOUND, SCRIPT = "arrow", "script"


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = []
    for kind, name in KINDS.items():
        rows += [
            Row(f"{kind}-cpu", f"topic → {name}", "s of CPU/GB", 20, None),
            Row(f"{kind}-script", f"topic → {name}, beside a script", "s of CPU/GB", 1, SCRIPT),
            Row(f"{kind}-bound", f"topic → {name}, beside a writer of prepared columns", "s of CPU/GB", None, BOUND),
            Row(f"{kind}-time", f"topic → {name}, beside a script", "s", None, SCRIPT),
            Row(f"{kind}-memory", f"topic → {name}, beside a script: most memory", "MiB", None, SCRIPT),
            Row(f"{kind}-size", f"topic → {name}, beside a script: files", "MB", None, SCRIPT),
            Row(f"{kind}-start", f"empty topic → {name}", "s of CPU", None, None),
            Row(f"{kind}-lag", f"topic → {name}: lag of the oldest record", "s", 60, None, quantile=1),
        ]
    return {row.key: row for row in rows}


def copy_command(bootstrap: str, topic: str, kind: str, folder: Path) -> list[str]:
    """`ottla table copy` into a table of a folder."""
    words = ["--to", kind, "--table", TABLE if kind == "iceberg" else str(folder / "table")]
    if kind == "iceberg":
        words += [f"--property={key}={value}" for key, value in catalog_properties(str(folder)).items()]
    return [sys.executable, "-m", "ottla", "table", "copy", topic, *words, "--brokers", bootstrap]


def values_of(first: int, count: int) -> pa.Array:
    """Texts of VALUE_BYTES."""
    draw = np.random.default_rng(first)
    texts = [b'{"id": %012d, "note": "' % at + draw.bytes(VALUE_BYTES // 2).hex().encode() for at in range(count)]
    return pa.array([each[: VALUE_BYTES - 2] + b'"}' for each in texts], pa.binary())


class Bench(Filling):
    """Runs the rows."""

    def run(self) -> None:
        """Run all rows on one broker."""
        self._count = int(RECORDS * self.scale)
        with OttlaNode(self.directory / "broker") as node:
            self._bootstrap = node.bootstrap
            for topic in (SOURCE, EMPTY):
                make_topic(node.port, topic, 2)
            self._fill()
            self._prepare()
            for run in range(self.options.runs):
                self.begin_run(run)
                for kind in KINDS:
                    self._measure_rates(kind, run)
                kinds = [kind for kind in KINDS if self.wants(f"{kind}-lag")]
                if kinds:
                    make_topic(node.port, f"{TICKS}{run}", 2)
                    self._measure_lags(kinds, run)

    def _fill(self) -> None:
        # In pieces, because a process inherits the figure of most memory from the one that starts it.
        with Producer({"bootstrap.servers": self._bootstrap, "batch.size": 100_000}) as producer:
            for first in range(0, self._count, 20_000):
                values = values_of(first, min(20_000, self._count - first))
                keys = pa.array([b"key-%08d" % (first + at) for at in range(len(values))], pa.binary())
                producer.send_table(SOURCE, pa.table({"key": keys, "value": values}))
                producer.flush()

    def _prepare(self) -> None:
        """The rows that `ottla table` would write, as an Arrow file."""
        settings = {"bootstrap.servers": self._bootstrap, "enable.auto.commit": "false"}
        maker, left = BytesRows(), self._count
        with (
            Consumer(settings) as consumer,
            pa.ipc.new_file(self.directory / "rows.arrow", maker.layout.schema) as writer,
        ):
            partitions = consumer.partitions_for_topic(SOURCE)
            consumer.assign(partitions)
            consumer.seek_to_beginning(partitions)
            while left > 0:
                rows = maker.make_rows(consumer.poll_table(1.0, headers=True, max_bytes=8 << 20)).rows
                writer.write_table(rows)
                left -= rows.num_rows

    def _measure_rates(self, kind: str, run: int) -> None:
        keys = [f"{kind}-{part}" for part in ("cpu", "script", "bound", "time", "memory", "size")]
        if self.wants(*keys):
            copy = self._run(kind, "ottla", run, lambda folder: self._copy_command(SOURCE, kind, folder))
            for key in keys:
                self._keep(key, "ottla", *copy)
        words = {BOUND: [str(self.directory / "rows.arrow")], SCRIPT: [self._bootstrap, SOURCE]}
        for peer in (SCRIPT, BOUND):
            if wanted := [key for key in keys if self.rows[key].against == peer and self.wants(key)]:
                found = self._run(kind, peer, run, lambda folder, of=peer: _work(of, kind, folder, words[of]))
                for key in wanted:
                    self._keep(key, peer, *found)
        if self.wants(f"{kind}-start"):
            used, _ = self._run(kind, "start", run, lambda folder: self._copy_command(EMPTY, kind, folder))
            self.add(f"{kind}-start", "ottla", used.cpu_s)

    def _copy_command(self, topic: str, kind: str, folder: Path) -> list[str]:
        return [*copy_command(self._bootstrap, topic, kind, folder), "--exit-at-end"]

    def _run(self, kind: str, name: str, run: int, command: Callable[[Path], list[str]]) -> tuple[Used, float]:
        """Run a command with a folder of its own; returns also the size of its data files, MB."""
        with tempfile.TemporaryDirectory(prefix=f"{kind}-{name}{run}-", dir=self.directory) as made:
            folder = Path(made)
            used = run_measured(command(folder), self.directory / f"{folder.name}.log")
            return used, sum(each.stat().st_size for each in folder.rglob("*.parquet")) / 1e6

    def _keep(self, key: str, peer: str, used: Used, size: float) -> None:
        gigabytes = self._count * VALUE_BYTES / 1e9
        figures = {"time": used.seconds, "memory": used.peak_mib, "size": size}
        if self.wants(key):
            self.add(key, peer, figures.get(key.partition("-")[2], used.cpu_s / gigabytes))

    def _measure_lags(self, kinds: list[str], run: int) -> None:
        """Copies into all formats at once, while records arrive."""
        folders = {kind: self.directory / f"lag-{kind}{run}" for kind in kinds}
        for folder in folders.values():
            folder.mkdir()
        topic = f"{TICKS}{run}"
        commands = {kind: copy_command(self._bootstrap, topic, kind, folder) for kind, folder in folders.items()}
        seconds = max(SHORTEST_LAG_S, LAG_S * self.scale)
        value = values_of(0, 1)[0].as_py()
        arrivals = Arrivals(self._bootstrap, topic, seconds, PER_SECOND, value)
        found = slowest_lags(arrivals, commands, folders)
        for kind, lag in found.items():
            self.add(f"{kind}-lag", "ottla", lag)


def _work(job: str, kind: str, folder: Path, words: list[str]) -> list[str]:
    return [sys.executable, str(Path(__file__).with_name("table_work.py")), job, kind, str(folder), *words]


def start_notes(rows: dict[str, Row]) -> list[str]:
    """How much of the CPU is spent before the first record."""
    shares = []
    for kind, name in KINDS.items():
        whole, start = rows[f"{kind}-cpu"].figure("ottla"), rows[f"{kind}-start"].figure("ottla")
        if whole is not None and start is not None:
            shares.append(f"{name}: {start:.2f} s")
    if not shares:
        return []
    return [f"The CPU of the copy includes the start of Python and of the formats' libraries ({'; '.join(shares)})."]


PROGRAM = Program("tables", __doc__, 3, "each program")


def main(arguments: list[str]) -> int:
    """Run the bench."""
    libraries = {"iceberg": version("pyiceberg"), "delta": version("deltalake")}
    head = HEAD.format(records=RECORDS, second=PER_SECOND, **libraries)
    return run_program(PROGRAM, lambda *given: Bench(table(), *given), head, arguments, start_notes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
