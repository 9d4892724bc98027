"""`make chaos-spark`: the matrix of faults of the exactly-once sink, on Ottla or Apache Kafka.

Zone: real. Drivers are separate processes; a case may use executors on a standalone cluster. At the end librdkafka
reads the topic with read_committed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import NewTopic
from ottla.client.cluster import Cluster
from ottla.client.errors import values_of
from ottla.client.settings import ClientConfig
from ottla.spark.sink.sink_options import sink_options
from ottla.spark.sink.writing import write_batches
from testbench.apache_kafka.broker import KafkaNode
from testbench.ottla_node import OttlaNode
from testbench.spark_chaos.cases import CASES, CLUSTER, OTHER_SOURCE
from testbench.spark_chaos.committed import apart, await_markers, committed, end_what_is_open
from testbench.spark_chaos.kafka_trio import STATUS, kafka_trio
from testbench.spark_chaos.query import Plan
from testbench.spark_chaos.runs import Case
from testbench.spark_chaos.standalone import Standalone
from testbench.trio import trio

PARTITIONS = 4
RUN_S = 900
BROKERS_S = 120
"""Longest time until all brokers are back before a topic is made."""
MARKERS_S = 60
"""Longest time until a killed broker is back, and its partitions can be read."""
SOURCE = "chaos-source"
SLOW = "Python worker failed to connect back"
"""Spark's error when Python has not started within ten seconds on a busy machine; the limit is fixed."""
STARTS = 10
"""Maximum of starts of one run that Spark ended for that reason; the case must tolerate another restart."""


def main() -> int:
    """Run the cases; 0 when all have the expected outcome."""
    parser = argparse.ArgumentParser(prog="python -m testbench.spark_chaos", description=__doc__)
    parser.add_argument("--broker", choices=["ottla", "kafka"], default="ottla")
    parser.add_argument("--transaction-version", choices=["1", "2"], default="2", help="of Apache Kafka")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--case", default="", help="only cases whose name contains this")
    parser.add_argument("--keep", metavar="DIR", help="a new directory in which the logs of drivers and brokers stay")
    given = parser.parse_args()
    chosen = [case for case in CASES if given.case in case.name]
    begun, bad = time.monotonic(), list[str]()
    with _directory(given.keep) as place:
        for size in sorted({case.brokers for case in chosen}):
            directory = Path(place, f"brokers-{size}")
            directory.mkdir()
            with _brokers(given.broker, given.transaction_version, size, directory) as bootstrap:
                bad += _cases([case for case in chosen if case.brokers == size], bootstrap, directory, given.rows, size)
    good, took = len(chosen) - len(bad), time.monotonic() - begun
    print(f"{good} of {len(chosen)} cases came out as they must ({took / 60:.1f} minutes)", flush=True)
    return 1 if bad or not chosen else 0


@contextlib.contextmanager
def _directory(keep: str | None) -> Iterator[str]:
    if keep is not None:
        Path(keep).mkdir(parents=True)
        yield keep
        return
    with tempfile.TemporaryDirectory(prefix="ottla-chaos-spark-") as place:
        yield place


def _cases(cases: list[Case], bootstrap: str, directory: Path, rows: int, size: int) -> list[str]:
    """Cases with an unexpected outcome."""
    bench = Bench(bootstrap, directory, rows, size)
    try:
        bench.fill()
        return [case.name for number, case in enumerate(cases) if not bench.run(number, case)]
    finally:
        bench.close()


@contextlib.contextmanager
def _brokers(kind: str, version: str, size: int, directory: Path) -> Iterator[str]:
    """Start one broker, or several with a supervisor that restarts them and writes their status for `brokers`."""
    if size > 1 and kind == "kafka":
        (directory / "brokers").write_text(str(directory / STATUS))
        with kafka_trio(directory, version) as bootstrap:
            yield bootstrap
    elif size > 1:
        with trio("embedded", directory) as cluster:
            (status,) = directory.glob("**/status.json")
            (directory / "brokers").write_text(str(status))
            yield cluster.bootstrap
    elif kind == "ottla":
        with OttlaNode(directory / "broker") as node:
            yield node.bootstrap
    else:
        kafka = KafkaNode(directory / "kafka")
        kafka.format_options = ["--feature", f"transaction.version={version}"]
        with kafka:
            yield kafka.bootstrap


class Bench:
    """A broker with a filled source."""

    def __init__(self, bootstrap: str, directory: Path, rows: int, replicas: int) -> None:
        self._bootstrap = bootstrap
        self._replicas = replicas
        self._directory = directory
        self._rows = rows
        self._standalone: Standalone | None = None
        self._drivers: list[subprocess.Popen[bytes]] = []

    def fill(self) -> None:
        """The source: every number once."""
        for topic in (SOURCE, OTHER_SOURCE):
            self._make(topic)
        options = sink_options({"kafka.bootstrap.servers": self._bootstrap, "topic": SOURCE})
        numbers = pa.array([str(number) for number in range(self._rows)])
        places = pa.array([number % PARTITIONS for number in range(self._rows)], pa.int32())
        write_batches(options, [pa.record_batch([numbers, places], names=["value", "partition"])])

    def run(self, number: int, case: Case) -> bool:
        """Run and print a case. True if it has the expected outcome."""
        sink = f"chaos-sink-{number}"
        suffixes = {"", *(run.plan.get("suffix", "") for run in case.runs)}
        for suffix in suffixes:
            self._make(sink + suffix)
        directory = self._directory / f"case-{number}"
        (directory / "strikes").mkdir(parents=True)
        plan = Plan(self._bootstrap, SOURCE, sink, str(directory), self._rows // 4, **case.plan)
        if case.offsets:
            plan = plan._replace(group=f"chaos-group-{number}")
        begun = time.monotonic()
        parted, other = self._runs(plan, case)
        left = sorted(strike.name for strike in plan.strikes.iterdir())
        missing, twice = self._counts([sink + suffix for suffix in sorted(suffixes)])
        good = not left and not other and ((missing, twice, parted) == (0, 0, 0)) is case.exact
        more = [f"did not hit: {left}"] * bool(left) + [f"not refused: {other}"] * bool(other)
        print(
            f"{'ok ' if good else 'BAD'} {case.name}: {missing} missing, {twice} too many"
            f"{f', group and output apart after {parted} runs' if case.offsets else ''}"
            f"{''.join(f', {each}' for each in more)} ({time.monotonic() - begun:.0f} s)",
            flush=True,
        )
        if not good:
            print("     the drivers said:", _said(plan)[-2_000:], flush=True)
        return good

    def close(self) -> None:
        """Stop drivers that are still running, with their JVMs."""
        for driver in self._drivers:
            driver.kill()
        if self._standalone is not None:
            self._standalone.stop()

    def _runs(self, plan: Plan, case: Case) -> tuple[int, list[str]]:
        """The number of runs after which group and output differed, and expected errors that did not occur."""
        beside: list[subprocess.Popen[bytes]] = []
        apart_after, other = 0, []
        for run in case.runs:
            said = _said(plan)
            for strike in run.strikes:
                (plan.strikes / strike).touch()
            if run.beside:
                beside.append(self._start(plan._replace(**run.plan)))
                _until_struck(plan, beside[-1])
            else:
                self._run_to_end(plan._replace(**run.plan))
            time.sleep(run.wait_s)
            other += [run.refused] if run.refused not in _said(plan)[len(said) :] else []
            apart_after += bool(plan.group) and run.look and self._apart(plan, behind=case.behind)
        for driver in beside:
            _end(driver)
        return apart_after, other

    def _run_to_end(self, plan: Plan) -> None:
        for _ in range(STARTS):
            said = len(_said(plan))
            _end(self._start(plan))
            if SLOW not in _said(plan)[said:]:
                break

    def _apart(self, plan: Plan, *, behind: bool) -> bool:
        """Whether group and output differ for good. Tasks of a killed driver may commit during the check."""
        for _ in range(10):
            end_what_is_open(self._bootstrap, Path(plan.directory, "checkpoint"), 2 * PARTITIONS)
            found = apart(self._bootstrap, plan.group, SOURCE, plan.sink, lambda number: number % PARTITIONS)
            if not any(group > rows or not behind for group, rows in found.values()):
                return False
            time.sleep(0.5)
        return True

    def _start(self, plan: Plan) -> subprocess.Popen[bytes]:
        if plan.master == CLUSTER:
            self._standalone = self._standalone or Standalone(self._directory / "standalone")
            plan = plan._replace(master=self._standalone.master)
        Path(plan.directory, "jvm.pid").unlink(missing_ok=True)
        words = [sys.executable, "-m", "testbench.spark_chaos.query", json.dumps(plan._asdict())]
        with Path(plan.directory, "driver.log").open("ab") as log:
            self._drivers.append(subprocess.Popen(words, stdout=log, stderr=log, env=_environment()))
        return self._drivers[-1]

    def _make(self, topic: str) -> None:
        with Cluster(ClientConfig(bootstrap_servers=self._bootstrap)) as cluster:
            # On a machine that is busy a broker may have lost its session for a moment.
            until = time.monotonic() + BROKERS_S
            while len(cluster.refresh(()).nodes) < self._replicas and time.monotonic() < until:
                time.sleep(0.1)
            values_of(Admin(cluster).create_topics([NewTopic(topic, PARTITIONS, self._replicas, {})]))
            cluster.topic(topic, create=True)

    def _counts(self, sinks: list[str]) -> tuple[int, int]:
        found: Counter[str] = Counter()
        for sink in sinks:
            await_markers(self._bootstrap, sink, MARKERS_S)
            found.update(committed(self._bootstrap, sink))
        wanted = Counter(f"x-{number}" for number in range(self._rows))
        return (wanted - found).total(), (found - wanted).total()


def _said(plan: Plan) -> str:
    """The output of the drivers of a case."""
    log = Path(plan.directory, "driver.log")
    return log.read_text(errors="replace") if log.exists() else ""


def _environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}


def _until_struck(plan: Plan, driver: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + RUN_S
    while any(plan.strikes.iterdir()) and driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)


def _end(driver: subprocess.Popen[bytes]) -> None:
    try:
        driver.wait(RUN_S)
    except subprocess.TimeoutExpired:
        driver.kill()
        driver.wait()


if __name__ == "__main__":
    sys.exit(main())
