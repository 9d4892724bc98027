#!/usr/bin/env python3
"""Measure groups and transactions on one broker: rebalances and heartbeats with 10,000 members, transactions compared
with Apache Kafka's in one run, and the loading of a million committed offsets.

    bench/coordinators.py [--runs N] [--only KEY,KEY…] [--quick] [--no-kafka] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.filling import Filling, judge
from bench.group_work import Groups
from bench.loading_work import Store
from bench.peers import Kafka, Peer, ottla, rss_mib
from bench.report import write
from bench.rows import Row
from bench.transaction_work import PARTITIONS, TOPIC, Producers
from bench.work import make_topic

HEAD = """# Results: groups and transactions

Written by `make bench` (`bench/coordinators.py`); do not edit. One broker. CPU is that of the broker's process, from
the scheduler's accounting in ns; medians of {runs} interleaved runs unless the row says otherwise. Transactions: both
brokers alive together, the same wire-level client for both, Apache Kafka 4.4.0 warmed up first by some ten thousand of
them; each has 1 partition, 1 record of 100 B and 1 committed offset, replication factor 1, from its first request to
the answer that it is committed. A limit is a multiple of the peer's figure in the same run, or absolute without a ×.

Machine: {machine}. Load average during the runs: {load}. Measured {when}.
Command: `{command}`

| what | unit | Ottla | Apache Kafka | ratio | limit | C floor | × floor | verdict |
|---|---|---|---|---|---|---|---|---|
"""
GROUPS, SIZE = 1_000, 10
INITIAL_DELAY = {"group.initial.rebalance.delay.ms": "3000"}
"""Kafka's default. Without it, a late member starts a second rebalance, and members that have joined get no notice."""
PRODUCERS = 100
OFFSETS = 1_000_000
PAUSE_S = 0.01
"""Pause between two transactions of one producer, so that the work of the first one is finished."""
WARM = {"ottla": 3_000, "kafka": 30_000}
"""Transactions before the first run: a cold Kafka takes several times the CPU."""
WARM_S = 60
"""Maximum time of these transactions."""
GROUP_ROWS = ("rebalance", "heartbeat", "rss-groups")
OFTEN = 10
OFTEN_OFFSETS = 100_000
COMPACTED_ROWS = ("load-often", "load-compacted")
LOAD_ROWS = ("load", "load-stall", "rss-offsets")
WAYS = {"txn": True, "old": False}


def table() -> dict[str, Row]:
    """All rows, in the order of the report."""
    people = f"{GROUPS:,} groups × {SIZE} members"
    rows = [
        Row("rebalance", f"{people}: rebalance of one group beyond the configured delays, p99", "ms", 50, None, 0.99),
        Row("heartbeat", f"{people}: heartbeat", "µs", 30, None),
        Row("rss-groups", f"{people}: resident memory, 10,000 connections included", "MiB", None, None),
        Row("txn-time", "transaction of one producer", "ms", 3, None),
        Row("txn-ratio", "transaction of one producer, beside Kafka's", "ms", 1),
        Row("txn-cpu", f"transaction, {PRODUCERS} producers at once", "µs of CPU", 0.6),
        Row("txn-rate", f"transactions, {PRODUCERS} producers at once", "1/s", None),
        Row("old-time", "transaction of one producer, before version 2 (five requests)", "ms", None),
        Row("old-cpu", f"transaction before version 2, {PRODUCERS} producers at once", "µs of CPU", None),
        Row("old-rate", f"transactions before version 2, {PRODUCERS} producers at once", "1/s", None),
        Row("load", f"{OFFSETS:,} committed offsets: kill -9, start → all served", "s", 10, None, 1),
        Row("load-stall", "longest heartbeat of another shard meanwhile", "ms", 50, None, 1),
        Row("load-often", f"{OFTEN_OFFSETS:,} offsets committed {OFTEN} times: kill -9 → served", "s", None, None),
        Row("load-compacted", "the same when their topic is compacted", "s", None, None),
        Row("rss-offsets", f"{OFFSETS:,} committed offsets: resident memory", "MiB", None, None),
    ]
    return {row.key: row for row in rows}


class Bench(Filling):
    """Runs the rows."""

    # -- groups ----------------------------------------------------------------------------------------------------

    def groups(self) -> None:
        """Rows with ten thousand members."""
        if not self.wants(*GROUP_ROWS):
            return
        broker = ottla(self.directory / "groups", INITIAL_DELAY)
        try:
            self.say(f"{GROUPS * SIZE} members join")
            groups = Groups(broker, GROUPS, SIZE)
            groups.heartbeats(3 * self.scale)
            list(groups.rebalances(20))
            for at in range(self.options.runs):
                self.begin_run(at, "groups")
                self.add("heartbeat", "ottla", groups.heartbeats(6 * self.scale))
                for took_ms in groups.rebalances(max(10, int(100 * self.scale))):
                    self.rows["rebalance"].add("ottla", took_ms)
                self.say(f"  rebalance    ottla    {self.rows['rebalance'].measured:9.3f} ms (p99 so far)")
            self.add("rss-groups", "ottla", rss_mib(broker.pid))
            groups.close()
        finally:
            broker.stop()

    # -- transactions ----------------------------------------------------------------------------------------------

    def transactions(self) -> None:
        """Rows of transactions: both brokers are up together; each run has both ways, one producer and many."""
        ways = {way: new for way, new in WAYS.items() if self.wants(*(key for key in self.rows if key[:3] == way))}
        if not ways:
            return
        peers: list[Peer] = []
        try:
            peers.append(ottla(self.directory / "ottla"))
            if not self.options.no_kafka:
                peers.append(Kafka(self.directory / "kafka"))
            for peer in peers:
                make_topic(peer.port, TOPIC, PARTITIONS)
            ready = [(peer, way, Producers(peer, 1, new), Producers(peer, PRODUCERS, new)) for peer in peers
                     for way, new in ways.items()]  # fmt: skip
            for peer, way, one, many in ready:
                self.say(f"warming {peer.name}, {way}")
                some = int(WARM[peer.name] * self.scale)
                many.run(WARM_S, most=some)
                one.run(WARM_S, PAUSE_S, some // 60)
            for at in range(self.options.runs):
                self.begin_run(at, "transactions")
                for row in ready:
                    self._one_producer(*row[:3])
                for peer, way, _, many in ready:
                    self._many_producers(peer, way, many)
        finally:
            for peer in peers:
                peer.stop()

    def _one_producer(self, peer: Peer, way: str, producers: Producers) -> None:
        seen = producers.run(2.5 * self.scale + 0.5, PAUSE_S)
        self.add(f"{way}-time", peer.name, seen["ms"])
        if way == "txn":
            self.rows["txn-ratio"].add(peer.name, seen["ms"])

    def _many_producers(self, peer: Peer, way: str, producers: Producers) -> None:
        seen = producers.run(4 * self.scale + 0.5)
        self.add(f"{way}-cpu", peer.name, seen["cpu"])
        self.add(f"{way}-rate", peer.name, seen["rate"])
        self.say(f"  {way} {peer.name}: median {seen['ms']:.1f} ms, {seen['again']:.3f} requests again per transaction")

    # -- loading ---------------------------------------------------------------------------------------------------

    def loading(self) -> None:
        """Rows of a broker that is killed, and loads a million offsets when it restarts."""
        if not self.wants(*LOAD_ROWS):
            return
        self.say("committing offsets")
        store = Store(self.directory / "loading", int(OFFSETS * self.scale))
        try:
            for at in range(self.options.runs):
                self.begin_run(at, "loading")
                seen = store.restart()
                self.add("load", "ottla", seen.seconds)
                self.add("load-stall", "ottla", seen.stall_ms)
                self.add("rss-offsets", "ottla", seen.rss_mib)
        finally:
            store.stop()

    def compacted(self) -> None:
        """Rows of loading offsets that were committed repeatedly, with and without compaction."""
        if not self.wants(*COMPACTED_ROWS):
            return
        self.say("committing offsets again and again")
        store = Store(self.directory / "compacted", int(OFTEN_OFFSETS * self.scale), OFTEN)
        try:
            for key in COMPACTED_ROWS:
                if key == COMPACTED_ROWS[1]:
                    store.compact()
                for at in range(self.options.runs):
                    self.begin_run(at, key)
                    self.add(key, "ottla", store.restart().seconds)
        finally:
            store.stop()


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs (default 5)")
    parser.add_argument("--only", default="", help="keys of rows, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka: no verdicts against it")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where COORDINATORS.md goes")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        bench = Bench(table(), options, Path(name))
        bench.groups()
        bench.transactions()
        bench.loading()
        bench.compacted()
    command = "bench/coordinators.py " + " ".join(arguments)
    write(bench.rows, bench.loads, options.runs, command.rstrip(), options.out, name="coordinators", head=HEAD)
    return judge(bench.rows, bench.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
