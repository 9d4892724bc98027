"""Four libraries copy a topic exactly once while they and the brokers are killed, each three times.

Apache Kafka's TransactionalMessageCopier and Kafka Streams (exactly_once_v2), librdkafka and aiokafka, side by side
on one cluster. kafka-python, which is none of them, reads what came out. OTTLA_COPY_MESSAGES says how many records;
`make copies` takes 100,000.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewTopic
from testbench.apache_kafka.packages import BenchError
from testbench.copiers import COPIERS, Copier
from testbench.trio import Trio, trio

MESSAGES = int(os.environ.get("OTTLA_COPY_MESSAGES", "6000"))
ROUNDS = 3
PARTITIONS = 3
SETTINGS = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "group.initial.rebalance.delay.ms": "0",
    "zookeeper.session.timeout.ms": "6000",  # nobody but who was killed may lose it, however busy the machine is
    # Streams comes back under another transactional id: what it left open ends by its timeout.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
INTERNAL = ("__consumer_offsets", "__transaction_state")
WAIT_S = 180 + MESSAGES // 200

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow, pytest.mark.timeout(2 * WAIT_S * ROUNDS)]

Values = dict[int, list[str]]


def feed(bootstrap: str, topic: str, first: int, count: int) -> None:
    """Numbers, each into the partition of its rest."""
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def report(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for number in range(first, first + count):
        producer.produce(topic, str(number), partition=number % PARTITIONS, on_delivery=report)
        producer.poll(0)
    assert producer.flush(180) == 0
    assert not failed


class Positions:
    """How far the copiers are, by what is committed. These consumers join nothing, they only ask."""

    def __init__(self, bootstrap: str, copiers: list[Copier]) -> None:
        common = {"bootstrap.servers": bootstrap, "log_level": 0}
        self._consumers = {copier: Consumer({**common, "group.id": copier.group}) for copier in copiers}
        self._parts = [TopicPartition("source", each) for each in range(PARTITIONS)]

    def of(self, copier: Copier) -> int | None:
        """How many records are copied and committed; None while nobody answers."""
        try:
            found = self._consumers[copier].committed(self._parts, 2)
        except KafkaException:
            return None
        return None if any(each.error for each in found) else sum(max(0, each.offset) for each in found)

    def close(self) -> None:
        """Ask no more."""
        for consumer in self._consumers.values():
            consumer.close()


@contextlib.contextmanager
def copying(copiers: list[Copier]) -> Iterator[None]:
    """Whatever happens, they are gone afterwards."""
    try:
        yield
    finally:
        for copier in copiers:
            copier.kill()


class Round:
    """A share of the input: in the midst of it every copier is killed once, and one broker."""

    def __init__(
        self, cluster: Trio, copiers: list[Copier], positions: Positions, number: int, rng: random.Random
    ) -> None:
        self._cluster, self._copiers, self._positions = cluster, copiers, positions
        self._start, self._end = (MESSAGES * at // ROUNDS for at in (number, number + 1))
        share = self._end - self._start
        self._marks = {copier: self._start + rng.uniform(0.1, 0.6) * share for copier in copiers}
        self._broker = cluster.brokers[number]
        self._broker_mark = self._start + rng.uniform(0.1, 0.7) * share
        self._done = dict.fromkeys(copiers, self._start)

    def run(self) -> None:
        """Feed, kill, and wait until everybody has copied all."""
        feed(self._cluster.bootstrap, "source", self._start, self._end - self._start)
        deadline = time.monotonic() + WAIT_S
        while min(self._done.values()) < self._end or self._marks:
            for copier in self._copiers:
                self._look_after(copier)
            assert time.monotonic() < deadline, f"stuck at {self._shown()} of {self._end}"
            time.sleep(0.02)
        self._broker.start()
        self._cluster.wait_whole("source", *(copier.target for copier in self._copiers), *INTERNAL)

    def _look_after(self, copier: Copier) -> None:
        if self._done[copier] < self._end:
            copier.keep_running()
        found = self._positions.of(copier)
        if found is None:
            return
        assert found >= self._done[copier], f"{copier.library}: what was committed is gone: {found}"
        self._done[copier] = found
        if found >= self._marks.get(copier, MESSAGES + 1):
            del self._marks[copier]
            copier.keep_running()  # one that has just ended of itself is not let off
            copier.kill()
        self._kill_the_broker(found)

    def _kill_the_broker(self, reached: int) -> None:
        """Once, when the first copier has got there."""
        if reached >= self._broker_mark:
            self._broker_mark = MESSAGES + 1
            self._broker.kill()

    def _shown(self) -> str:
        said = "".join(f"\n{copier.library} ({copier.starts} starts): {copier.tail()}" for copier in self._copiers)
        return f"{ {copier.library: done for copier, done in self._done.items()} }{said}"


def read_committed(bootstrap: str, topic: str) -> Values:
    """Everything up to the end, by kafka-python. No transaction may be open any more."""
    from kafka import KafkaConsumer
    from kafka import TopicPartition as Place

    parts = [Place(topic, each) for each in range(PARTITIONS)]
    settings = {"bootstrap_servers": bootstrap, "group_id": None}
    consumer = KafkaConsumer(isolation_level="read_committed", auto_offset_reset="earliest", **settings)
    plain = KafkaConsumer(isolation_level="read_uncommitted", **settings)
    values: Values = {each: [] for each in range(PARTITIONS)}
    try:
        consumer.assign(parts)
        ends = plain.end_offsets(parts)
        deadline = time.monotonic() + 180
        while any(consumer.position(part) < ends[part] for part in parts):
            assert time.monotonic() < deadline, f"{topic}: at {[consumer.position(part) for part in parts]} of {ends}"
            for part, messages in consumer.poll(500).items():
                values[part.partition] += [each.value.decode() for each in messages]
    finally:
        consumer.close()
        plain.close()
    return values


def assert_same(source: Values, target: Values, library: str) -> None:
    wanted, found = (Counter(value for part in each.values() for value in part) for each in (source, target))
    missing, more = sorted((wanted - found).elements()), sorted((found - wanted).elements())
    assert not missing, f"{library}: {len(missing)} records are missing: {missing[:10]}"
    assert not more, f"{library}: {len(more)} records twice, or never written: {more[:10]}"
    assert target == source, f"{library}: in another order"


def test_what_comes_out_is_what_went_in(tmp_path: Path) -> None:
    rng = random.Random(os.environ.get("OTTLA_COPY_SEED", "1"))
    with trio("embedded", tmp_path / "cluster", SETTINGS) as cluster:
        try:
            copiers = [Copier(each, tmp_path / "copiers", cluster.bootstrap, "source") for each in COPIERS]
        except BenchError as error:
            pytest.fail(f"{error} (testbench/setup does it)")
        topics = ["source", *(copier.target for copier in copiers)]
        for made in cluster.admin.create_topics([NewTopic(each, PARTITIONS, 3) for each in topics]).values():
            made.result(180)
        with copying(copiers), contextlib.closing(Positions(cluster.bootstrap, copiers)) as positions:
            for number in range(ROUNDS):
                Round(cluster, copiers, positions, number, rng).run()
            for copier in copiers:
                copier.end()
        source = read_committed(cluster.bootstrap, "source")
        assert sorted(int(value) for part in source.values() for value in part) == list(range(MESSAGES))
        for copier in copiers:
            assert copier.killed == ROUNDS
            assert_same(source, read_committed(cluster.bootstrap, copier.target), copier.library)
        assert not cluster.complaints()
