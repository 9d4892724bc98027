"""Clients that nobody here wrote share the partitions of a topic: they come, go, crash, and nothing is missed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from testbench.members import Party
from testbench.ottla_node import OttlaNode
from testbench.trio import trio

pytestmark = [pytest.mark.interop, pytest.mark.slow]

T = TypeVar("T")
LIBRARIES = ("confluent", "kafka-python", "aiokafka")
PARTITIONS = 6


def create(bootstrap: str, topic: str, partitions: int = PARTITIONS) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(180)
    return admin


def produce(bootstrap: str, topic: str, first: int, count: int) -> set[str]:
    producer = Producer({"bootstrap.servers": bootstrap})
    values = [str(first + at) for at in range(count)]
    for at, value in enumerate(values):
        producer.produce(topic, value, partition=at % PARTITIONS)
    assert producer.flush(180) == 0
    return set(values)


def patiently(ask: Callable[[], T]) -> T:
    """The answer, once there is one: while a group moves, librdkafka hands NOT_COORDINATOR to whoever asked."""
    deadline = time.monotonic() + 180
    while True:
        try:
            return ask()
        except KafkaException:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def committed(bootstrap: str, group: str, topic: str) -> int:
    """The sum of all committed offsets."""
    places = [TopicPartition(topic, each) for each in range(PARTITIONS)]
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        found = patiently(lambda: consumer.committed(places, 30))
        return sum(max(0, each.offset) for each in found)
    finally:
        consumer.close()


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_library_alone(bootstrap: str, topic: str, tmp_path: Path, library: str) -> None:
    create(bootstrap, topic)
    expected = produce(bootstrap, topic, 0, 60)
    with Party(tmp_path, bootstrap, topic, topic) as party:
        one, two = party.add(library), party.add(library)
        party.await_shared(PARTITIONS)
        party.await_that("all is read", lambda: party.values() == expected)
        two.leave()
        party.await_that("the other one has it all", lambda: one.owns == list(range(PARTITIONS)))
        expected |= produce(bootstrap, topic, 60, 60)
        party.await_that("all is read", lambda: party.values() == expected)
        party.await_that("all is committed", lambda: committed(bootstrap, topic, topic) == 120)
        one.leave()
    with Party(tmp_path, bootstrap, topic, topic) as party:
        again = party.add(library)
        expected = produce(bootstrap, topic, 120, 6)
        party.await_that("it goes on where they stopped", lambda: {value for _, _, value in again.read} == expected)


def test_all_libraries_share_a_group(bootstrap: str, topic: str, tmp_path: Path) -> None:
    create(bootstrap, topic)
    expected = produce(bootstrap, topic, 0, 300)
    with Party(tmp_path, bootstrap, topic, topic) as party:
        members = [party.add(library) for library in LIBRARIES]
        party.await_shared(PARTITIONS)
        party.await_that("all is read", lambda: party.values() == expected)
        members[1].kill()
        expected |= produce(bootstrap, topic, 300, 300)
        party.await_shared(PARTITIONS)
        party.await_that("all is read after a crash", lambda: party.values() == expected)
        members[0].leave()
        party.add("kafka-python")
        party.await_shared(PARTITIONS)
        expected |= produce(bootstrap, topic, 600, 300)
        party.await_that("all is read after all", lambda: party.values() == expected)
        party.await_that("all is committed", lambda: committed(bootstrap, topic, topic) == 900)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_static_member_keeps_its_partitions_over_a_restart(
    bootstrap: str, topic: str, tmp_path: Path, library: str
) -> None:
    create(bootstrap, topic)
    with Party(tmp_path, bootstrap, topic, topic) as party:
        fixed = party.add(library, "fixed")
        other = party.add(library, "other")
        party.await_shared(PARTITIONS)
        owned = fixed.owns
        before = len(other.events)
        fixed.kill()
        back = party.add(library, "fixed")
        party.await_that("it has what it had", lambda: back.owns == owned)
        assert not [event for event in other.events[before:] if event[0] == "owns"], "the others noticed nothing"


def test_administration(bootstrap: str, topic: str, tmp_path: Path) -> None:
    admin = create(bootstrap, topic)
    produce(bootstrap, topic, 0, 60)
    with Party(tmp_path, bootstrap, topic, topic) as party:
        member = party.add("confluent")
        party.await_shared(PARTITIONS)
        found = admin.describe_consumer_groups([topic])[topic].result(180)
        assert found.state.name == "STABLE"
        assert [each.client_id for each in found.members] == ["rdkafka"]
        assert len(found.members[0].assignment.topic_partitions) == PARTITIONS
        assert topic in [each.group_id for each in admin.list_consumer_groups().result(180).valid]
        party.await_that("all is committed", lambda: committed(bootstrap, topic, topic) == 60)
        with pytest.raises(Exception, match=r"NON_EMPTY_GROUP|not empty"):
            admin.delete_consumer_groups([topic])[topic].result(180)
        member.leave()
    wanted = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0, 3)])
    admin.alter_consumer_group_offsets([wanted])[topic].result(180)
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic].result(180)
    assert {each.partition: each.offset for each in listed.topic_partitions} == {0: 3, **dict.fromkeys(range(1, 6), 10)}
    admin.delete_consumer_groups([topic])[topic].result(180)
    assert committed(bootstrap, topic, topic) == 0


def test_in_a_terminal_the_first_consumer_does_not_wait(node) -> None:
    def delay(broker: OttlaNode) -> str:
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        found = admin.describe_configs([resource])[resource].result(180)
        return found["group.initial.rebalance.delay.ms"].value

    assert delay(node()) == "0"
    assert delay(node(group_initial_rebalance_delay_ms="1500")) == "1500"


def test_a_restarted_broker_remembers(node, topic: str, tmp_path: Path) -> None:
    broker = node(group_initial_rebalance_delay_ms="0")
    create(broker.bootstrap, topic)
    expected = produce(broker.bootstrap, topic, 0, 60)
    with Party(tmp_path, broker.bootstrap, topic, topic) as party:
        party.add("confluent")
        party.add("aiokafka")
        party.await_shared(PARTITIONS)
        party.await_that("all is read", lambda: party.values() == expected)
        party.await_that("all is committed", lambda: committed(broker.bootstrap, topic, topic) == 60)
        broker.kill()
        broker.start()
        expected |= produce(broker.bootstrap, topic, 60, 60)
        party.await_that("all is read", lambda: party.values() == expected)
        deadline = time.monotonic() + 180
        while committed(broker.bootstrap, topic, topic) != 120:
            assert time.monotonic() < deadline
        assert len(party.living) == 2


def test_the_coordinator_of_a_group_is_killed(tmp_path: Path) -> None:
    """Its successor has every commit; members find it, and nothing is missed."""
    settings = {"group.initial.rebalance.delay.ms": "0", "default.replication.factor": "3"}
    with trio("embedded", tmp_path, settings) as cluster:
        cluster.admin.create_topics([NewTopic("work", PARTITIONS, 3)])["work"].result(180)
        expected = produce(cluster.bootstrap, "work", 0, 120)
        with Party(tmp_path, cluster.bootstrap, "party", "work") as party:
            for library in LIBRARIES:
                party.add(library)
            party.await_shared(PARTITIONS)
            party.await_that("all is read", lambda: party.values() == expected)
            party.await_that("all is committed", lambda: committed(cluster.bootstrap, "party", "work") == 120)
            for _ in range(2):
                cluster.wait_whole("work", "__consumer_offsets")
                coordinator = cluster.coordinator_of("party")
                cluster.brokers[coordinator - 1].kill()
                assert committed(cluster.bootstrap, "party", "work") == len(expected), "its successor knows"
                expected |= produce(cluster.bootstrap, "work", len(expected), 120)
                whole = set(expected)
                party.await_that("all is read", lambda whole=whole: party.values() == whole)
                party.await_that(
                    "all is committed",
                    lambda whole=whole: committed(cluster.bootstrap, "party", "work") == len(whole),
                )
                cluster.brokers[coordinator - 1].start()
            party.await_shared(PARTITIONS)
            assert len(party.living) == len(LIBRARIES)
        assert not cluster.complaints()
