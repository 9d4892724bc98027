"""Consumers by six libraries in four languages share one group: they come, go and crash, and brokers are killed.

What each of them says (its generation, its partitions, what it has processed) is in files; nothing is asked of the
broker.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from testbench.apache_kafka.packages import BenchError
from testbench.members import MemberProcess, Party, command
from testbench.trio import Trio, trio

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

STATIC = ("confluent", "franz-go", "java-4.4.0")
LIBRARIES = (*STATIC, "kafka-python", "aiokafka", "kafkajs", "java-3.9.1")
PARTITIONS = 2 * len(LIBRARIES)
PER_SECOND = 60
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "default.replication.factor": "3",
    # Seven clients of the test and three brokers share the machine: nobody else may lose a session but who was killed.
    "zookeeper.session.timeout.ms": "6000",
}


class Feed:
    """Somebody who writes all the time; every value once, each into the next partition."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        settings = {"enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 300_000, "log_level": 0}
        self._producer = Producer({"bootstrap.servers": bootstrap, **settings})
        self._topic = topic
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.values: set[str] = set()
        """What is acknowledged."""

    def _run(self) -> None:
        number = 0
        while not self._over.wait(1 / PER_SECOND):
            self._producer.produce(
                self._topic, str(number), partition=number % PARTITIONS, on_delivery=self._acknowledged
            )
            self._producer.poll(0)
            number += 1
        assert self._producer.flush(180) == 0

    def _acknowledged(self, error: object, message: object) -> None:
        assert error is None, error
        self.values.add(message.value().decode())  # type: ignore[attr-defined]

    @contextlib.contextmanager
    def writing(self) -> Iterator[Feed]:
        """While it writes; afterwards `values` is complete."""
        self._thread.start()
        try:
            yield self
        finally:
            self.stop()

    def stop(self) -> None:
        """Write no more, and wait for the last acknowledgement."""
        self._over.set()
        self._thread.join()


def needs(library: str) -> None:
    try:
        command(library)
    except BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")


def committed(bootstrap: str, group: str, topic: str) -> int:
    """The sum of all committed offsets; -1 while nobody answers."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        found = consumer.committed([TopicPartition(topic, each) for each in range(PARTITIONS)], 10)
        return sum(max(0, each.offset) for each in found)
    except KafkaException:
        return -1
    finally:
        consumer.close()


def await_all_read(party: Party, feed: Feed, what: str) -> None:
    now = set(feed.values)
    party.await_that(f"all is read {what}", lambda: now <= party.values())


def await_more(party: Party, feed: Feed) -> None:
    before = len(feed.values)
    party.await_that("more is acknowledged", lambda: len(feed.values) >= before + PER_SECOND)


def crash_and_leave(party: Party, feed: Feed, members: dict[str, MemberProcess]) -> None:
    """Two are killed, then two leave; others come in their places."""
    for ending, libraries in (("kill", ("kafkajs", "aiokafka")), ("leave", ("kafka-python", "java-3.9.1"))):
        for library in libraries:
            getattr(members[library], ending)()
        await_all_read(party, feed, f"after {ending} of {libraries}")
        party.await_shared(PARTITIONS)
        for library in libraries:
            members[library] = party.add(library)
        party.await_shared(PARTITIONS)


def kill_brokers(cluster: Trio, party: Party, feed: Feed) -> None:
    """The coordinator of the group, then the next one, then the broker that is left."""
    left = {1, 2, 3}
    for _ in range(3):
        cluster.wait_whole("work")
        coordinator = cluster.coordinator_of("party")
        chosen = coordinator if coordinator in left else min(left)
        left.remove(chosen)
        cluster.brokers[chosen - 1].kill()
        await_more(party, feed)  # what is acknowledged from now on was written without it
        await_all_read(party, feed, f"after broker {chosen} was killed")
        cluster.brokers[chosen - 1].start()
    party.await_shared(PARTITIONS)


def restart_static_members(party: Party, members: dict[str, MemberProcess]) -> None:
    """Each is killed and comes back with what it had; the others notice nothing."""
    party.await_calm()
    party.await_shared(PARTITIONS)
    for library in STATIC:
        before = members[library]
        owned = before.owns
        others = {member: len(member.events) for member in party.living if member is not before}
        before.kill()
        members[library] = back = party.add(library, f"fixed-{library}")
        party.await_that(f"{library} has what it had", lambda back=back, owned=owned: back.owns == owned)
        for member, seen in others.items():
            noticed = [event for event in member.events[seen:] if event[0] == "owns"]
            assert not noticed, f"{member.library} noticed that {library} was away: {noticed}"


def test_six_libraries_share_a_group(tmp_path: Path) -> None:
    for library in LIBRARIES:
        needs(library)
    with trio("embedded", tmp_path, SETTINGS) as cluster:
        cluster.admin.create_topics([NewTopic("work", PARTITIONS, 3)])["work"].result(180)
        feed = Feed(cluster.bootstrap, "work")
        with Party(tmp_path, cluster.bootstrap, "party", "work") as party, feed.writing():
            members = {
                library: party.add(library, f"fixed-{library}" if library in STATIC else None) for library in LIBRARIES
            }
            party.await_shared(PARTITIONS)
            crash_and_leave(party, feed, members)
            kill_brokers(cluster, party, feed)
            restart_static_members(party, members)
            feed.stop()
            await_all_read(party, feed, "in the end")
            party.await_that(
                "all is committed", lambda: committed(cluster.bootstrap, "party", "work") == len(feed.values)
            )
            assert set(party.living) == set(members.values()), "nobody ended of itself"
            for member in party.living:
                member.leave()
            assert party.values() == feed.values, "nothing is missed, nothing is made up"
            assert not party.owned_twice()
            assert len(party.generations) >= 5, "joins, crashes, leaves"
        assert not cluster.complaints()
