"""Data directories that Apache Kafka wrote, served by the broker to clients nobody here wrote, record for record."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from testbench.clients import Confluent, KafkaPython, Kcat, Record
from testbench.cluster import OttlaOnZooKeeper
from testbench.ottla_node import NodeError, OttlaNode
from testbench.zookeeper import ZooKeeper

from ottla.record.log_entries import entries_of

pytestmark = [pytest.mark.interop, pytest.mark.slow]

CASES = {
    "records": ("records", "append-time", "broker-codec"),
    "segments": ("segments",),
    "compacted": ("compacted",),
    "format-0.9.0": ("format-0.9.0",),
    "format-0.10.0": ("format-0.10.0",),
}
GOLDEN = Path(__file__).parents[1] / "data" / "golden"
STARTS = {"segments": 130}
"""Where DeleteRecords had moved a log start."""
NODES = {"format-0.10.0": 2}


@pytest.fixture
def adopt(golden, tmp_path: Path) -> Iterator:
    """`adopt(case)`: a broker over a copy of a golden directory."""
    nodes: list[OttlaNode] = []

    def made(case: str, **settings: str) -> OttlaNode:
        shutil.copytree(golden(case).directory, tmp_path / case)
        settings = {"node.id": str(NODES.get(case, 1)), "ottla.adopt.logs": "true", **settings}
        nodes.append(OttlaNode(tmp_path / case, settings))
        nodes[-1].start()
        return nodes[-1]

    yield made
    for node in nodes:
        node.kill()
        assert "Traceback" not in node.said(), node.tail()


def expected(golden, case: str, topic: str) -> dict[int, list[Record]]:
    """By partition, what Kafka's consumer read. Clients say different things of records without a timestamp."""
    found: dict[int, list[Record]] = {}
    for row in sorted(golden(case).records(topic), key=lambda row: (row.partition or 0, row.offset)):
        stamp = row.timestamp if row.timestamp_type else None
        found.setdefault(row.partition or 0, []).append(Record(row.key, row.value, row.headers, stamp))
    return found


def stamped(records: list[Record]) -> list[Record]:
    """No timestamp is -1 for some clients, 0 for others, and None for one."""
    return [
        each._replace(timestamp=each.timestamp if each.timestamp and each.timestamp > 0 else None) for each in records
    ]


@pytest.mark.parametrize("case", CASES)
def test_a_directory_of_apache_kafka_is_served_record_for_record(case: str, golden, adopt) -> None:
    node = adopt(case)
    for topic in CASES[case]:
        for partition, records in expected(golden, case, topic).items():
            # kafka-python needs another package for the LZ4 frames of format v0.
            for client in (Confluent(), Kcat() if case == "format-0.9.0" else KafkaPython()):
                seen = stamped(client.read(node.bootstrap, topic, partition, STARTS.get(topic, 0)))
                assert seen == records, f"{client.name} reads {topic}-{partition}"


def test_a_directory_is_adopted_once_and_then_served_like_any_other(golden, adopt) -> None:
    topic = "format-0.10.0"
    node = adopt(topic)
    node.stop()
    node.settings.pop("ottla.adopt.logs")  # the store knows its cluster now
    node.start()
    Confluent().write(node.bootstrap, topic, [Record(b"k", b"new", (), 1_700_000_000_000)])
    records = expected(golden, topic, topic)[0]
    assert Confluent().read(node.bootstrap, topic) == [*records, Record(b"k", b"new", (), 1_700_000_000_000)]


def test_transactions_of_apache_kafka_are_read_as_committed(golden, adopt) -> None:
    node = adopt("transactions")
    for partition, records in expected(golden, "transactions", "txn.committed").items():
        assert Confluent().read(node.bootstrap, "txn", partition) == records


def test_groups_of_apache_kafka_have_their_positions(adopt) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka.admin import AdminClient

    node = adopt("consumer-offsets")
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for group, offsets in {"classic-group": [10, 10, 11], "new-group": [12, 12, 13]}.items():
        (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        found = {each.partition: each.offset for each in future.result(180).topic_partitions if each.topic == "records"}
        assert [found[partition] for partition in range(3)] == offsets


def test_logs_of_another_cluster_are_not_adopted_unasked_nor_by_another_node(golden, tmp_path: Path) -> None:
    shutil.copytree(golden("format-0.9.0").directory, tmp_path / "data")
    for settings, why in (({}, "ottla.adopt.logs"), ({"node.id": "7", "ottla.adopt.logs": "true"}, "its own node.id")):
        node = OttlaNode(tmp_path / "data", settings)
        with pytest.raises(NodeError, match=why):
            node.start()
        assert "Traceback" not in node.said()
    node = OttlaNode(tmp_path / "data", {"ottla.adopt.logs": "true"})
    with node:
        assert len(Confluent().read(node.bootstrap, "format-0.9.0")) == 48


def fill(connect: str) -> None:
    """What the cluster of the golden directories had in its ZooKeeper when it was stopped."""
    from kazoo.client import KazooClient

    (path,) = GOLDEN.glob("*/zookeeper-3-brokers.json.gz")
    nodes = json.loads(gzip.decompress(path.read_bytes()))
    client = KazooClient(connect)
    client.start()
    for name in sorted(nodes):
        if not nodes[name]["ephemeral"] and name != "/" and not name.startswith(("/zookeeper", "/admin/reassign")):
            client.create(name, (nodes[name]["data"] or "").encode())
    client.stop()
    client.close()


@pytest.mark.kafka
def test_brokers_of_a_cluster_with_zookeeper_are_replaced_where_they_were(golden, tmp_path: Path) -> None:
    """Topics, ids and settings are in ZooKeeper; nothing is adopted, and what is written has the topic's old format."""
    topics = {"format-0.9.0": 0, "format-0.10.0": 1}
    data = [Path(shutil.copytree(golden(topic).directory, tmp_path / topic)) for topic in topics]
    with ZooKeeper(tmp_path / "zookeeper") as zookeeper:
        fill(zookeeper.connect)
        settings = {"min.insync.replicas": "1"}
        brokers = OttlaOnZooKeeper(tmp_path / "brokers", zookeeper.connect, 2, settings=settings, data=data)
        brokers.start()
        try:
            for topic, directory in zip(topics, data, strict=True):
                records = expected(golden, topic, topic)[0]
                assert stamped(Confluent().read(brokers.bootstrap, topic)) == records
                Confluent().write(brokers.bootstrap, topic, [Record(b"k", b"new")])
                assert Confluent().read(brokers.bootstrap, topic)[-1][:2] == (b"k", b"new")
                content = (directory / f"{topic}-0" / f"{0:020d}.log").read_bytes()
                assert {header[3] for _, header in entries_of(content)} == {topics[topic]}
        finally:
            brokers.stop()
