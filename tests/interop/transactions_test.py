"""librdkafka copies records exactly once; Apache Kafka's tool and its producer see our transactions."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from testbench.apache_kafka import packages, tools
from testbench.trio import trio
from tests.hanging import EPOCH, PRODUCER_ID, hang

pytestmark = [pytest.mark.interop, pytest.mark.slow]

RECORDS = 200
BATCH = 20
STAYS = {"metadata.recovery.strategy": "none"}
"""librdkafka 2.11 and later turns to the bootstrap servers again when all brokers it knows seem gone, and drops their
objects (KIP-899); a TxnOffsetCommit that it was about to send then is never sent, until the transaction is too old."""


def create(bootstrap: str, *topics: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for made in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        made.result(180)


def fill(bootstrap: str, topic: str) -> list[bytes]:
    producer = Producer({"bootstrap.servers": bootstrap})
    values = [b"%d" % at for at in range(RECORDS)]
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(180) == 0
    return values


def transactional(bootstrap: str, name: str, timeout_ms: int = 60_000) -> Producer:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "log_level": 0} | STAYS
    producer = Producer(settings | {"transaction.timeout.ms": timeout_ms})
    producer.init_transactions(30)
    return producer


def read(bootstrap: str, topic: str, isolation: str, group: str | None = None) -> list[bytes]:
    """All values up to the end."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": group or f"{topic}-{isolation}",
        "isolation.level": isolation,
        "enable.partition.eof": True,
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    while True:
        message = consumer.poll(180)
        assert message is not None, "neither records nor the end"
        if message.error():
            consumer.close()
            return values
        values.append(message.value())


def copy(bootstrap: str, source: str, target: str) -> None:
    """Consume, transform, produce; every third transaction is aborted and done again."""
    settings = {
        "bootstrap.servers": bootstrap,
        "group.id": f"{source}-copy",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }
    consumer = Consumer(settings)
    consumer.subscribe([source])
    producer = transactional(bootstrap, f"{source}-copy")
    done, attempts = 0, 0
    while done < RECORDS:
        messages = consumer.consume(min(BATCH, RECORDS - done), 30)
        assert messages, "the source has more"
        attempts += 1
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value())
        positions = [TopicPartition(source, 0, messages[-1].offset() + 1)]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
        if attempts % 3 == 0:
            assert producer.flush(180) == 0, "else they are purged before they were sent"
            producer.abort_transaction(30)
            consumer.seek(TopicPartition(source, 0, messages[0].offset()))
        else:
            producer.commit_transaction(30)
            done += len(messages)
    (committed,) = consumer.committed([TopicPartition(source, 0)], 30)
    assert committed.offset == RECORDS
    consumer.close()


def test_every_record_is_copied_once(bootstrap: str, topic: str) -> None:
    source, target = f"{topic}-from", f"{topic}-to"
    create(bootstrap, source, target)
    values = fill(bootstrap, source)
    copy(bootstrap, source, target)
    assert read(bootstrap, target, "read_committed") == values
    assert len(read(bootstrap, target, "read_uncommitted")) > RECORDS, "the aborted ones are there, too"


def test_a_producer_is_fenced_by_its_successor(bootstrap: str, topic: str) -> None:
    create(bootstrap, topic)
    first = transactional(bootstrap, topic)
    first.begin_transaction()
    first.produce(topic, b"first")
    assert first.flush(180) == 0
    second = transactional(bootstrap, topic)
    second.begin_transaction()
    second.produce(topic, b"second")
    second.commit_transaction(30)
    with pytest.raises(KafkaException, match=r"fenced|FENCED|INVALID_PRODUCER_EPOCH"):
        first.commit_transaction(30)
    assert read(bootstrap, topic, "read_committed") == [b"second"]


def patiently(call: Callable[[float], None]) -> None:
    """Again while librdkafka says that this makes sense: nobody knows the outcome before."""
    deadline = time.monotonic() + 180
    while True:
        try:
            call(20)
            return
        except KafkaException as failed:
            if not failed.args[0].retriable() or time.monotonic() > deadline:
                raise


def move(consumer: Consumer, producer: Producer, target: str) -> bool:
    """Some records in one transaction; whether it was committed.

    The generation is asked for first: of one that began behind the records it would be a lie, and they would be
    written twice.
    """
    group = consumer.consumer_group_metadata()
    messages = consumer.consume(BATCH, 5)
    if not messages:
        return True
    first, last = messages[0], messages[-1]
    positions = [TopicPartition(first.topic(), 0, last.offset() + 1)]
    try:
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value())
        patiently(lambda wait_s: producer.send_offsets_to_transaction(positions, group, wait_s))
        patiently(producer.commit_transaction)
    except KafkaException as failed:
        if not failed.args[0].txn_requires_abort():
            raise
        patiently(producer.abort_transaction)
        if consumer.assignment():  # else it is not its partition any more, and comes back at what is committed
            consumer.seek(TopicPartition(first.topic(), 0, first.offset()))
        return False
    return True


def test_brokers_are_killed_while_records_are_copied(tmp_path: Path) -> None:
    """Each of the three once: coordinators of the transaction and of the group, and the leader, are among them."""
    with trio("embedded", tmp_path, {"default.replication.factor": "3", "min.insync.replicas": "2"}) as cluster:
        made = cluster.admin.create_topics([NewTopic(name, 1, 3) for name in ("source", "target")])
        for each in made.values():
            each.result(180)
        expected = fill(cluster.bootstrap, "source")
        settings = {"group.id": "copy", "enable.auto.commit": False, "auto.offset.reset": "earliest", "log_level": 0}
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "isolation.level": "read_committed"} | settings)
        consumer.subscribe(["source"])
        producer = transactional(cluster.bootstrap, "copy")
        for broker in cluster.brokers:
            move(consumer, producer, "target")
            cluster.wait_whole("source", "target", "__consumer_offsets", "__transaction_state")
            broker.kill()
            move(consumer, producer, "target")
            broker.start()
        cluster.wait_whole("source", "target", "__consumer_offsets", "__transaction_state")
        deadline = time.monotonic() + 180
        while (found := read(cluster.bootstrap, "target", "read_committed")) != expected:
            assert found == expected[: len(found)], "nothing twice, nothing out of order"
            assert time.monotonic() < deadline, f"{len(found)} records of {RECORDS}"
            move(consumer, producer, "target")
        consumer.close()
        assert not cluster.complaints()


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_apache_kafkas_tool_sees_transactions(bootstrap: str, topic: str, version: str) -> None:
    try:
        packages.class_path(version, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")

    def run(*words: str) -> str:
        done = tools.run(version, "kafka-transactions", "--bootstrap-server", bootstrap, *words)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    create(bootstrap, topic)
    producer = transactional(bootstrap, topic, 900_000)  # a busy machine takes its time to start Java four times
    producer.begin_transaction()
    producer.produce(topic, b"x")
    assert producer.flush(180) == 0
    assert re.search(rf"^{re.escape(topic)}\s+\d+\s+\d+\s+Ongoing", run("list"), re.MULTILINE)
    if version != "3.9.1":  # KIP-1152 came with 4.1
        assert topic in run("list", "--transactional-id-pattern", f"{topic[:6]}.*")
        assert topic not in run("list", "--transactional-id-pattern", f"{topic[:6]}|nobody.*")
    described = run("describe", "--transactional-id", topic)
    name = re.escape(topic)
    assert re.search(rf"{name}\s+\d+\s+\d+\s+Ongoing\s+900000\s+\d+\s+\d+\s+{name}-0", described)
    assert len(run("describe-producers", "--topic", topic, "--partition", "0").splitlines()) == 2
    assert len(run("find-hanging", "--topic", topic).splitlines()) <= 1, "nothing hangs"
    producer.commit_transaction(30)


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_apache_kafkas_tool_ends_what_hangs(node, topic: str, version: str) -> None:
    broker = node(transaction_partition_verification_enable="false")

    def run(*words: str, fails: bool = False) -> str:
        done = tools.run(version, "kafka-transactions", "--bootstrap-server", broker.bootstrap, *words)
        assert fails or done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if fails else "")

    place = ("--topic", topic, "--partition", "0")
    by_start = ["--start-offset", "0"]
    # As brokers before 3.0 need it; the marker of the first one has told which epoch its coordinator had.
    by_producer = ["--producer-id", str(PRODUCER_ID), "--producer-epoch", str(EPOCH), "--coordinator-epoch", "0"]
    create(broker.bootstrap, topic)
    for sequence, (words, known) in enumerate(((by_start, -1), (by_producer, 0))):
        hang(broker.bootstrap, topic, 0, sequence)
        row = rf"^{re.escape(topic)}\s+0\s+{PRODUCER_ID}\s+{EPOCH}\s+{known}\s+\d+\s"
        assert re.search(row, run("find-hanging", "--broker-id", "1"), re.MULTILINE)
        assert re.search(row, run("find-hanging", "--topic", topic), re.MULTILINE)
        assert re.search(rf"^{PRODUCER_ID}\s+{EPOCH}\s", run("describe-producers", *place), re.MULTILINE)
        assert read(broker.bootstrap, topic, "read_committed") == []
        run("abort", *place, *words)
        assert len(run("find-hanging", "--broker-id", "1").splitlines()) <= 1
    assert read(broker.bootstrap, topic, "read_committed") == []
    assert len(read(broker.bootstrap, topic, "read_uncommitted")) == 2
    said = run("abort", *place, "--start-offset", "0", fails=True)
    assert "Could not find any open transactions starting at offset 0" in said


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_apache_kafkas_producer_writes_in_transactions(bootstrap: str, topic: str, version: str) -> None:
    """Hundreds of short ones, each right behind the other."""
    try:
        packages.class_path(version, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")
    create(bootstrap, topic)
    words = ["--topic", topic, "--num-records", "3000", "--record-size", "10", "--throughput", "1000"]
    words += ["--transactional-id", topic, "--transaction-duration-ms", "10"]
    done = tools.run(version, "kafka-producer-perf-test", *words, "--producer-props", f"bootstrap.servers={bootstrap}")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert re.search(r"3000 records sent", done.stdout)
    assert len(read(bootstrap, topic, "read_committed")) == 3000
