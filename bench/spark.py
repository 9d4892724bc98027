#!/usr/bin/env python3
"""Measure Spark over topics: Ottla's source and sink, Spark's own connector, and the retry service.

    bench/spark.py [--runs N] [--only KEY,KEY… [--keep]] [--quick] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pyarrow as pa
from testbench.apache_kafka import packages

from bench import retry
from bench.filling import Filling
from bench.peers import HOST, Peer, ottla
from bench.program import Program, run_program
from bench.rows import Row
from bench.spark_work import OWN
from bench.work import make_topic
from ottla.client.batch_transaction import ConnectionCache
from ottla.client.producer import Producer
from ottla.spark.sink.exactly_once import Marker, TaskBatch
from ottla.spark.sink.sink_options import sink_options
from ottla.spark.sink.transactional_write import TransactionalWrite, make_markers, write_task_batch

HEAD = """# Results: Spark

Written by `make bench` (`bench/spark.py`); do not edit. One broker (Ottla); records of 100 B in 2 partitions; Spark on
two cores. CPU is that of Spark's whole process tree, Java and Python; each start of Spark does every job three times,
and the third counts; medians of {{runs}} starts of each, in turn. The copy changes every value; ours is exactly once,
the connector's at least once. Latency: from the producer to a reader of committed records, 200 messages a second. A
limit is a multiple of the connector's figure in the same run, or absolute without a ×.

Machine: {{machine}}. Load average during the runs: {{load}}. Measured {{when}}.
Command: `{{command}}`

| what | unit | Ottla | Spark's connector {connector} | × | limit | verdict |
|---|---|---|---|---|---|---|
"""
CONNECTOR = "kafka"
SCOPES = {"batch": "ottla", "partition": "partition"}
"""The units that the sink writes at once, and whose figures they are: the second is the peer of the first."""
RECORDS = 1_000_000
PER_SECOND = 200
LATENCY_S = 20
LATENCIES = ("latency-p50-peer", "latency-p99-peer", "latency-cpu")
ON_DRIVER = "with `maxRecordsOnDriver=1000`"
WARM_S = 5
TRANSACTIONS = 300
WAITING = 1_000_000
SOURCE, TICKS = "source", "ticks"


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = [
        Row("read-cpu", "1 M records → noop", "s of CPU", 0.6, CONNECTOR),
        Row("read-time", "1 M records → noop", "s", 1, CONNECTOR),
        Row("copy-cpu", "1 M records → changed → topic", "s of CPU", 0.8, CONNECTOR),
        Row("copy-time", "1 M records → changed → topic", "s", 1, CONNECTOR),
        Row("whole-cpu", "the same, `exactlyOnce=batch` beside `partition`", "s of CPU", 1.1, SCOPES["partition"]),
        Row("transaction", "transaction of one task: take over, marker, 100 records, commit", "ms", 6, None),
        Row("latency-p50", "micro-batches, p50", "ms", 400, None),
        Row("latency-p99", "micro-batches, p99", "ms", 800, None),
        Row("latency-p50-peer", "micro-batches, p50, beside the connector's", "ms", 1.2, CONNECTOR),
        Row("latency-p99-peer", "micro-batches, p99, beside the connector's", "ms", 1.2, CONNECTOR),
        Row("latency-cpu", "micro-batches, each beside the connector's", "s of CPU", None, CONNECTOR),
        Row("latency-p50-peer-driver", f"micro-batches {ON_DRIVER}, p50, beside the connector's", "ms", 1.2, CONNECTOR),
        Row("latency-p99-peer-driver", f"micro-batches {ON_DRIVER}, p99, beside the connector's", "ms", 1.2, CONNECTOR),
        Row(
            "latency-cpu-driver", f"micro-batches {ON_DRIVER}, each beside the connector's", "s of CPU", None, CONNECTOR
        ),
        Row("retry-late", "retry service, 1 M wait: how late 2,000 a second come, p99", "ms", 250, None),
        Row("retry-memory", "retry service, 1 M wait: memory", "MiB", 400, None),
    ]
    return {row.key: row for row in rows}


class Spark:
    """A Spark in a separate process: a script of bench/ that runs the jobs in the lines of standard input."""

    def __init__(self, script: str, words: Sequence[str], directory: Path, jars: Sequence[Path] = ()) -> None:
        """The script is called with `words`, the directory, and the jars."""
        directory.mkdir(parents=True)
        self._log = (directory / "log").open("w")
        command = [sys.executable, str(Path(__file__).with_name(script)), *words, str(directory)]
        self._process = subprocess.Popen(
            [*command, ",".join(map(str, jars))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            bufsize=1,
        )
        self.log = directory / "log"
        self._answer()

    def ask(self, *words: str) -> dict[str, float]:
        """Run a job; returns its time and CPU."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words) + "\n")
        return self._answer()

    def _answer(self) -> dict[str, float]:
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            raise SystemExit(f"Spark ended:\n{_without_frames(self.log.read_text())}")
        found: dict[str, float] = json.loads(told)
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._log.close()


def _without_frames(log: str) -> str:
    return "\n".join([line for line in log.splitlines() if not line.startswith("\tat ")][-40:])


class Bench(Filling):
    """Runs the rows."""

    def run(self) -> None:
        """Run all rows; Spark uses one broker, the retry service another."""
        peer = ottla(self.directory / "broker")
        try:
            self._fill(peer)
            for run in range(self.options.runs):
                self.begin_run(run)
                for kind in (OWN, CONNECTOR):
                    self._start(kind, peer, run)
                if self.wants("transaction"):
                    self.add("transaction", "ottla", task_transaction_ms(f"{HOST}:{peer.port}", self._times()))
        finally:
            peer.stop()
        if self.wants("retry-late", "retry-memory"):
            self._retry()

    def _times(self) -> int:
        return max(20, int(TRANSACTIONS * self.scale))

    def _fill(self, peer: Peer) -> None:
        for topic in (SOURCE, TICKS, "written"):
            make_topic(peer.port, topic, 2)
        values = pa.array([b"%020d" % at + b"v" * 80 for at in range(int(RECORDS * self.scale))], pa.binary())
        with Producer({"bootstrap.servers": f"{HOST}:{peer.port}", "batch.size": 100_000}) as producer:
            producer.send_table(SOURCE, pa.table({"value": values}))
            producer.flush()

    def _start(self, kind: str, peer: Peer, run: int) -> None:
        """One start of Spark: every job three times."""
        name = "ottla" if kind == OWN else CONNECTOR
        words = [kind, f"{HOST}:{peer.port}", SOURCE]
        jars = packages.connector_jars() if kind == CONNECTOR else []
        with closing(Spark("spark_work.py", words, self.directory / f"{kind}{run}", jars)) as spark:
            for job, given in (("read", ()), ("copy", ("written",))):
                if self.wants(f"{job}-cpu", f"{job}-time"):
                    third = [spark.ask(job, *given) for _ in range(3)][-1]
                    self.add(f"{job}-cpu", name, third["cpu_s"])
                    self.add(f"{job}-time", name, third["seconds"])
            if kind == OWN and self.wants("whole-cpu"):
                self._copy_by_scopes(spark, run)
            if self.wants("latency-p50", "latency-p99", *LATENCIES):
                self._latency(spark, peer, name, f"ticked-{kind}-{run}")
            # The connector's query runs a second time, because Java runs old code faster: both are as old then.
            if self.wants(*(f"{key}-driver" for key in LATENCIES)):
                self._latency(spark, peer, name, f"ticked-{kind}-{run}-again", again=True)

    def _copy_by_scopes(self, spark: Spark, run: int) -> None:
        # In turn, and in the other order at each second start: Java compiles and optimizes during more than three jobs,
        # so that a job costs 0.3 s less when three others have run before it.
        order = list(SCOPES.items())[:: -1 if run % 2 else 1]
        for job in range(3):
            for scope, counted in order:
                found = spark.ask("copy", "written", scope)
                if job == 2:
                    self.add("whole-cpu", counted, found["cpu_s"])

    def _latency(self, spark: Spark, peer: Peer, name: str, target: str, *, again: bool = False) -> None:
        """Latency and CPU of micro-batches. again: in Ottla's format the driver reads."""
        make_topic(peer.port, target, 2)
        spark.ask("stream", TICKS, target, *(["1000"] if again and name == "ottla" else []))
        marks = list[dict[str, float]]()
        seconds = max(5.0, LATENCY_S * self.scale)
        took = latencies_ms(f"{HOST}:{peer.port}", target, seconds, lambda: marks.append(spark.ask("mark")))
        began, ended = marks[0], spark.ask("mark")
        spark.ask("idle")
        cpu_s = (ended["cpu_s"] - began["cpu_s"]) / max(1, ended["batches"] - began["batches"])
        p50, p99 = (took[int(part * len(took))] for part in (0.5, 0.99))
        for key, figure in zip(LATENCIES, (p50, p99, cpu_s), strict=True):
            self.add(f"{key}-driver" if again else key, name, figure)
        if name == "ottla" and not again:
            self.add("latency-p50", name, p50)
            self.add("latency-p99", name, p99)

    def _retry(self) -> None:
        found: dict[str, Any] = retry.measure(
            int(WAITING * self.scale), 2_000, 20 * self.scale, None, self.directory / "retry"
        )
        self.add("retry-late", "ottla", found["late_ms"]["0.99"])
        self.add("retry-memory", "ottla", found["service_peak_mib"])


def task_transaction_ms(bootstrap: str, times: int) -> float:
    """The median times of the steps of a task, over several batches."""
    options = sink_options({"kafka.bootstrap.servers": bootstrap, "topic": "written"})
    links = ConnectionCache(options.client)
    rows = pa.record_batch([pa.array([b"r%d" % at for at in range(100)], pa.binary())], names=["value"])
    query = str(uuid.uuid4())
    took = []
    try:
        make_markers(links)
        for batch in range(times):
            began = time.perf_counter()
            attempt = TransactionalWrite(links, options, TaskBatch("bench-", query, "sink", batch, 0))
            prepared = write_task_batch(attempt, [rows], lambda: None, begin_without_rows=False)
            assert prepared is not None
            assert not isinstance(prepared, Marker)
            attempt.commit_prepared(prepared)
            took.append((time.perf_counter() - began) * 1000)
            time.sleep(0.02)  # like between batches: the markers are written meanwhile
    finally:
        links.close_connections()
    return statistics.median(took)


def latencies_ms(bootstrap: str, target: str, seconds: float, on_warm: Callable[[], object]) -> list[float]:
    """Latencies from a producer of the source to a read_committed reader of `target`, sorted.

    on_warm: called when the latencies begin to count.
    """
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka import Producer as Writer

    settings = {"bootstrap.servers": bootstrap, "group.id": "latency", "isolation.level": "read_committed"}
    reader = Consumer({**settings, "auto.offset.reset": "earliest", "fetch.wait.max.ms": 20})
    reader.assign([TopicPartition(target, number, 0) for number in range(2)])
    over = threading.Event()

    def write_ticks() -> None:
        writer = Writer({"bootstrap.servers": bootstrap, "linger.ms": 0})
        due = time.perf_counter()
        while not over.is_set():
            writer.produce(TICKS, b"%020d" % time.time_ns())
            writer.poll(0)
            due += 1 / PER_SECOND
            time.sleep(max(0.0, due - time.perf_counter()))
        writer.flush(10)

    ticking = threading.Thread(target=write_ticks)
    ticking.start()
    _read_latencies(reader, WARM_S)  # the first batches are slow for every peer
    on_warm()
    reader.consume(1000, 0.02)  # records that waited meanwhile
    took = _read_latencies(reader, seconds)
    over.set()
    ticking.join()
    reader.close()
    return sorted(took)


def _read_latencies(reader: Any, seconds: float) -> list[float]:
    """Latencies of the records that come within a time, from the times in their values."""
    took, until = list[float](), time.monotonic() + seconds
    while time.monotonic() < until:
        for message in reader.consume(1000, 0.02):
            now = time.time_ns()
            if message.error() is None:
                took.append((now - int(message.value())) / 1e6)
    return took


PROGRAM = Program("spark", __doc__, 5, "each Spark")


def main(arguments: list[str]) -> int:
    """Run the bench."""
    head = HEAD.format(connector=packages.CONNECTOR)
    return run_program(PROGRAM, lambda *given: Bench(table(), *given), head, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
