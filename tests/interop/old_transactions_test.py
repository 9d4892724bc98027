"""Programs with transactions that books about Kafka 1.0 show, by its client: on Ottla as on the broker of that age."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from testbench.apache_kafka import packages
from testbench.apache_kafka.old_broker import VERSION, OldKafkaNode
from testbench.clients import WAIT_S
from testbench.ottla_node import OttlaNode
from testbench.zookeeper import ZooKeeper

from testbench import java_program

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

SOURCE, TARGET = "tp_tx_01", "tp_tx_out_01"
ROWS = [(0, "k1", "v1"), (1, "k2", "v2"), (2, "k3", "v3")]


@pytest.fixture(params=["ottla", "kafka"])
def old_or_new(
    request: pytest.FixtureRequest, node: Callable[..., OttlaNode], zookeeper: ZooKeeper, tmp_path: Path
) -> Iterator[str]:
    """The address of a broker of Ottla, then of one of Kafka 1.0."""
    if request.param == "ottla":
        yield node(group_initial_rebalance_delay_ms="0").bootstrap
        return
    try:
        with OldKafkaNode(tmp_path / "kafka", zookeeper.chroot("/old-transactions")) as broker:
            yield broker.bootstrap
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")


def run_program(name: str, bootstrap: str) -> list[str]:
    """The lines that a program of testbench/java/OldTransactions.java prints."""
    command = java_program.command("OldTransactions", name, bootstrap, version=VERSION)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def read(bootstrap: str, topic: str, isolation: str) -> list[tuple[int, str, str]]:
    """(offset, key, value) of each record up to the end that readers of this isolation level see."""
    settings: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    settings |= {"isolation.level": isolation, "enable.partition.eof": True, "fetch.wait.max.ms": 50}
    consumer = Consumer({**settings, "log_level": 3})
    found: list[tuple[int, str, str]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while (message := consumer.poll(WAIT_S)) is not None:
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                return found
            found.append((message.offset(), message.key().decode(), message.value().decode()))
    finally:
        consumer.close()
    raise AssertionError(f"no end of {topic} in {WAIT_S} s")


def committed_offsets(bootstrap: str, group: str) -> dict[tuple[str, int], int]:
    """The offsets of a group by topic and partition."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(WAIT_S)
    return {(each.topic, each.partition): each.offset for each in asked.topic_partitions if each.offset >= 0}


def test_a_transaction_without_a_commit_and_one_with_offsets_of_another_group(old_or_new: str) -> None:
    assert run_program("produce", old_or_new) == []
    # Closing the producer of that age does not end the transaction: it is open until its timeout.
    assert read(old_or_new, SOURCE, "read_uncommitted") == ROWS
    assert read(old_or_new, SOURCE, "read_committed") == []

    # The second program has the same transactional id, which aborts the transaction of the first. Its consumer reads
    # uncommitted, and so aborted, records.
    assert run_program("transform", old_or_new) == [f"{offset} {key} {value}" for offset, key, value in ROWS]
    assert read(old_or_new, SOURCE, "read_uncommitted") == ROWS
    assert read(old_or_new, SOURCE, "read_committed") == []
    assert read(old_or_new, TARGET, "read_committed") == ROWS
    # A group without members takes the offsets, which are those of the last records and not the next ones. The
    # consumer's own group has none: the program copies all records again whenever it runs.
    assert committed_offsets(old_or_new, "consumer_grp_id_1") == {(SOURCE, 0): 2}
    assert committed_offsets(old_or_new, "consumer_grp_02") == {}
