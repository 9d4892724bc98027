"""The dump tools of Apache Kafka and our own read the files of a broker that runs: transactions, commits, rolls.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from testbench.ottla_node import OttlaNode
from tests.interop.dump_log_test import COMPLAINTS, assert_same, kafkas, ours

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

TOPIC = "transactional"
KINDS = (".log", ".index", ".timeindex", ".txnindex")
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "2048"}
ROUNDS = (True, False, True, False, True, False)
"""Which transactions are committed; each has a third of a segment, or a little more."""
RECORDS = 70
OPTIONS = (("--deep-iteration", "--verify-index-only"), ("--deep-iteration",), ("--deep-iteration", "--print-data-log"))


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OttlaNode]:
    """A broker that runs, with an open transaction and committed offsets; nothing is written any more."""
    with OttlaNode(tmp_path_factory.mktemp("living") / "data") as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=SMALL)])[TOPIC].result(180)
        producer = Producer(
            {"bootstrap.servers": node.bootstrap, "transactional.id": "writer", "batch.num.messages": 5}
        )
        write_transactions(producer)
        read_and_commit(node.bootstrap)
        yield node
        assert node.alive
        assert not node.complaints(0)


def write_transactions(producer: Producer) -> None:
    """The last one stays open."""
    producer.init_transactions(180)
    for is_committed in ROUNDS:
        producer.begin_transaction()
        for number in range(RECORDS):
            producer.produce(TOPIC, bytes(6_000), b"%d" % number)
            producer.poll(0)
        assert producer.flush(180) == 0
        (producer.commit_transaction if is_committed else producer.abort_transaction)(180)
    producer.begin_transaction()
    producer.produce(TOPIC, b"open")
    assert producer.flush(180) == 0


def read_and_commit(bootstrap: str) -> None:
    """What is committed, and no more."""
    settings = {"group.id": "readers", "isolation.level": "read_committed", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        assert len(consumer.consume(sum(ROUNDS) * RECORDS, 180)) == sum(ROUNDS) * RECORDS
        consumer.commit(asynchronous=False)
    finally:
        consumer.close()


def files_of(directory: Path) -> list[str]:
    return sorted(str(each) for each in directory.iterdir() if each.suffix in KINDS)


def written(data: Path) -> list[str]:
    """The files of the topic, and of the partitions of internal topics that have records."""
    internal = [each for each in data.glob("__*-*") if not each.name.startswith("__znodes")]
    used = [each for each in internal if any(log.stat().st_size for log in each.glob("*.log"))]
    assert {each.name.rpartition("-")[0] for each in used} == {"__consumer_offsets", "__transaction_state"}
    return [file for each in (data / f"{TOPIC}-0", *sorted(used)) for file in files_of(each)]


@pytest.mark.parametrize("options", OPTIONS, ids=" ".join)
@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_the_dump_of_a_living_log_has_no_mismatch(living: OttlaNode, version: str, options: tuple[str, ...]) -> None:
    files = written(living.data)
    assert sum("/transactional-0/" in each and each.endswith(".log") for each in files) >= 3, "it has rolled"
    theirs = kafkas(version, files, *options)
    complaints = [line for line in theirs if any(word in line for word in COMPLAINTS)]
    assert not complaints, complaints[:10]
    if version == "4.4.0":
        assert_same(theirs, ours(files, *options))


@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_the_indexes_of_a_living_log_are_sane(living: OttlaNode, version: str) -> None:
    indexes = [each for each in files_of(living.data / f"{TOPIC}-0") if each.endswith(("index", ".timeindex"))]
    indexes = [each for each in indexes if not each.endswith(".txnindex")]
    checked = kafkas(version, indexes, "--index-sanity-check")
    sane = [line for line in checked if "passed sanity check." in line or "is empty." in line]
    assert len(sane) == len(indexes), checked
    assert sum("passed sanity check." in line for line in sane) >= 4, "those of two closed segments at least"


@pytest.mark.parametrize("version", ["4.4.0", "3.9.1"])
def test_the_transaction_indexes_of_a_living_log_have_each_aborted_transaction(living: OttlaNode, version: str) -> None:
    indexes = [each for each in files_of(living.data / f"{TOPIC}-0") if each.endswith(".txnindex")]
    lines = kafkas(version, indexes)
    aborted = [line.split() for line in lines if line.startswith("version:")]
    firsts = [at * (RECORDS + 1) for at, is_committed in enumerate(ROUNDS) if not is_committed]
    assert [(int(words[5]), int(words[7])) for words in aborted] == [(first, first + RECORDS) for first in firsts]
    logs = [each for each in files_of(living.data / f"{TOPIC}-0") if each.endswith(".log")]
    assert Path(indexes[-1]).stem == Path(logs[-1]).stem, "the last one ended in the segment that is written to"
    if version == "4.4.0":
        assert_same(lines, ours(indexes))
