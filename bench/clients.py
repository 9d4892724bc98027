#!/usr/bin/env python3
"""Compare Ottla's Python clients with kafka-python, aiokafka and confluent-kafka, on Ottla and on Apache Kafka.

    bench/clients.py [--runs N] [--only KEY,KEY… [--keep]] [--quick] [--no-kafka] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.client_work import PER_SECOND, Measured
from bench.filling import Filling, judge
from bench.peers import HOST, Kafka, Peer, ottla
from bench.report import keep, number, write
from bench.rows import Row
from bench.work import make_topic

HEAD = f"""# Results: the Python clients

Written by `make bench` (`bench/clients.py`); do not edit. Records of 100 B without keys in 4 partitions; every client
in a process of its own, whose CPU is counted with all its threads; medians of {{runs}} interleaved runs, all clients on
the same broker. Producers: acks all, idempotent where the client can be, linger 5 ms. Latency: from `send` to the
answer, acks all, linger 0, {PER_SECOND} records a second, the main thread idle in between. A limit is a multiple of the
peer's figure in the same run, or absolute without a ×.

Machine: {{machine}}. Load average during the runs: {{load}}. Measured {{when}}.
Command: `{{command}}`

| what | broker | unit | Ottla's client | the other | × | limit | verdict |
|---|---|---|---|---|---|---|---|
"""
RECORDS = 1_000_000
LATENCY_S = 15
PARTITIONS = 4
BROKERS = {"ottla": "Ottla", "kafka": "Apache Kafka"}
KAFKA_PYTHON, AIOKAFKA, CONFLUENT = "kafka-python", "aiokafka", "confluent-kafka"

# key: (what, limit, peer, task of Ottla's client, task of the peer)
RATIOS = {
    "send": ("send()", 1 / 3, KAFKA_PYTHON, "ottla_send", "kafka_python_send"),
    "send-aio": ("send()", 1, AIOKAFKA, "ottla_send", "aiokafka_send"),
    "send-table": ("send_table() beside produce()", 1 / 6, CONFLUENT, "ottla_send_table", "confluent_produce"),
    "poll": ("poll(), plain Python", 1 / 2, KAFKA_PYTHON, "ottla_poll", "kafka_python_poll"),
    "poll-fast": ("poll(), with the extra fast", 1 / 4, KAFKA_PYTHON, "ottla_poll_fast", "kafka_python_poll"),
    "poll-table": ("poll_table() beside consume(10000) and Arrow", 1 / 10, CONFLUENT, "ottla_poll_table",
                   "confluent_consume_table"),
}  # fmt: skip
LATENCIES = {
    "latency": ("p50 of send to answer, threads", 1.5, CONFLUENT, "ottla_latency", "confluent_latency"),
    "latency-aio": ("p50 of send to answer, asyncio", 1.5, CONFLUENT, "ottla_aio_latency", "confluent_latency"),
}
# Growth of the process: the configured memory, and as much again for records that are being built.
GROWTH = {
    "memory-send": ("memory that 1 M send() add (buffer.memory is 32 MiB)", 64, "ottla_send"),
    "memory-poll": ("memory that 1 M records through poll() add (fetch.max.bytes is 50 MiB)", 100, "ottla_poll"),
}


def table() -> dict[str, Row]:
    """All rows, in the order of the report; the key of one with Kafka ends in @kafka."""
    rows = []
    for broker, name in BROKERS.items():
        at = "" if broker == "ottla" else f"@{broker}"
        for key, (what, limit, peer, _, _) in RATIOS.items():
            rows.append(Row(f"{key}{at}", f"{what}, {peer} | {name}", "µs of CPU", limit, peer))
            rows.append(Row(f"{key}-rate{at}", f"{what}, {peer} | {name}", "1/s", None, peer))
        for key, (what, limit, peer, _, _) in LATENCIES.items():
            rows.append(Row(f"{key}{at}", f"{what}, {peer} | {name}", "ms", limit, peer))
        for key, (what, most, _) in GROWTH.items():
            rows.append(Row(f"{key}{at}", f"{what} | {name}", "MiB", most, None))
    return {row.key: row for row in rows}


def line(row: Row) -> str:
    """A row of the report."""
    own, peer = row.figure("ottla"), row.figure(row.against) if row.against else None
    ratio = row.measured if row.against else None
    limit = "–" if row.limit is None else f"≤ {row.limit:.3g}" + (" ×" if row.against else "")
    cells = [row.title, row.unit, number(own), number(peer), number(ratio), limit, f"**{row.verdict}**"]
    return "| " + " | ".join(cells) + " |\n"


class Bench(Filling):
    """Runs the rows."""

    def run(self) -> None:
        """Measure with one broker after the other, so that a broker takes no CPU from clients of the other."""
        for broker in BROKERS:
            at = "" if broker == "ottla" else f"@{broker}"
            wanted = [key for key in self.rows if key.endswith("@kafka") == bool(at) and self.wants(key)]
            if not wanted or (broker == "kafka" and self.options.no_kafka):
                continue
            peer: Peer = ottla(self.directory / broker) if broker == "ottla" else Kafka(self.directory / broker)
            try:
                self._broker(peer, at)
            finally:
                peer.stop()

    def _broker(self, peer: Peer, at: str) -> None:
        bootstrap = f"{HOST}:{peer.port}"
        records = int(RECORDS * self.scale)
        for topic in ("read", "written"):
            make_topic(peer.port, topic, PARTITIONS)
        self._task("ottla_send", bootstrap, "read", records)  # batches of the size that producers make
        for run in range(self.options.runs):
            self.begin_run(run, peer.name)
            found = {task: self._task(task, bootstrap, topic, count) for task, topic, count in self._due(at, records)}
            self._fill(found, at)

    def _due(self, at: str, records: int) -> Iterator[tuple[str, str, int]]:
        """(task, topic, records), each task once: several rows may need it."""
        seen: set[str] = set()
        latencies = int(LATENCY_S * PER_SECOND * self.scale)
        for key, row in {**RATIOS, **LATENCIES}.items():
            if not self.wants(f"{key}{at}", f"{key}-rate{at}", *(f"{name}{at}" for name in _memory_of(row[3]))):
                continue
            for task in row[3:]:
                if task not in seen:
                    seen.add(task)
                    reads = "poll" in task or "consume" in task
                    yield task, "read" if reads else "written", latencies if key in LATENCIES else records

    def _task(self, task: str, bootstrap: str, topic: str, records: int) -> Measured:
        self.say(f"  {task} …")
        program = Path(__file__).with_name("client_work.py")
        words = [sys.executable, str(program), task, bootstrap, topic, str(records)]
        done = subprocess.run(words, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{task} failed:\n{done.stderr}")
        found: Measured = json.loads(done.stdout)
        return found

    def _fill(self, found: dict[str, Measured], at: str) -> None:
        for key, (_, _, peer, own, other) in RATIOS.items():
            if own in found:
                for name, task in (("ottla", own), (peer, other)):
                    self.add(f"{key}{at}", name, found[task]["cpu_us"])
                    self.add(f"{key}-rate{at}", name, found[task]["rate"])
        for key, (_, _, peer, own, other) in LATENCIES.items():
            if own in found:
                self.add(f"{key}{at}", "ottla", found[own]["p50_ms"])
                self.add(f"{key}{at}", peer, found[other]["p50_ms"])
        for key, (_, _, task) in GROWTH.items():
            if task in found:
                self.add(f"{key}{at}", "ottla", found[task]["grown_mib"])


def _memory_of(task: str) -> list[str]:
    return [key for key, row in GROWTH.items() if row[2] == task]


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="interleaved runs (default 3)")
    parser.add_argument("--only", default="", help="keys of rows, separated by commas")
    parser.add_argument(
        "--keep", action="store_true", help="rows that are not in --only stay as they were measured last"
    )
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka as the second broker")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where CLIENTS.md goes")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        bench = Bench(table(), options, Path(name))
        bench.run()
    command = ("bench/clients.py " + " ".join(arguments)).rstrip()
    notes = keep(bench.rows, bench.only, options.out, "clients") if options.keep else []
    write(
        bench.rows, bench.loads, options.runs, command, options.out, name="clients", head=HEAD, notes=notes, line=line
    )
    return judge(bench.rows, bench.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
