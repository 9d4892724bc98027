"""Reads committed records with a third-party client: librdkafka.

Zone: real.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ottla.client.batch_transaction import BatchTransaction, ConnectionCache
from ottla.client.settings import ClientConfig


def committed(bootstrap: str, topic: str) -> Iterator[str]:
    """All values that a read_committed reader gets, up to the first open transaction."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "verify", "enable.partition.eof": True}
    consumer = Consumer({**settings, "isolation.level": "read_committed", "enable.auto.commit": False})
    try:
        partitions = consumer.list_topics(topic, 10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
        at_end: set[int] = set()
        while len(at_end) < len(partitions):
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    yield message.value().decode()
                elif error.code() == KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
                # Any other error is due to a broker that is down; librdkafka continues when it is back.
    finally:
        consumer.close()


def await_markers(bootstrap: str, topic: str, patience_s: float) -> None:
    """Wait until no transaction is open in a topic, at most that long: a coordinator answers EndTxn before it writes
    the markers, and writes them later if it, or a leader, dies at that moment."""
    deadline = time.monotonic() + patience_s
    while not _nothing_open(bootstrap, topic) and time.monotonic() < deadline:
        time.sleep(0.05)


def _nothing_open(bootstrap: str, topic: str) -> bool:
    """Whether the last stable offset is at the end of the log; False while there is no leader."""
    try:
        return _ends(bootstrap, topic, "read_committed") == _ends(bootstrap, topic, "read_uncommitted")
    except KafkaException:
        return False


def _ends(bootstrap: str, topic: str, isolation: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": isolation})
    try:
        numbers = consumer.list_topics(topic, 10).topics[topic].partitions
        return [consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1] for number in sorted(numbers)]
    finally:
        consumer.close()


def end_what_is_open(bootstrap: str, checkpoint: Path, partitions: int) -> None:
    """Take the transactional ids of a query that is not running. This aborts open transactions of its tasks, which
    would hide later records from read_committed readers."""
    query = json.loads((checkpoint / "metadata").read_text())["id"]
    links = ConnectionCache(ClientConfig(bootstrap_servers=bootstrap))
    try:
        for number in range(partitions):
            BatchTransaction(links, f"ottla-{query}-sink-{number}", 60_000).fence_producer()
    finally:
        links.close_connections()


def apart(bootstrap: str, group: str, source: str, sink: str, home: Callable[[int], int]) -> dict[int, tuple[int, int]]:
    """Partitions of the source whose group offset differs from the number of their rows in the sink, with both.

    For a source whose offsets are its rows, and a sink with `x-` and the number of each. `home`: partition of a row.
    """
    found = Counter(home(int(value[2:])) for value in committed(bootstrap, sink))
    # Without read_committed, or librdkafka waits for transactions of drivers that were killed.
    settings = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_uncommitted"}
    consumer = Consumer(settings)
    try:
        numbers = consumer.list_topics(source, 10).topics[source].partitions
        offsets = consumer.committed([TopicPartition(source, number) for number in numbers], 30)
        both = {each.partition: (max(0, each.offset), found[each.partition]) for each in offsets}
    finally:
        consumer.close()
    return {number: pair for number, pair in both.items() if pair[0] != pair[1]}
