"""The sweeps of bench/growth.py with bad input: the latency of others meanwhile, and memory that stays in use."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from bench.growth_rows import Row, Sweep
from bench.growth_work import Bench, Point, Worked, create_on, delete_on
from bench.hostile import Link, frame_of
from bench.peers import rss_mib
from ottla.wire import messages as m

CLIENTS = 8
WAIT_MS = 50.0
"""Maximum wait of others."""


def churn(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """Eight clients create and delete topics as fast as possible for n seconds; MiB that stay in use."""
    for seconds in sizes:
        with bench.node() as node:
            churned(node, seconds / 10)
            node.settle()
            before = rss_mib(node.node.pid)
            begun = time.monotonic()

            def work(node: Worked = node, seconds: float = seconds) -> None:
                bench.say(f"{churned(node, seconds):,} topics were made and deleted")

            wait = node.wait_beside(work)
            bench.say(f"in {time.monotonic() - begun:.0f} s")
            node.settle()
            yield Point("churn", seconds, max(0.0, rss_mib(node.node.pid) - before), wait)


def churned(node: Worked, seconds: float) -> int:
    """Run the clients; returns how many topics they created and deleted."""
    until = time.monotonic() + seconds
    counts = [0] * CLIENTS

    def work(client: int) -> None:
        link = Link(node.node.port)
        while time.monotonic() < until:
            name = f"churned-by-client-{client}-{counts[client]}"
            create_on(link, [name])
            delete_on(link, name)
            counts[client] += 1
        link.close()

    threads = [threading.Thread(target=work, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def names(bench: Bench, sizes: tuple[float, ...]) -> Iterator[Point]:
    """A Metadata request that creates n missing topics; MiB that stay in use."""
    topic = m.MetadataRequest.MetadataRequestTopic
    for size in map(int, sizes):
        with bench.node({"auto.create.topics.enable": "true"}) as node:
            asked = [topic(name=f"a-topic-that-is-missing-{each:07}") for each in range(size)]
            frame = frame_of(m.MetadataRequest(topics=asked, allow_auto_topic_creation=True), 12)

            def ask(node: Worked = node, frame: bytes = frame) -> None:
                node.link.send(frame)
                node.link.receive()

            ask()
            node.settle()
            before = rss_mib(node.node.pid)
            wait = node.wait_beside(ask)
            node.settle()
            yield Point("names", size, max(0.0, rss_mib(node.node.pid) - before), wait)


BAD_SWEEPS = (
    Sweep(
        (Row("churn", "eight clients make and delete topics for n s", "MiB that stay", None, 16.0, WAIT_MS),),
        (600,),
        (2,),
        churn,
        0,
    ),
    Sweep(
        (Row("names", "Metadata of n missing topics that are created", "MiB that stay", None, 16.0, WAIT_MS),),
        (10_000, 100_000),
        (1_000,),
        names,
        0,
    ),
)
