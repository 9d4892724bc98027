"""The sweeps of bench/growth.py on one broker: measurements, sizes, and limits."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from bench.growth_work import Bench, Point, Worked, batch_of
from bench.hostile import Link, frame_of
from bench.hostile_rows import VICTIM
from ottla.wire import messages as m

CONSTANT, LINEAR = 0.1, 1.1
KAFKAS_MOST = 5_000
"""Maximum of partitions with which Kafka is measured as well: each needs several memory maps of Kafka."""


class Row(NamedTuple):
    """One line of the table. `exponent`: how the cost may grow with the size; `goal`: its maximum at any size;
    `wait`: the maximum wait of others in ms. None: reported without a verdict."""

    key: str
    title: str
    unit: str
    exponent: float | None = None
    goal: float | None = None
    wait: float | None = 20.0


class Sweep(NamedTuple):
    """Rows that are measured together, at these sizes."""

    rows: tuple[Row, ...]
    sizes: tuple[float, ...]
    quick: tuple[float, ...]
    run: Callable[[Bench, tuple[float, ...]], Iterator[Point]]
    kafkas_most: float = 1e9
    """The largest size at which Kafka is measured as well."""


# -- changes with n others -------------------------------------------------------------------------------------------


def changes(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Create, grow, configure and delete one topic, with n others."""
    times = 2 if bench.is_quick else 10
    with bench.node() as node:
        for size in map(int, sizes):
            node.fill(size)
            yield from _changes(node, size, times)


def _changes(node: Worked, size: int, times: int) -> Iterator[Point]:
    names = iter(f"one-{size}-{each}" for each in range(10 * times))
    made: list[str] = []
    grown: dict[str, int] = {}

    def create() -> None:
        for _ in range(times):
            made.append(next(names))
            node.create(made[-1:])

    def grow() -> None:
        for name in made[:times]:
            grown[name] = grown.get(name, 1) + 1
            node.grow(name, grown[name])

    def configure() -> None:
        for each, name in enumerate(made[:times]):
            node.configure(name, 70_000_000 + each)

    def delete() -> None:
        for _ in range(times):
            node.delete(made.pop())

    for key, act in (("create", create), ("grow", grow), ("configure", configure), ("delete", delete)):
        cost, wait = node.cost_of(act, times)
        yield Point(key, size, cost, wait)


def bulk(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Topics of 100 partitions, created by one request after the other."""
    for size in map(int, sizes):
        with bench.node() as node:
            node.settle()
            before = node.cpu_s()
            wait = node.wait_beside(lambda size=size, node=node: node.fill(size // 100, 100))  # type: ignore[misc]
            yield Point("bulk", size, (node.cpu_s() - before) * 1000 / size, wait)


# -- idle brokers ------------------------------------------------------------------------------------------------------


def idle(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """CPU of an idle broker in percent of a core, with partitions in topics of 100."""
    with bench.node() as node:
        for size in map(int, sizes):
            node.fill(max(1, size // 100), min(100, size))
            yield Point("idle", size, node.idle_percent())
            yield Point("memory", size, node.memory_mib())


def idle_topics(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """CPU of an idle broker with a topic for each partition, and of one with a client that polls at intervals."""
    with bench.node() as node:
        for size in map(int, sizes):
            node.fill(size)
            yield Point("idle-topics", size, node.idle_percent())
            yield Point("memory-topics", size, node.memory_mib())


def intervals(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Median and longest wait of a client that produces at intervals, with 10,000 topics."""
    batch = batch_of(20)
    with bench.node() as node:
        node.fill(100 if bench.is_quick else 10_000)
        node.settle()
        node.produce(VICTIM, range(1), batch)
        for interval in sizes:
            times = []
            for _ in range(max(6, int((1 if bench.is_quick else 60) / interval))):
                time.sleep(interval)
                begin = time.perf_counter()
                node.produce(VICTIM, range(1), batch)
                times.append((time.perf_counter() - begin) * 1000)
            yield Point("interval", interval, statistics.median(times), max(times))


# -- reads -----------------------------------------------------------------------------------------------------------


def metadata_named(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Metadata of n named topics of 100 partitions, in µs of CPU per partition."""
    times = 20 if bench.is_quick else 500
    with bench.node() as node:
        node.fill(int(max(sizes)), 100)
        for size in map(int, sizes):
            names = [node.other(each) for each in range(size)]
            yield _asked(node, "metadata-named", size, names, size * 100, times)


def metadata_all(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Metadata of all of n topics, and the first one after another topic was created."""
    times = 3 if bench.is_quick else 50
    with bench.node() as node:
        for size in map(int, sizes):
            node.fill(size)
            yield _asked(node, "metadata-all", size, None, size, times)
            first = []
            for each in range(5):
                node.create([f"new-{size}-{each}"])
                first.append(node.metadata(None) * 1e6 / size)
            wait = node.wait_beside(lambda size=size: (node.create([f"newer-{size}"]), node.metadata(None)))  # type: ignore[misc]
            yield Point("metadata-first", size, statistics.median(first), wait)


def _asked(node: Worked, key: str, size: int, names: list[str] | None, partitions: int, times: int) -> Point:
    def ask() -> None:
        for _ in range(times):
            node.metadata(names)

    ask()  # compiles the codec of the first use
    cost, wait = node.cost_of(ask, times)
    return Point(key, size, cost * 1000 / partitions, wait)


def fetch(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """A Fetch without a session of n partitions that all have a record, in µs of CPU per partition."""
    times = 5 if bench.is_quick else 200
    request, batch = m.FetchRequest, batch_of(100)
    for size in map(int, sizes):
        with bench.node() as node:
            node.create(["wide"], size)
            for begin in range(0, size, 100):
                node.produce("wide", range(begin, min(size, begin + 100)), batch)
            parts = [request.FetchPartition(partition=each, partition_max_bytes=1000) for each in range(size)]
            topic = request.FetchTopic(topic="wide", partitions=parts)
            asked = request(replica_id=-1, max_wait_ms=0, max_bytes=50 << 20, session_epoch=-1, topics=[topic])
            frame = frame_of(asked, 12)
            cost, wait = node.cost_of(lambda node=node, frame=frame: _ask(node.link, frame, times), times)  # type: ignore[misc]
            yield Point("fetch", size, cost * 1000 / size, wait)


def _ask(link: Link, frame: bytes, times: int) -> None:
    for _ in range(times):
        link.send(frame)
        link.receive()


# -- segments, starts ------------------------------------------------------------------------------------------------


def roll(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Segment rolls of a partition with n producer ids: CPU and wait while 40 MB are written, and the memory."""
    rest = batch_of(500_000)
    for size in map(int, sizes):
        with bench.node() as node:
            node.create(["rolled"], 1, {"segment.bytes": str(10 << 20)})
            for producer in range(size):
                node.produce("rolled", range(1), batch_of(10, 1_000_000 + producer))
                if producer % 10_000 == 9_999:
                    bench.say(f"{producer + 1:,} of {size:,} producer ids")

            def write(node: Worked = node) -> None:
                for _ in range(80):
                    node.produce("rolled", range(1), rest)

            cost, wait = node.cost_of(write, 4)
            yield Point("roll", size, cost, wait)
            yield Point("roll-memory", size, node.memory_mib())


def starts(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Stop, start, and start after kill -9, in CPU seconds; one record in each partition."""
    batch = batch_of(100)
    for size in map(int, sizes):
        with bench.node() as node:
            node.fill(max(1, size // 100), 100)
            for each in range(max(1, size // 100)):
                node.produce(node.other(each), range(100), batch)
            node.settle()
            node.forget_link()
            stopped = _stop(node)
            yield Point("stop", size, stopped)
            node.node.start(600)
            yield Point("start", size, _after_start(node))
            for each in range(max(1, size // 100)):
                node.produce(node.other(each), range(100), batch)
            node.forget_link()
            node.node.kill()
            node.node.start(600)
            yield Point("start-killed", size, _after_start(node))


def _after_start(node: Worked) -> float:
    node.settle()
    return node.cpu_s()


def _stop(node: Worked) -> float:
    """Stop the node; returns the CPU seconds of the stop: those of its whole life minus those before."""
    before, ended = node.cpu_s(), resource.getrusage(resource.RUSAGE_CHILDREN)
    node.node.stop()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - ended.ru_utime - ended.ru_stime - before


# -- the table -------------------------------------------------------------------------------------------------------

BESIDE = (10, 100, 1_000, 4_000, 10_000)
SWEEPS = (
    Sweep(
        (
            Row("create", "one topic created beside n", "ms of CPU", CONSTANT),
            Row("grow", "a partition added beside n topics", "ms of CPU", CONSTANT),
            Row("configure", "a setting of a topic changed beside n", "ms of CPU", CONSTANT),
            Row("delete", "one topic deleted beside n", "ms of CPU", CONSTANT),
        ),
        BESIDE,
        (10, 40),
        changes,
        KAFKAS_MOST,
    ),
    Sweep((Row("bulk", "n partitions created", "ms of CPU each", None, 1.0),), (1_000, 5_000), (200,), bulk),
    Sweep(
        (
            Row("idle", "idle with n partitions", "% of a core", None, 1.0, None),
            Row("memory", "the same, memory", "MiB", LINEAR, None, None),
        ),
        (10, 1_000, 5_000, 20_000),
        (10, 100),
        idle,
        KAFKAS_MOST,
    ),
    Sweep(
        (
            Row("idle-topics", "idle with n topics", "% of a core", None, 1.0, None),
            Row("memory-topics", "the same, memory", "MiB", None, None, None),
        ),
        (10_000,),
        (100,),
        idle_topics,
        KAFKAS_MOST,
    ),
    Sweep(
        (Row("interval", "a client that asks every n s beside 10,000 topics, median", "ms", None, 2.0),),
        (0.1, 0.5, 2.1, 10),
        (0.1, 0.2),
        intervals,
    ),
    Sweep(
        (Row("metadata-named", "Metadata of n named topics of 100 partitions", "µs of CPU per partition", None, 1.0),),
        (8, 9, 30),
        (2, 3),
        metadata_named,
    ),
    Sweep(
        (
            Row("metadata-all", "Metadata of all of n topics", "µs of CPU per partition", None, 1.0),
            Row("metadata-first", "the first after a change", "µs per partition until the answer", None, 1.0),
        ),
        (5_000, 10_000),
        (100, 200),
        metadata_all,
        KAFKAS_MOST,
    ),
    Sweep(
        (Row("fetch", "Fetch of n partitions, no session", "µs of CPU per partition", None, 2.0),),
        (100, 2_000),
        (10,),
        fetch,
    ),
    Sweep(
        (
            Row("roll", "a roll with n producer ids", "ms of CPU"),
            Row("roll-memory", "the same, memory", "MiB", LINEAR, None, None),
        ),
        (1_000, 50_000, 100_000),
        (100,),
        roll,
    ),
    Sweep(
        (
            Row("stop", "a clean stop with n partitions", "s of CPU", LINEAR, 8.0, None),
            Row("start", "a start after that", "s of CPU", LINEAR, 10.0, None),
            Row("start-killed", "a start after kill -9", "s of CPU", LINEAR, 15.0, None),
        ),
        (1_000, 5_000, 20_000),
        (100, 200),
        starts,
        KAFKAS_MOST,
    ),
)
