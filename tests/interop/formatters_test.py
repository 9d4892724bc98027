"""Kafka's formatters, of two generations, print our internal topics; ours print the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from testbench.apache_kafka import packages, tools
from testbench.ottla_node import OttlaNode

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

VERSIONS = ("4.4.0", "3.9.1")
FORMATTERS = {
    "OffsetsMessageFormatter": "__consumer_offsets",
    "GroupMetadataMessageFormatter": "__consumer_offsets",
    "TransactionLogMessageFormatter": "__transaction_state",
}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """A broker whose internal topics hold everything that groups and transactions write; one partition each."""
    settings = {"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "1"}
    with OttlaNode(tmp_path_factory.mktemp("formatters") / "data", settings) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic("work", 2, 1)])["work"].result(180)
        groups(node.bootstrap, admin)
        transactions(node.bootstrap)
        yield node


def groups(bootstrap: str, admin: AdminClient) -> None:
    """A member's generations, offsets with and without metadata, and what is deleted again."""
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("work", b"x", partition=0)
    assert producer.flush(180) == 0
    for group, extra in (("classic", {}), ("static", {"group.instance.id": "one"}), ("gone", {})):
        settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **extra}
        consumer = Consumer({"bootstrap.servers": bootstrap, "log_level": 0, **settings})
        consumer.subscribe(["work"])
        message = consumer.poll(180)
        assert message is not None
        consumer.commit(message, asynchronous=False)
        consumer.commit(offsets=[TopicPartition("work", 1, 0, metadata='é € "quoted"')], asynchronous=False)
        consumer.close()
    admin.delete_consumer_groups(["gone"])["gone"].result(180)
    wanted = ConsumerGroupTopicPartitions("classic", [TopicPartition("work", 1, 7)])
    admin.alter_consumer_group_offsets([wanted])["classic"].result(180)


def transactions(bootstrap: str) -> None:
    """One committed with offsets, one aborted with offsets, one that is open."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "copy", "log_level": 0})
    settings = {"transactional.id": "copier", "transaction.timeout.ms": 600_000, "log_level": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(30)
    for at, end in enumerate((producer.commit_transaction, producer.abort_transaction, producer.flush)):
        producer.begin_transaction()
        producer.produce("work", b"x", partition=at % 2)
        positions = [TopicPartition("work", 0, at)]
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 30)
        assert producer.flush(180) == 0
        end(30)
    consumer.close()


def ours(broker: OttlaNode, topic: str, *words: str) -> list[str]:
    """The lines that `ottla consume` prints of a topic."""
    command = [sys.executable, "-m", "ottla", "consume", topic, "--from-beginning", "--exit-at-end"]
    words = (*words, "--bootstrap-server", broker.bootstrap)
    done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def theirs(version: str, broker: OttlaNode, topic: str, formatter: str) -> list[str]:
    """The lines that Kafka's console consumer prints of it, joining no group, so that nothing is added meanwhile."""
    count = len(ours(broker, topic, "-o", "jsonl"))
    words = ["--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(count)]
    words += ["--timeout-ms", "60000", "--formatter", f"org.apache.kafka.tools.consumer.{formatter}"]
    done = tools.run(version, "kafka-console-consumer", "--bootstrap-server", broker.bootstrap, *words)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout.replace('}{"key"', '}\n{"key"').splitlines()


def data(line: str) -> tuple[Any, Any, Any]:
    """What the record is about: 3.9.1 names the types in another way than 4.4.0, and knows no previous producer id."""
    row = json.loads(line)
    value = row["value"] or {}
    found = value.get("data")
    if isinstance(found, dict):
        found.pop("previousProducerId", None)
    return row["key"]["data"], int(value.get("version", -1)), found


@pytest.mark.parametrize("formatter", FORMATTERS)
@pytest.mark.parametrize("version", VERSIONS)
def test_they_print_what_ours_print(filled: OttlaNode, version: str, formatter: str) -> None:
    try:
        packages.class_path(version, "tools")
    except packages.BenchError as error:
        pytest.fail(f"{error} (testbench/setup does it)")
    topic = FORMATTERS[formatter]
    own = ours(filled, topic, "--formatter", formatter)
    shown = theirs(version, filled, topic, formatter)
    assert len(own) >= 6, own
    assert [data(line) for line in shown] == [data(line) for line in own]
    if version == "4.4.0":
        assert shown == own, "to the byte"


def test_what_was_written_is_what_is_printed(filled: OttlaNode) -> None:
    """Both could be wrong in the same way: some values by hand."""
    offsets = [data(line) for line in ours(filled, "__consumer_offsets", "--formatter", "offsets")]
    last = {(key["group"], key["partition"]): value for key, _, value in offsets}
    assert last["classic", 1]["offset"] == 7
    assert last["static", 1]["metadata"] == 'é € "quoted"\0', "confluent-kafka sends the end of its string, too"
    assert last["gone", 0] is None
    assert last["gone", 1] is None
    assert last["copy", 0]["offset"] in (0, 1, 2)
    lines = ours(filled, "__transaction_state", "--formatter", "transactions")
    states = {value["transactionStatus"] for _, _, value in map(data, lines)}
    assert states == set(range(6)), "from Empty over Ongoing to CompleteAbort"


@pytest.mark.parametrize("version", VERSIONS)
def test_kafkas_dump_decodes_our_transactions(filled: OttlaNode, version: str) -> None:
    logs = sorted(str(path) for path in Path(filled.data).glob("__transaction_state-*/*.log"))
    done = tools.run(version, "kafka-dump-log", "--transaction-log-decoder", "--files", ",".join(logs))
    assert done.returncode == 0, done.stderr
    named = "transactionalId=copier" if version.startswith("3") else '"transactionalId":"copier"'
    assert named in done.stdout
    assert "isvalid: false" not in done.stdout
