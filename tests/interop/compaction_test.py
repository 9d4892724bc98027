"""A compacted topic, as clients and tools that nobody here wrote see it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from testbench.ottla_node import OttlaNode
from tests.interop.dump_log_test import COMPLAINTS, assert_same, kafkas, ours

from ottla.storage.checkpoints import parse_offsets
from ottla.types import TopicPartition

pytestmark = [pytest.mark.interop, pytest.mark.slow]

SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "40000",
    "index.interval.bytes": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "600000",
}
KEYS = 40
TXN_KEYS = 10
TOPIC = "changes"


def make(bootstrap: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=SETTINGS)]).values():
        future.result(60)


def write(bootstrap: str) -> dict[bytes, bytes | None]:
    """Values, deletions and transactions, some of them aborted; the last value of each key."""
    from confluent_kafka import Producer

    last: dict[bytes, bytes | None] = {}
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "batch.num.messages": 20, "acks": "all"})
    for number in range(1500):
        key, value = b"key %d" % (number * 7 % KEYS), b"value %d " % number * 5
        plain.produce(TOPIC, value, key, partition=0)
        last[key] = value
    for number in range(0, KEYS, 4):
        plain.produce(TOPIC, None, b"key %d" % number, partition=0)
        last[b"key %d" % number] = None
    plain.flush(60)
    for turn in range(12):
        writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": f"writer {turn % 3}"})
        writer.init_transactions(60)
        writer.begin_transaction()
        commits = turn % 4 != 3
        for number in range(TXN_KEYS):
            key, value = b"in transactions %d" % number, b"%d %d" % (turn, commits) * 30
            writer.produce(TOPIC, value, key, partition=0)
            if commits:
                last[key] = value
        writer.flush(60)
        (writer.commit_transaction if commits else writer.abort_transaction)(60)
    for number in range(1500):
        plain.produce(TOPIC, b"filler " * 10, b"filler %d" % (number % 5), partition=0)
    plain.flush(60)
    last |= {b"filler %d" % number: b"filler " * 10 for number in range(5)}
    return last


def read_confluent(bootstrap: str) -> list[tuple[int, bytes | None, bytes | None]]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    found = []
    end = time.monotonic() + 120
    while time.monotonic() < end:
        message = consumer.poll(1)
        if message is not None and message.error():
            break
        if message is not None:
            found.append((message.offset(), message.key(), message.value()))
    consumer.close()
    return found


def read_kafka_python(bootstrap: str) -> list[tuple[int, bytes | None, bytes | None]]:
    import kafka

    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    place = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([place])
    consumer.seek_to_beginning(place)
    end, found = consumer.end_offsets([place])[place], []
    limit = time.monotonic() + 120
    while consumer.position(place) < end and time.monotonic() < limit:
        for messages in consumer.poll(1000).values():
            found += [(message.offset, message.key, message.value) for message in messages]
    consumer.close()
    return found


def wait_until_clean(node: OttlaNode) -> None:
    """Until compaction has come up to the active segment."""
    log = next(node.data.rglob(f"{TOPIC}-0"))
    checkpoint, end = log.parent / "cleaner-offset-checkpoint", time.monotonic() + 120
    while time.monotonic() < end:
        active = max(int(each.stem) for each in log.glob("*.log"))
        if checkpoint.exists() and parse_offsets(checkpoint.read_bytes()).get(TopicPartition(TOPIC, 0)) == active:
            return
        time.sleep(0.05)
    raise AssertionError("it is never compacted up to its active segment")


@pytest.fixture
def compacted(node: Callable[..., OttlaNode]) -> tuple[OttlaNode, dict[bytes, bytes | None]]:
    made = node(log_cleaner_backoff_ms="100", log_segment_delete_delay_ms="0")
    make(made.bootstrap)
    last = write(made.bootstrap)
    wait_until_clean(made)
    return made, last


def test_clients_see_the_last_value_of_every_key(compacted: tuple[OttlaNode, dict[bytes, bytes | None]]) -> None:
    node, last = compacted
    for read in (read_confluent, read_kafka_python):
        found = read(node.bootstrap)
        assert len(found) < 1500, "of more than three thousand"
        offsets = [offset for offset, _, _ in found]
        assert offsets == sorted(set(offsets))
        assert {key: value for _, key, value in found} == last
    node.stop()
    node.start()
    assert {key: value for _, key, value in read_confluent(node.bootstrap)} == last


@pytest.mark.kafka
def test_kafkas_dump_tool_has_nothing_to_complain_about(compacted: tuple[OttlaNode, object]) -> None:
    node, _ = compacted
    node.stop()
    files = _files(next(node.data.rglob(f"{TOPIC}-0")))
    logs = [each for each in files if each.endswith(".log")]
    shown = kafkas("4.4.0", logs, "--deep-iteration", "--print-data-log")
    assert not [line for line in shown if any(word in line for word in (*COMPLAINTS, "isvalid: false"))]
    assert any("deleteHorizonMs: OptionalLong[" in line for line in shown)
    assert any("endTxnMarker: ABORT" in line for line in shown)
    assert_same(shown, ours(logs, "--deep-iteration", "--print-data-log"))
    indexes = [each for each in files if not each.endswith(".log")]
    sane = kafkas("4.4.0", indexes, "--index-sanity-check")
    assert not [line for line in sane if any(word in line for word in COMPLAINTS)]


def _files(log: Path) -> list[str]:
    return sorted(str(each) for each in log.iterdir() if each.suffix in (".log", ".index", ".timeindex", ".txnindex"))
