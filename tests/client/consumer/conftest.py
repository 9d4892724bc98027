"""A broker process for the consumer: Ottla, or Apache Kafka with BROKER=kafka.

Zone: real.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from testbench.apache_kafka.broker import KafkaNode
from testbench.ottla_node import OttlaNode
from tests.names import own_name

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer, RefusedError, TopicPartition, values_of
from ottla.client.consumer import Consumer, ConsumerRecord

KIND = os.environ.get("BROKER", "ottla")
QUICK = {"group.initial.rebalance.delay.ms": "0", "auto.create.topics.enable": "false"}
Make = Callable[..., Consumer]


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode | KafkaNode]:
    """One broker for all tests; every test uses its own topics and groups."""
    directory = tmp_path_factory.mktemp("consumer") / "data"
    made = KafkaNode(directory, settings=QUICK) if KIND == "kafka" else OttlaNode(directory, QUICK)
    made.start()
    yield made
    made.stop()
    assert KIND == "kafka" or "Traceback" not in made.said()


@pytest.fixture
def bootstrap(node: OttlaNode | KafkaNode) -> str:
    """The address of the broker."""
    return node.bootstrap


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The name of this test's topic and group."""
    return own_name(request)


@pytest.fixture
def cluster(bootstrap: str) -> Iterator[Cluster]:
    """A cluster for creating topics and writing to them."""
    with Cluster(ClientConfig(bootstrap_servers=bootstrap)) as made:
        yield made


@pytest.fixture
def topic(cluster: Cluster, name: str) -> str:
    """A topic of four partitions."""
    return create(cluster, name, 4)


@pytest.fixture
def consumer(bootstrap: str, name: str) -> Iterator[Make]:
    """`consumer(group_id=None, max_poll_records=3)`: settings with underscores; closed at the end."""
    made: list[Consumer] = []

    def make(**settings: object) -> Consumer:
        words: dict[str, object] = {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": 100,
            "fetch.max.wait.ms": 50,
        }
        words |= {key.replace("_", "."): value for key, value in settings.items()}
        made.append(Consumer({key: value for key, value in words.items() if value is not None}))  # type: ignore[misc]
        return made[-1]

    yield make
    for each in made:
        each.close()


def create(cluster: Cluster, name: str, partitions: int) -> str:
    """A topic whose partitions all have leaders."""
    values_of(Admin(cluster).create_topics([NewTopic(name, partitions)]))
    for number in range(partitions):
        while not has_leader(cluster, TopicPartition(name, number)):
            time.sleep(0.02)
    return name


def has_leader(cluster: Cluster, tp: TopicPartition) -> bool:
    """Whether the partition has a leader now."""
    try:
        cluster.leader(tp)
    except RefusedError:
        cluster.forget_topics([tp.topic])
        return False
    return True


def write(cluster: Cluster, topic: str, values: Sequence[str], partition: int | None = 0) -> None:
    """Writes records with these values, and waits for the acknowledgements."""
    with Producer({"bootstrap.servers": cluster.config.bootstrap_servers}) as producer:
        for at, value in enumerate(values):
            producer.send(topic, value.encode(), partition=at % 4 if partition is None else partition)


def read(consumer: Consumer, count: int, within_s: float = 180) -> list[ConsumerRecord]:
    """Polls until it has `count` records."""
    found: list[ConsumerRecord] = []
    deadline = time.monotonic() + within_s
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records: {found[:5]}"
        found += consumer.poll(0.2)
    return found


def settle(consumers: Sequence[Consumer], done: Callable[[], bool], within_s: float = 180) -> None:
    """Polls all consumers in turn until `done`."""
    deadline = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < deadline, [each.assignment() for each in consumers]
        for each in consumers:
            each.poll(0.05)
