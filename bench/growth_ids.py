"""The sweeps of bench/growth.py over connections, groups and ids: what making each one costs, and what it keeps."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterator
from typing import Any

from testbench.apache_kafka.packages import BenchError

from bench.growth_rows import CONSTANT, Row, Sweep
from bench.growth_work import Bench, Point, Worked
from bench.hostile import Link
from bench.hostile_rows import VICTIM
from ottla.wire import messages as m

SPARE_DESCRIPTORS = 200
LOADING = 14
"""COORDINATOR_LOAD_IN_PROGRESS: the coordinators of other ids may still load."""
IDS = (1_000, 10_000, 100_000)


def connections(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """n connections that have asked for ApiVersions: the CPU of each, its memory, and what all cost at rest."""
    _raise_descriptor_limit(int(max(sizes)) + SPARE_DESCRIPTORS)
    for size in map(int, sizes):
        with bench.node() as node:
            opened: list[Link] = []

            def connect(node: Worked = node, opened: list[Link] = opened) -> None:
                opened.append(Link(node.node.port))
                opened[-1].ask(m.ApiVersionsRequest(), 2)

            yield from _each(node, "connection", size, connect)
            yield Point("connection-idle", size, node.idle_percent())
            for link in opened:
                link.close()


def groups(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """n groups that each have a committed offset, and no members."""
    request = m.OffsetCommitRequest
    for size in map(int, sizes):
        with bench.node() as node:
            part = request.OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
            topics = [request.OffsetCommitRequestTopic(name=VICTIM, partitions=[part])]
            names = iter(f"group-{each:07}" for each in range(size))

            def commit(node: Worked = node, topics: list[Any] = topics, names: Iterator[str] = names) -> None:
                _commit(node.link, request(group_id=next(names), topics=topics))

            _wait_for_coordinator(node.link, 0, "group-0000000")
            yield from _each(node, "group", size, commit)


def transactional_ids(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """n transactional ids that each have got a producer id."""
    for size in map(int, sizes):
        with bench.node() as node:
            names = iter(f"transactional-{each:07}" for each in range(size))

            def initialize(node: Worked = node, names: Iterator[str] = names) -> None:
                _initialize(node.link, next(names))

            _wait_for_coordinator(node.link, 1, "transactional-0000000")
            yield from _each(node, "transactional-id", size, initialize)


def _each(node: Worked, key: str, size: int, make: Callable[[], None]) -> Iterator[Point]:
    """Make `size` of something, in two halves: CPU in µs of each, the wait of others, and the KiB that each keeps."""

    def half() -> None:
        for _ in range(size // 2):
            make()

    node.settle()
    before = node.memory_mib()
    cost, wait = node.cost_of(half, size // 2)
    yield Point(key, size, cost * 1000, wait)
    node.settle()
    yield Point(f"{key}-memory", size, max(0.0, node.memory_mib() - before) * 1024 / size)


def _commit(link: Link, request: m.OffsetCommitRequest) -> None:
    answer: Any = link.ask(request, 7)
    _check(answer.topics[0].partitions[0].error_code)


def _initialize(link: Link, name: str) -> None:
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    until = time.monotonic() + 60
    while True:
        answer: Any = link.ask(request, 4)
        if answer.error_code != LOADING or time.monotonic() > until:
            break
        time.sleep(0.05)
    _check(answer.error_code)


def _wait_for_coordinator(link: Link, kind: int, key: str) -> None:
    """Wait until the internal topic of the coordinators is there, and this coordinator has loaded its part."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found: Any = link.ask(m.FindCoordinatorRequest(key=key, key_type=kind), 2)
        if not found.error_code and _is_loaded(link, kind, key):
            return
        time.sleep(0.1)
    raise BenchError(f"no coordinator for {key} in 60 s")


def _is_loaded(link: Link, kind: int, key: str) -> bool:
    answer: Any
    if kind == 0:
        answer = link.ask(m.DescribeGroupsRequest(groups=[key]), 0)
        return not answer.groups[0].error_code
    answer = link.ask(m.DescribeTransactionsRequest(transactional_ids=[key]), 0)
    return answer.transaction_states[0].error_code != LOADING


def _check(code: int) -> None:
    if code:
        raise BenchError(f"refused with error {code}")


def _raise_descriptor_limit(count: int) -> None:
    """Let this process, and the brokers that it starts, open that many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        raise BenchError(f"the hard limit of open files is {hard}, {count} are wanted: see `ulimit -Hn`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _rows(key: str, title: str) -> tuple[Row, Row]:
    return (
        Row(key, f"n {title}", "µs of CPU each", CONSTANT),
        Row(f"{key}-memory", "the same, memory", "KiB each", None, None, None),
    )


ID_SWEEPS = (
    Sweep(
        (
            *_rows("connection", "connections opened, with a request for ApiVersions"),
            Row("connection-idle", "idle with n connections", "% of a core", None, 1.0, None),
        ),
        (1_000, 9_000),
        (20,),
        connections,
    ),
    Sweep(_rows("group", "groups with their first committed offset"), IDS, (20,), groups),
    Sweep(_rows("transactional-id", "transactional ids initialized"), IDS, (20,), transactional_ids),
)
