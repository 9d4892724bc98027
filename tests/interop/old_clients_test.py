"""Clients of 2015 to 2018 and topics of every message format: who writes, who reads, who is in a group."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from testbench.clients import Confluent, Record
from testbench.old_clients import CODECS, JAVA, KAFKA_PYTHON, LIBRDKAFKA, OLD_CLIENTS, Row, Seen
from testbench.ottla_node import OttlaNode

pytestmark = [pytest.mark.interop, pytest.mark.slow]

STAMP = 1_700_000_000_000
ROWS = (
    Row(b"key", b"value", STAMP),
    Row(None, b"no key", STAMP + 1),
    Row(bytes(range(256)), b"binary key", STAMP - 86_400_000),
    Row(b"tombstone", None, STAMP + 2),
    Row(b"big", b"bytes that shrink " * 4000, STAMP + 3),
    *(Row(b"%d" % (number % 7), b"value %d " % number * 5, STAMP + 10 + number) for number in range(60)),
)
VERSIONS = {0: "0.9.0", 1: "0.10.2", 2: "2.8"}
"""Message format → message.format.version."""
DOSE = (
    OLD_CLIENTS
    if "EXPLORE" in os.environ
    else (LIBRDKAFKA[0], LIBRDKAFKA[1], KAFKA_PYTHON[0], KAFKA_PYTHON[2], JAVA[0])
)
"""Every client reads and writes every format; in CI those that differ most."""


@pytest.fixture
def topic_of(bootstrap: str, topic: str):
    """A topic of a message format."""
    from confluent_kafka.admin import AdminClient, NewTopic

    def make(magic: int, partitions: int = 1) -> str:
        settings = {"message.format.version": VERSIONS[magic], "max.message.bytes": "2000000"}
        made = NewTopic(topic, partitions, 1, config=settings)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 3})
        admin.create_topics([made])[topic].result(60)
        return topic

    return make


def seen_by(format_: int, rows: list[tuple[Row, int]]) -> list[Seen]:
    """What a reader of this format sees of rows, each with the oldest format it went through."""
    return [
        Seen(at, row.key, row.value, row.timestamp if min(format_, oldest) else None)
        for at, (row, oldest) in enumerate(rows)
    ]


def plain(found: list[Seen]) -> list[Seen]:
    return [each._replace(timestamp=None if each.timestamp == -1 else each.timestamp) for each in found]


@pytest.mark.parametrize("magic", [0, 1, 2])
def test_what_each_writes_with_each_codec_every_other_reads(broker, bootstrap: str, topic_of, magic: int) -> None:
    topic = topic_of(magic)
    rows: list[tuple[Row, int]] = []
    for writer in DOSE:
        writer.write(bootstrap, topic, ROWS)
        rows += [(row, min(magic, writer.format)) for _ in CODECS for row in ROWS]
    for codec in CODECS:
        Confluent().write(bootstrap, topic, [Record(row.key, row.value, (), row.timestamp) for row in ROWS], codec)
        rows += [(row, magic) for row in ROWS]
    assert (broker.data / f"{topic}-0" / f"{0:020d}.log").read_bytes()[16] == magic
    for reader in DOSE:
        assert plain(reader.read(bootstrap, topic)) == seen_by(reader.format, rows), reader.name
    found = [
        Seen(at, each.key, each.value, each.timestamp) for at, each in enumerate(Confluent().read(bootstrap, topic))
    ]
    assert [row[:3] for row in found] == [row[:3] for row in seen_by(2, rows)]


@pytest.mark.parametrize("member", [each for each in DOSE if each is not KAFKA_PYTHON[0]], ids=lambda each: each.name)
def test_groups_go_on_where_they_were(bootstrap: str, topic_of, member) -> None:
    """kafka-python has no groups with 0.8.2."""
    topic = topic_of(2, 2)
    Confluent().write(bootstrap, topic, [Record(None, b"%d" % at) for at in range(6)])
    assert member.read_in_group(bootstrap, topic, topic, 3) == [b"0", b"1", b"2"]
    assert member.read_in_group(bootstrap, topic, topic, 3) == [b"3", b"4", b"5"]


def test_positions_without_members(bootstrap: str, topic_of) -> None:
    topic = topic_of(2)
    client = KAFKA_PYTHON[0]
    assert client.commit(bootstrap, topic, topic, 5) is None
    assert client.commit(bootstrap, topic, topic, 6) == 5


@pytest.mark.parametrize(("case", "magic", "node_id"), [("format-0.9.0", 0, 1), ("format-0.10.0", 1, 2)])
def test_what_old_brokers_wrote_old_clients_read(golden, tmp_path: Path, case: str, magic: int, node_id: int) -> None:
    shutil.copytree(golden(case).directory, tmp_path / "data")
    rows = [(Row(each.key, each.value, each.timestamp), magic) for each in golden(case).records()]
    settings = {"node.id": str(node_id), "ottla.adopt.logs": "true"}
    with OttlaNode(tmp_path / "data", settings) as node:
        for reader in DOSE:
            assert plain(reader.read(node.bootstrap, case)) == seen_by(reader.format, rows), reader.name
        assert not node.complaints()
