"""A broker with real events in a topic, and names for what a test makes in PostgreSQL."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

import pytest
from testbench.postgres import Postgres

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer, TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.server.embedded import EmbeddedBroker

EVENTS = Path(__file__).parent.parent / "data" / "file-changes.jsonl.gz"
PARTITIONS = 2
RECORDS = 3000


class Changes(NamedTuple):
    """The first real events in a topic, and what is to come out."""

    bootstrap: str
    topic: str
    partitions: tuple[TopicPartition, ...]
    added: Counter[str]
    """Lines added per folder."""

    def consumer(self, **settings: str) -> Consumer:
        more = {key.replace("_", "."): value for key, value in settings.items()}
        given = {"bootstrap.servers": self.bootstrap, "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
        return Consumer({**given, **more})


def folder_and_lines(record: ConsumerRecord) -> tuple[str, int]:
    event = json.loads(record.value)
    return event["path"].split("/")[0], event["added"]


@pytest.fixture(scope="session")
def changes() -> Iterator[Changes]:
    added: Counter[str] = Counter()
    with EmbeddedBroker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        settings = {"bootstrap.servers": broker.bootstrap}
        with Cluster(ClientConfig.from_mapping(settings)) as cluster:
            Admin(cluster).create_topics([NewTopic("changes", PARTITIONS, 1, {"retention.ms": "-1"})])
        with Producer(settings) as producer, gzip.open(EVENTS) as lines:
            for line in islice(lines, RECORDS):
                event = json.loads(line)
                added[event["path"].split("/")[0]] += event["added"]
                producer.send("changes", line.rstrip(), key=event["commit"].encode())
        places = tuple(TopicPartition("changes", number) for number in range(PARTITIONS))
        yield Changes(broker.bootstrap, "changes", places, added)


_numbers = count()


@pytest.fixture
def totals(postgres: Postgres) -> Iterator[str]:
    """A table for totals per folder, to which every record adds: what is written twice shows."""
    name = f"totals{next(_numbers)}"
    postgres.execute(f"CREATE TABLE {name} (folder text PRIMARY KEY, added bigint NOT NULL)")
    yield name
    postgres.execute(f"DROP TABLE {name}")


@pytest.fixture
def stored(postgres: Postgres, totals: str) -> Callable[[], Counter[str]]:
    def read() -> Counter[str]:
        return Counter({str(row[0]): int(str(row[1])) for row in postgres.execute(f"SELECT * FROM {totals}")})

    return read
