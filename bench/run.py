#!/usr/bin/env python3
"""Compare Ottla with Apache Kafka and the C floor in one run, with a verdict per row.

    bench/run.py [--runs N] [--only KEY,KEY…] [--quick] [--peer NAME='COMMAND with {port} and {dir}'] [--out DIR]

Exit code 1 when a row is over its limit. `--quick` is a short run for development; its verdicts are not kept.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testbench.apache_kafka.packages import BenchError

from bench import work
from bench.filling import judge
from bench.memory import touch_memory
from bench.peers import Floor, Kafka, Observed, Peer, SendFloor, kfake, native, other, ottla, rss_mib
from bench.report import write
from bench.rows import BESIDE_KFAKE, Row, table

MB = 1_000_000
WRITING = ("frame-16k", "frame-1m", "produce-16k", "produce-1m")
KIB64 = 64 * 1024
MIB = 1024 * 1024
SIZES = {"full": 1.0, "quick": 0.15}


class Bench:
    """All peers, up together, and the runs over them."""

    def __init__(self, options: argparse.Namespace, directory: Path) -> None:
        self.rows = table()
        self.scale = SIZES["quick" if options.quick else "full"]
        self.only = set(options.only.split(",")) if options.only else set(self.rows)
        self.directory = directory
        self.loads: list[float] = []
        self.load_program = native("load", directory)
        self.brokers: list[Peer] = [ottla(directory / "ottla")]
        if not options.no_kafka:
            self.brokers.append(Kafka(directory / "kafka"))
        for each in options.peer:
            name, _, command = each.partition("=")
            self.brokers.append(other(name, command, directory / name))
        self.kfake = self._start_kfake()
        self.observed = Observed(directory / "observed")
        self.floor = Floor(directory, reply_bytes=60)
        self.send_floors = {size: SendFloor(directory, size) for size in (KIB64, MIB)}

    def _start_kfake(self) -> Peer | None:
        """The second peer. Without a suitable Go its rows are left out."""
        keys = {key for key, *_ in BESIDE_KFAKE}
        if not keys & self.only:
            return None
        try:
            return kfake(self.directory / "kfake")
        except BenchError as error:
            self.say(f"the rows beside kfake are left out: {error}")
            self.only -= keys
            return None

    def wants(self, *keys: str) -> bool:
        """Whether one of these rows is selected."""
        return any(key in self.only for key in keys)

    def row(self, key: str) -> Row:
        """A row by its key."""
        return self.rows[key]

    def say(self, text: str) -> None:
        """Progress, on stderr."""
        print(text, file=sys.stderr, flush=True)

    def prepare(self) -> None:
        """Measure idle figures; then create topics and warm up: a cold Kafka takes two to three times the CPU."""
        for peer in self.brokers:
            if self.wants("rss-idle", "cpu-idle"):
                for _ in range(5):
                    seen = work.idle(peer, 4 * self.scale + 1)
                    self.row("rss-idle").add(peer.name, seen["rss_mib"])
                    self.row("cpu-idle").add(peer.name, seen["cpu_percent"])
            for topic in (work.TOPIC, "read-1k", "read-100"):
                work.make_topic(peer.port, topic)
            work.make_topic(peer.port, "read-16k", 1)
        for peer in self.brokers:
            self.say(f"warming {peer.name}")
            work.client_produce(peer, "read-1k", 1024, MB, int(400 * MB * self.scale), "1")
            work.client_produce(peer, "read-100", 100, MB, int(100 * MB * self.scale), "1")
            work.client_produce(peer, "read-16k", 1024, 16384, 100 * MB, "1")
            if self.wants("produce-1-acks1", "produce-1-acksall"):
                self._frames(peer, 1, 1, 100, 50, 1, int(60_000 * self.scale))

    def _frames(
        self, peer: Peer, acks: int, records: int, size: int, connections: int, depth: int, count: int
    ) -> float:
        """Broker CPU seconds for `count` Produce frames."""
        frame = self.directory / f"frame-{acks}-{records}-{size}"
        if not frame.exists():
            frame.write_bytes(work.produce_frame(work.TOPIC, acks, records, size))
        return work.load(self.load_program, peer, frame, connections, depth, count)["broker_cpu"]

    def round(self) -> None:
        """One run of every row over every peer."""
        self.loads.append(os.getloadavg()[0])
        floor = self.floor
        steps: list[tuple[str, Callable[[Peer], float], Floor | None]] = [
            ("produce-1-acks1", lambda peer: self._requests(peer, 1), floor),
            ("produce-1-acksall", lambda peer: self._requests(peer, -1), None),
            ("frame-16k", lambda peer: self._bytes(peer, 16, 1024, 5, 4, 300), floor),
            ("frame-1m", lambda peer: self._bytes(peer, 1000, 1024, 2, 2, 500), floor),
            ("produce-16k", lambda peer: self._client(peer, 16384), None),
            ("produce-1m", lambda peer: self._client(peer, MB), None),
            ("fetch-64k", lambda peer: self._fetch(peer, KIB64, 10, 1, 500), self.send_floors[KIB64]),
            ("fetch-1m", lambda peer: self._fetch(peer, MIB, 2, 2, 1500), self.send_floors[MIB]),
            ("fetch-1k", lambda peer: self._consume(peer, 1024, 350), None),
            ("fetch-100", lambda peer: self._consume(peer, 100, 80), None),
            ("fetch-1k-eager", lambda peer: self._consume(peer, 1024, 350, work.EAGER), None),
            ("fetch-100-eager", lambda peer: self._consume(peer, 100, 80, work.EAGER), None),
            ("e2e-acks1", lambda peer: self._latency(peer, "1"), None),
            ("e2e-acksall", lambda peer: self._latency(peer, "all"), None),
        ]
        for key, step, below in steps:
            if not self.wants(key):
                continue
            peers: list[Peer] = [*self.brokers, below] if below is not None else list(self.brokers)
            for peer in peers:
                if key in WRITING:
                    touch_memory()
                value = step(peer)
                self.row(key).add(peer.name, value)
                self.say(f"  {key:18} {peer.name:8} {value:8.3f} {self.row(key).unit}")
            self.floor.truncate()
        self._beside_kfake()
        if self.wants("e2e-outside"):
            value = work.outside(self.observed, "1", 200, max(100, int(1000 * self.scale)))
            self.row("e2e-outside").add("ottla", value)
            self.say(f"  {'e2e-outside':18} {'ottla':8} {value:8.3f} ms")

    def _beside_kfake(self) -> None:
        """Run rows on kfake, which keeps all records in memory: delete its topic after each row."""
        steps: dict[str, Callable[[Peer], float]] = {
            "kfake-produce-1": lambda peer: self._requests(peer, 1),
            "kfake-frame-16k": lambda peer: self._bytes(peer, 16, 1024, 5, 4, 300),
            "kfake-frame-1m": lambda peer: self._bytes(peer, 1000, 1024, 2, 2, 500),
        }
        for key, step in steps.items():
            if self.kfake is None or not self.wants(key):
                continue
            work.make_topic(self.kfake.port, work.TOPIC)
            for peer in (self.brokers[0], self.kfake):
                touch_memory()
                value = step(peer)
                self.row(key).add(peer.name, value)
                self.say(f"  {key:18} {peer.name:8} {value:8.3f} {self.row(key).unit}")
            work.delete_topic(self.kfake.port, work.TOPIC)

    def _requests(self, peer: Peer, acks: int) -> float:
        count = int(100_000 * self.scale)
        return self._frames(peer, acks, 1, 100, 50, 1, count) / count * 1e6

    def _bytes(self, peer: Peer, records: int, size: int, connections: int, depth: int, megabytes: int) -> float:
        count = max(20, int(megabytes * MB * self.scale / (records * size)))
        return self._frames(peer, 1, records, size, connections, depth, count) / (count * records * size) * 1e9

    def _fetch(self, peer: Peer, size: int, connections: int, depth: int, megabytes: int) -> float:
        frame = self.directory / f"fetch-{size}"
        if not frame.exists():
            frame.write_bytes(work.fetch_frame("read-16k", 10_000, size))
        count = max(20, int(megabytes * MB * self.scale / size))
        seen = work.load(self.load_program, peer, frame, connections, depth, count)
        return seen["broker_cpu"] / seen["in"] * 1e9

    def _client(self, peer: Peer, batch: int) -> float:
        return work.client_produce(peer, work.TOPIC, 1024, batch, int(200 * MB * self.scale), "1")

    def _consume(self, peer: Peer, size: int, megabytes: int, settings: Mapping[str, object] = work.DEFAULTS) -> float:
        topic = "read-1k" if size == 1024 else "read-100"
        return work.client_fetch(peer, topic, size, int(megabytes * MB * self.scale), settings)

    def _latency(self, peer: Peer, acks: str) -> float:
        return work.end_to_end(peer, acks, 200, max(100, int(1000 * self.scale)))

    def finish(self) -> None:
        """Memory after the load, and start-up times."""
        if self.wants("rss-load"):
            for peer in self.brokers:
                self.row("rss-load").add(peer.name, rss_mib(peer.pid))
        if self.wants("start"):
            for at in range(5):
                extra = ottla(self.directory / f"start-{at}")
                self.row("start").add("ottla", extra.start_seconds)
                extra.stop()
            for peer in self.brokers:
                if isinstance(peer, Kafka):
                    self.row("start").add("kafka", peer.start_seconds)

    def stop(self) -> None:
        """End every peer."""
        more = [] if self.kfake is None else [self.kfake]
        for peer in [*self.brokers, *more, self.observed, self.floor, *self.send_floors.values()]:
            peer.stop()


def parse(arguments: list[str]) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="interleaved runs (default 5)")
    parser.add_argument("--only", default="", help="keys of rows, separated by commas")
    parser.add_argument("--quick", action="store_true", help="a short dose")
    parser.add_argument("--no-kafka", action="store_true", help="without Apache Kafka: no verdicts against it")
    parser.add_argument("--peer", action="append", default=[], help="NAME=COMMAND of one more broker")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="where RESULTS.md goes")
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the bench."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as name:
        bench = Bench(options, Path(name))
        try:
            bench.prepare()
            for at in range(options.runs):
                bench.say(f"run {at + 1} of {options.runs}")
                bench.round()
            bench.finish()
        finally:
            bench.stop()
    write(bench.rows, bench.loads, options.runs, "bench/run.py " + " ".join(arguments), options.out)
    return judge(bench.rows, bench.only)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
