"""The workloads of the growth sweeps: one node of either kind, its topics, and the latency of a client."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from testbench.apache_kafka.broker import KAFKAS_HEAP, KafkaNode, cpu_seconds
from testbench.apache_kafka.packages import BenchError
from testbench.ottla_node import OttlaNode

from bench.hostile import Link, Victim, frame_of
from bench.hostile_rows import VICTIM
from bench.peers import rss_mib
from ottla.record import batch as batches
from ottla.wire import messages as m

Node = OttlaNode | KafkaNode
SETTLE_S = 2.0
PATIENCE_MS = 120_000
FILL = 500
"""Topics, or partitions, per request when a node is filled."""
_NOT_YET = {3, 5, 6}
"""Errors of a new partition, which is not known yet, or has no leader."""
SETTINGS = {"auto.create.topics.enable": "false"}


class Point(NamedTuple):
    """The result at one size."""

    row: str
    size: float
    cost: float
    wait_ms: float | None = None
    """The longest wait of another client meanwhile."""


class Bench(NamedTuple):
    """A separate node for a sweep, and the options."""

    peer: str
    directory: Path
    is_quick: bool
    say: Callable[[str], None]

    @contextmanager
    def node(self, settings: dict[str, str] | None = None) -> Iterator[Worked]:
        """A running node with the victim's topic; it ends with the block."""
        settings = SETTINGS | (settings or {})
        for number in itertools.count():
            place = self.directory / f"{self.peer}-{number}"
            if not place.exists():
                break
        place.mkdir(parents=True)
        node: Node
        if self.peer == "ottla":
            node = OttlaNode(place / "data", settings)
        else:
            node = KafkaNode(place, settings=settings, heap=KAFKAS_HEAP)
        with node:
            worked = Worked(node, self)
            try:
                worked.create([VICTIM])
                yield worked
            finally:
                worked.forget_link()


class Worked:
    """A node at work."""

    def __init__(self, node: Node, bench: Bench) -> None:
        self.node = node
        self.is_quick = bench.is_quick
        self._say = bench.say
        self._settle_s = 0.3 if bench.is_quick else SETTLE_S
        self._link: Link | None = None
        self._made = 0
        """Topics that `fill` has created."""

    @property
    def link(self) -> Link:
        """A connection, opened at the first use."""
        if self._link is None:
            self._link = Link(self.node.port)
        return self._link

    def forget_link(self) -> None:
        """Drop the connection, because the node restarts."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def cpu_s(self) -> float:
        """CPU seconds of the process so far."""
        return cpu_seconds(self.node.pid)

    def memory_mib(self) -> float:
        """Resident memory of the process."""
        return rss_mib(self.node.pid)

    def idle_percent(self) -> float:
        """CPU of the idle node, in percent of a core, over a minute."""
        self.settle()
        seconds = 2 if self.is_quick else 60
        before = self.cpu_s()
        time.sleep(seconds)
        return (self.cpu_s() - before) * 100 / seconds

    def settle(self) -> None:
        """Wait for the end of background work: until a second takes little CPU, at most a minute."""
        time.sleep(self._settle_s)
        until = time.monotonic() + 60
        while time.monotonic() < until:
            before = self.cpu_s()
            time.sleep(self._settle_s / 2)
            if self.cpu_s() - before < 0.1 * self._settle_s:
                return

    def cost_of(self, act: Callable[[], object], count: int) -> tuple[float, float]:
        """CPU in ms per item of `act`, which handles `count` items; and a client's wait during another call of it."""
        self.settle()
        before = self.cpu_s()
        act()
        time.sleep(self._settle_s / 2)  # for delayed work, such as notifications
        return (self.cpu_s() - before) * 1000 / count, self.wait_beside(act)

    def wait_beside(self, act: Callable[[], object]) -> float:
        """The longest wait in ms of a client that produces every 5 ms during an action."""
        beside = Victim(self.node.port)
        time.sleep(0.3)
        act()
        time.sleep(0.1)
        return beside.figures().worst

    # -- topics --------------------------------------------------------------------------------------------------

    def create(self, names: list[str], partitions: int = 1, configs: dict[str, str] | None = None) -> None:
        """Create topics in one request. Raises BenchError."""
        create_on(self.link, names, partitions, configs)

    def fill(self, topics: int, partitions: int = 1) -> None:
        """Create topics until the node has that many others, with that many partitions each."""
        step = max(1, FILL // partitions)
        while self._made < topics:
            some = min(step, topics - self._made)
            self.create([self.other(self._made + each) for each in range(some)], partitions)
            self._made += some
            self._say(f"{self._made * partitions:,} of {topics * partitions:,} partitions")

    @staticmethod
    def other(number: int) -> str:
        """The name of a topic that `fill` creates."""
        return f"other-{number:06}"

    def delete(self, name: str) -> None:
        """Delete a topic."""
        delete_on(self.link, name)

    def grow(self, name: str, count: int) -> None:
        """Grow a topic to that many partitions."""
        topic = m.CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=count, assignments=None)
        answer: Any = self.link.ask(m.CreatePartitionsRequest(topics=[topic], timeout_ms=PATIENCE_MS), 2)
        _check(each.error_code for each in answer.results)

    def configure(self, name: str, retention_ms: int) -> None:
        """Change a setting of a topic."""
        request = m.IncrementalAlterConfigsRequest
        setting = request.AlterableConfig(name="retention.ms", config_operation=0, value=str(retention_ms))
        resource = request.AlterConfigsResource(resource_type=2, resource_name=name, configs=[setting])
        answer: Any = self.link.ask(request(resources=[resource]), 1)
        _check(each.error_code for each in answer.responses)

    # -- records -------------------------------------------------------------------------------------------------

    def produce(self, topic: str, partitions: range, batch: bytes) -> None:
        """Produce the same batch to some partitions, acks=1; retry while they are being created. Raises BenchError."""
        data = [m.ProduceRequest.PartitionProduceData(index=each, records=batch) for each in partitions]
        topics = [m.ProduceRequest.TopicProduceData(name=topic, partition_data=data)]
        until = time.monotonic() + 30
        while True:
            answer: Any = self.link.ask(m.ProduceRequest(acks=1, timeout_ms=30_000, topic_data=topics), 9)
            codes = [each.error_code for response in answer.responses for each in response.partition_responses]
            if not set(codes) & _NOT_YET or time.monotonic() > until:
                break
            time.sleep(0.05)
        _check(iter(codes))

    def metadata(self, names: list[str] | None) -> float:
        """Request metadata of topics; returns the seconds until the answer, which is not decoded."""
        topic = m.MetadataRequest.MetadataRequestTopic
        asked = None if names is None else [topic(name=name) for name in names]
        frame = frame_of(m.MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12)
        begin = time.perf_counter()
        self.link.send(frame)
        self.link.receive()
        return time.perf_counter() - begin


def create_on(link: Link, names: list[str], partitions: int = 1, configs: dict[str, str] | None = None) -> None:
    """Create topics by one request on a connection. Raises BenchError."""
    setting = m.CreateTopicsRequest.CreatableTopicConfig
    settings = [setting(name=key, value=value) for key, value in (configs or {}).items()]
    new = m.CreateTopicsRequest.CreatableTopic
    asked = [new(name=name, num_partitions=partitions, replication_factor=1, configs=settings) for name in names]
    answer: Any = link.ask(m.CreateTopicsRequest(topics=asked, timeout_ms=PATIENCE_MS), 5)
    _check(each.error_code for each in answer.topics)


def delete_on(link: Link, name: str) -> None:
    """Delete a topic by a request on a connection. Raises BenchError."""
    answer: Any = link.ask(m.DeleteTopicsRequest(topic_names=[name], timeout_ms=PATIENCE_MS), 5)
    _check(each.error_code for each in answer.responses)


def batch_of(size: int, producer_id: int = -1) -> bytes:
    """A batch of one record; with a producer id its first one."""
    record = batches.Record(0, int(time.time() * 1000), b"k", b"v" * size, ())
    if producer_id < 0:
        return bytes(batches.encode_batch([record]))
    return bytes(batches.encode_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0))


def _check(codes: Iterator[int]) -> None:
    bad = [code for code in codes if code]
    if bad:
        raise BenchError(f"refused with error {bad[0]}, {len(bad)} times")
