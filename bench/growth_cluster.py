"""The sweep of bench/growth.py on three brokers: one change in a cluster with n partitions of three replicas."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

from testbench.apache_kafka.broker import cpu_seconds
from testbench.apache_kafka.packages import BenchError

from bench import clusters
from bench.clusters import Cluster
from bench.growth_rows import CONSTANT, LINEAR, Row, Sweep
from bench.growth_work import Bench, Point

WIDE = "wide"
TOPICS = 7
SETTLE_S = 3.0
"""One broker's metadata names the new leaders before all brokers have done what follows from the loss."""


def three(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Create a topic, lose a broker, lose the controller: CPU of the live brokers, and the time."""
    for size in map(int, sizes):
        directory = bench.directory / f"{bench.peer}-{size}"
        make = clusters.ottla_embedded if bench.peer == "ottla" else clusters.kafka
        cluster = make(directory, None if bench.peer == "ottla" else clusters.KAFKA_FAILOVER)
        try:
            cluster.make_topic(WIDE, size)
            bench.say(f"{size:,} partitions are made")
            time.sleep(1 if bench.is_quick else 10)
            yield from _created(cluster, size)
            yield from _lost(cluster, size, bench)
        finally:
            cluster.stop()


def _created(cluster: Cluster, size: int) -> Iterator[Point]:
    """Medians of some creations: one may fall together with a periodic task."""
    costs = [_cost(cluster.pids, lambda each=each: cluster.make_topic(f"one-{each}", 1)) for each in range(TOPICS)]  # type: ignore[misc]
    yield Point("three-create", size, statistics.median(cpu for cpu, _ in costs) * 1000)
    yield Point("three-create-time", size, statistics.median(taken for _, taken in costs) * 1000)


def _lost(cluster: Cluster, size: int, bench: Bench) -> Iterator[Point]:
    """Kill first a broker that is not the controller, then the controller; each restarts before the next."""
    for key in ("three-broker", "three-controller"):
        seen = cluster.look(WIDE)
        assert seen is not None, "no broker answers"
        controller = seen.controller_id
        dead = controller if key == "three-controller" else next(each for each in (1, 2, 3) if each != controller)
        broker = cluster.brokers[dead - 1]
        others = [each.pid for each in cluster.brokers if each is not broker]

        def lose(dead: int = dead) -> None:
            cluster.brokers[dead - 1].kill()
            _await_leaders(cluster, dead)

        cpu, taken = _cost(others, lose, rest_s=SETTLE_S)
        yield Point(key, size, cpu)
        yield Point(f"{key}-time", size, taken)
        bench.say("the lost broker comes back")
        broker.start()
        cluster.await_whole(WIDE)


def _await_leaders(cluster: Cluster, dead: int) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        seen = cluster.look(WIDE, 1)
        if seen is not None and all(each.leader not in (dead, -1) for each in seen.topics[WIDE].partitions.values()):
            return
        time.sleep(0.02)
    raise BenchError(f"{cluster.name}: partitions without a leader 120 s after broker {dead} died")


def _cost(pids: list[int], act: Callable[[], object], *, rest_s: float = 0) -> tuple[float, float]:
    """CPU seconds of these processes, and the seconds, of an action; the CPU with `rest_s` seconds after it."""
    before, begin = sum(map(cpu_seconds, pids)), time.monotonic()
    act()
    taken = time.monotonic() - begin
    time.sleep(rest_s)
    return sum(map(cpu_seconds, pids)) - before, taken


CLUSTER_SWEEPS = (
    Sweep(
        (
            Row(
                "three-create",
                "a topic created beside n, three brokers",
                "ms of CPU",
                CONSTANT,
                None,
                None,
            ),
            Row("three-create-time", "the same", "ms until it is in sync", CONSTANT, None, None),
            Row("three-broker", "a broker of three lost, n partitions", "s of CPU", LINEAR, None, None),
            Row("three-broker-time", "the same", "s until all have leaders", None, None, None),
            Row("three-controller", "the controller lost, n partitions", "s of CPU", LINEAR, None, None),
            Row("three-controller-time", "the same", "s until all have leaders", None, None, None),
        ),
        (200, 2_000),
        (6,),
        three,
    ),
)
