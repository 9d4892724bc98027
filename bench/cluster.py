#!/usr/bin/env python3
"""Compare three Ottla brokers with three of Apache Kafka in one run, also after the death of a broker.

    bench/cluster.py [--runs N] [--kills N] [--only KEY,KEY… [--keep]] [--quick] [--no-kafka] [--out DIR]

Replication factor 3, min.insync.replicas 2, acks all. Exit code 1 when a row is over its limit. `--quick` is a short
run for development; its verdicts are not kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import clusters, failover
from bench.cluster_work import idle, one_record_requests
from bench.clusters import Cluster
from bench.filling import Filling, judge
from bench.memory import touch_memory
from bench.peers import rss_mib
from bench.report import keep, write
from bench.rows import Row
from bench.work import cpu_of_produce

MB = 1_000_000
TOPIC = "bench"
PARTITIONS = 6
MANY = 1_700
HEAD = """# Results: three brokers

Written by `make bench` (`bench/cluster.py`); do not edit. Replication factor 3, min.insync.replicas 2, acks all. CPU is
that of the three brokers together, from the scheduler's accounting in ns; medians of {runs} interleaved runs, both
clusters alive together, Apache Kafka 4.4.0 (KRaft, three nodes) warmed up first, memory touched before each row
that writes (bench/memory.py). A limit is a multiple of the peer's figure in the same run, or absolute where no peer is
named. Rows of deaths: each sample is one death.

Machine: {machine}. Load average during the runs: {load}. Measured {when}.
Command: `{command}`

| what | unit | Ottla | Apache Kafka | ratio | limit | C floor | × floor | verdict |
|---|---|---|---|---|---|---|---|---|
"""
STEADY = ("rss-idle", "cpu-idle", "produce-16k", "produce-1m", "rate-2000", "rate-2000-late", "ack-200", "rss-load")


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    rows = [
        Row("produce-16k", "produce 1 KiB records, 16 KiB batches (librdkafka)", "CPU s/GB", 0.4),
        Row("produce-1m", "produce 1 KiB records, 1 MB batches (librdkafka)", "CPU s/GB", 0.75),
        Row("rate-2000", "acknowledgement p50 at 2,000 one-record requests/s", "ms", 5, None),
        Row("rate-2000-late", "2,000 one-record requests/s: behind the schedule", "%", 2, None),
        Row("ack-200", "acknowledgement p50 at 200 one-record requests/s", "ms", 1.3),
        Row("rss-idle", "resident memory of the three, idle", "MiB", 220, None),
        Row("rss-load", "resident memory of the three, after the load of this table", "MiB", 400, None),
        Row("rss-supervisor", "resident memory of the supervisor, after the load", "MiB", None, None),
        Row("cpu-idle", "CPU of the three, idle", "% of a core", 1.5, None),
        Row("kill-embedded", "kill -9 of the leader → acknowledged again, `ottla up`, p99", "s", 1.5, None, 0.99),
        Row("kill-zookeeper", "kill -9 of the leader → acknowledged again, ZooKeeper, p99", "s", 3, None, 0.99),
        Row("pause-embedded", "SIGSTOP of the leader → acknowledged again, 2 s session, `ottla up`", "s", 3, None, 1),
        Row("pause-zookeeper", "SIGSTOP of the leader → acknowledged again, 2 s session, ZooKeeper", "s", 3, None, 1),
        Row("stop-embedded", "SIGTERM of the leader, longest gap, `ottla up`", "s", 0.25, None, 1),
        Row("stop-zookeeper", "SIGTERM of the leader, longest gap, ZooKeeper", "s", 0.25, None, 1),
        Row("stop-errors", "SIGTERM of the leader, errors that a producer saw", "records", 0, None, 1),
        Row("controller-embedded", f"controller lost, {MANY} partitions, `ottla up`", "s", 5, None),
        Row("controller-zookeeper", f"controller lost, {MANY} partitions, ZooKeeper", "s", 5, None),
    ]
    return {row.key: row for row in rows}


class Bench(Filling):
    """Runs the rows."""

    def steady(self) -> None:
        """Rows of clusters without faults; both clusters are up together, and their runs alternate."""
        if not self.wants(*STEADY, "rss-supervisor"):
            return
        peers: list[Cluster] = []
        try:
            peers.append(clusters.ottla_embedded(self.directory / "ottla"))
            if not self.options.no_kafka:
                peers.append(clusters.kafka(self.directory / "kafka"))
            self._idle(peers)
            for peer in peers:
                peer.make_topic(TOPIC, PARTITIONS)
            self._warm(peers)
            for at in range(self.options.runs):
                self.begin_run(at)
                self._round(peers)
            for peer in peers:
                self.add("rss-load", peer.name, peer.rss())
                for process in peer.beside:
                    self.add("rss-supervisor", peer.name, rss_mib(process.pid))
        finally:
            for peer in peers:
                peer.stop()

    def _idle(self, peers: list[Cluster]) -> None:
        if not self.wants("rss-idle", "cpu-idle"):
            return
        for _ in range(5):
            for peer in peers:
                seen = idle(peer, 6 * self.scale + 1)
                self.add("rss-idle", peer.name, seen["rss"])
                self.add("cpu-idle", peer.name, seen["cpu"])

    def _warm(self, peers: list[Cluster]) -> None:
        """Warm up: a cold Kafka takes two to three times the CPU."""
        for peer in peers:
            if self.wants("produce-16k", "produce-1m"):
                for _ in range(2 if peer.name == "kafka" else 1):
                    self._produce(peer, MB, 400)
                    self._produce(peer, 16_384, 100)
            one_record_requests(peer, TOPIC, 500, 10 * self.scale)

    def _produce(self, peer: Cluster, batch: int, megabytes: int) -> float:
        touch_memory()
        total = int(megabytes * MB * self.scale)
        return cpu_of_produce(peer.bootstrap, peer.pids, TOPIC, size=1024, batch=batch, total_bytes=total, acks="all")

    def _round(self, peers: list[Cluster]) -> None:
        for peer in peers:
            if self.wants("produce-16k"):
                self.add("produce-16k", peer.name, self._produce(peer, 16_384, 100))
        for peer in peers:
            if self.wants("produce-1m"):
                self.add("produce-1m", peer.name, self._produce(peer, MB, 300))
        for peer in peers:
            if self.wants("rate-2000", "rate-2000-late"):
                seen = one_record_requests(peer, TOPIC, 2_000, 10 * self.scale)
                self.add("rate-2000", peer.name, seen["p50"])
                self.add("rate-2000-late", peer.name, seen["late"])
        for peer in peers:
            if self.wants("ack-200"):
                self.add("ack-200", peer.name, one_record_requests(peer, TOPIC, 200, 10 * self.scale)["p50"])

    def deaths(self) -> None:
        """Rows of brokers that die or leave, engine after engine; Kafka's figures are in the rows of `ottla up`."""
        for engine, make in (("embedded", clusters.ottla_embedded), ("zookeeper", clusters.ottla_zookeeper)):
            rows = ("kill", "pause", "stop", "controller")
            keys = ("stop-errors", *(f"{row}-{engine}" for row in rows))
            if self.wants(*keys):
                cluster = make(self.directory / f"deaths-{engine}")
                self._deaths(cluster, engine, self.options.kills)
        if not self.options.no_kafka and self.wants("kill-embedded", "stop-embedded"):
            cluster = clusters.kafka(self.directory / "deaths-kafka", clusters.KAFKA_FAILOVER)
            self._deaths(cluster, "embedded", min(5, self.options.kills))

    def _deaths(self, cluster: Cluster, engine: str, count: int) -> None:
        try:
            if self.wants(f"kill-{engine}"):
                for gap in failover.kills(cluster, count):
                    self.add(f"kill-{engine}", cluster.name, gap.recovered_s)
            if self.wants(f"pause-{engine}"):
                for gap in failover.pauses(cluster, max(3, count // 10)):
                    self.add(f"pause-{engine}", cluster.name, gap.recovered_s)
            if self.wants(f"stop-{engine}", "stop-errors"):
                for gap in failover.stops(cluster, max(3, count // 5)):
                    self.add(f"stop-{engine}", cluster.name, gap.longest_s)
                    self.add("stop-errors", cluster.name, len(gap.errors))
            if self.wants(f"controller-{engine}") and cluster.name == "ottla":
                cluster.make_topic("many", MANY)
                for _ in range(5):
                    self.add(f"controller-{engine}", cluster.name, failover.controller_lost(cluster, "many"))
        finally:
            cluster.stop()


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs (default 5)")
    parser.add_argument("--kills", type=int, default=100, help="deaths of a leader per engine (default 100)")
    parser.add_argument("--only", default="", help="keys of rows, separated by commas")
    parser.add_argument(
        "--keep", action="store_true", help="rows that are not in --only stay as they were measured last"
    )
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka: no verdicts against it")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where CLUSTER.md goes")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        bench = Bench(table(), options, Path(name))
        bench.steady()
        bench.deaths()
    notes = keep(bench.rows, bench.only, options.out, "cluster") if options.keep else []
    command = " ".join(["bench/cluster.py", *arguments])
    write(bench.rows, bench.loads, options.runs, command, options.out, name="cluster", head=HEAD, notes=notes)
    return judge(bench.rows, bench.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
