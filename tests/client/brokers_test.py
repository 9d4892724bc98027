"""The same client against two brokers: Ottla, and Apache Kafka."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.client import (
    EARLIEST,
    LATEST,
    MAX_TIMESTAMP,
    Admin,
    ClientConfig,
    Cluster,
    ConfigChange,
    ConfigEntry,
    ConfigOp,
    Fetcher,
    NewTopic,
    Producer,
    RefusedError,
    Resource,
    ResourceType,
    TopicPartition,
    TopicView,
    fetch_range,
    partition_of_key,
    records_in,
    values_of,
)
from ottla.errors import ErrorCode
from ottla.server.embedded import EmbeddedBroker


@pytest.fixture(scope="module")
def ottla_broker() -> Iterator[str]:
    with EmbeddedBroker() as broker:
        yield broker.bootstrap


@pytest.fixture(scope="module")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    try:
        from testbench.apache_kafka.broker import KafkaNode
    finally:
        sys.path.pop(0)
    with KafkaNode(tmp_path_factory.mktemp("kafka")) as node:
        yield node.bootstrap


KAFKA = pytest.param("apache_kafka", marks=[pytest.mark.kafka, pytest.mark.interop, pytest.mark.slow])


@pytest.fixture(params=["ottla_broker", KAFKA])
def peer(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    with Cluster(ClientConfig(bootstrap_servers=request.getfixturevalue(request.param))) as cluster:
        yield cluster


def made(cluster: Cluster, name: str, partitions: int = 1, **configs: str) -> str:
    settings = {key.replace("_", "."): value for key, value in configs.items()}
    values_of(Admin(cluster).create_topics([NewTopic(name, partitions, 1, settings)]))
    until(lambda: len(partitions_of(cluster, name)) == partitions)
    return name


def until(holds: Callable[[], bool]) -> None:
    """Waits: on Apache Kafka metadata changes a moment after a request. The timeout of the test is the limit."""
    while not holds():
        pass


def partitions_of(cluster: Cluster, name: str) -> list[int]:
    view = Admin(cluster).describe_topics([name])[name]
    return sorted(view.partitions) if isinstance(view, TopicView) else []


def test_the_life_of_a_topic(peer: Cluster) -> None:
    admin = Admin(peer)
    (created,) = values_of(admin.create_topics([NewTopic("life", 2, 1, {"retention.ms": "5000"})])).values()
    assert (created.partitions, created.replication_factor) == (2, 1)
    again = admin.create_topics([NewTopic("life")])["life"]
    assert isinstance(again, RefusedError)
    assert again.code is ErrorCode.TOPIC_ALREADY_EXISTS
    until(lambda: partitions_of(peer, "life") == [0, 1])
    (view,) = [topic for topic in admin.list_topics() if topic.name == "life"]
    assert view.topic_id == created.topic_id
    assert admin.create_partitions({"life": 3}) == {"life": None}
    assert admin.create_partitions({"life": 1})["life"].code is ErrorCode.INVALID_PARTITIONS
    until(lambda: partitions_of(peer, "life") == [0, 1, 2])
    assert admin.delete_topics(["life", "never"])["never"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    until(lambda: partitions_of(peer, "life") == [])
    assert admin.describe_topics(["life"])["life"].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (recreated,) = values_of(admin.create_topics([NewTopic("life", 1, 1)])).values()
    assert recreated.topic_id != created.topic_id


def test_settings_of_a_topic(peer: Cluster) -> None:
    admin = Admin(peer)
    resource = Resource(ResourceType.TOPIC, made(peer, "settings"))
    assert admin.alter_configs(
        {resource: [ConfigChange("segment.ms", "70"), ConfigChange("cleanup.policy", "compact", ConfigOp.APPEND)]}
    ) == {resource: None}

    def entries() -> dict[str, ConfigEntry]:
        return {entry.name: entry for entry in values_of(admin.describe_configs([resource]))[resource]}

    until(lambda: entries()["segment.ms"].value == "70")
    assert entries()["cleanup.policy"].value == "delete,compact"
    assert entries()["retention.ms"].is_default
    assert admin.alter_configs({resource: [ConfigChange("segment.ms", None, ConfigOp.DELETE)]}) == {resource: None}
    until(lambda: entries()["segment.ms"].is_default)
    assert (
        admin.alter_configs({resource: [ConfigChange("no.such.key", "1")]})[resource].code is ErrorCode.INVALID_CONFIG
    )


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("acks", ["1", "all"])
def test_records_come_back_unchanged(peer: Cluster, codec: str, acks: str) -> None:
    topic = made(peer, f"records-{codec}-{acks}", 3)
    settings = {"compression.type": codec, "acks": acks, "batch.size": 500}
    if acks == "1":  # no idempotence: a batch that is retried, because the topic is new, would come after later ones
        settings["max.in.flight.requests.per.connection"] = 1
    expected: dict[TopicPartition, list[tuple[object, ...]]] = {}
    with Producer({"bootstrap.servers": peer.config.bootstrap_servers, **settings}) as producer:
        for number in range(200):
            record = (
                1_700_000_000_000 + number,
                b"k%d" % (number % 7),
                b"v%d" % number if number % 5 else None,
                (("h", None),),
            )
            producer.send(topic, record[2], key=record[1], headers=record[3], timestamp=record[0])
            tp = TopicPartition(topic, partition_of_key(record[1], 3))
            expected.setdefault(tp, []).append((len(expected.get(tp, [])), *record))
    fetcher = Fetcher(peer, dict.fromkeys(expected, 0), {tp: len(records) for tp, records in expected.items()})
    seen: dict[TopicPartition, list[tuple[object, ...]]] = {}
    while fetcher.active:
        for fetched in fetcher.poll(20_000):
            assert fetched.error is None
            seen.setdefault(fetched.tp, []).extend(tuple(record) for record in records_in(fetched))
    assert seen == expected


def test_offsets_by_time_and_deleted_records(peer: Cluster) -> None:
    tp = TopicPartition(made(peer, "times"), 0)
    with Producer({"bootstrap.servers": peer.config.bootstrap_servers}) as producer:
        for number in (5, 1, 9, 3):
            producer.send("times", b"", timestamp=number * 1_000).result(180)
    admin = Admin(peer)

    def offset(timestamp: int) -> tuple[int, int]:
        found = values_of(admin.list_offsets({tp: timestamp}))[tp]
        return found.offset, found.timestamp

    assert offset(EARLIEST)[0] == 0
    assert offset(LATEST)[0] == 4
    assert offset(MAX_TIMESTAMP) == (2, 9_000)
    assert offset(6_000) == (2, 9_000)
    assert offset(1) == (0, 5_000)
    assert offset(10_000) == (-1, -1)
    assert admin.delete_records({tp: 3}) == {tp: 3}
    assert offset(EARLIEST)[0] == 3
    assert admin.delete_records({tp: 99})[tp].code is ErrorCode.OFFSET_OUT_OF_RANGE
    assert admin.delete_records({tp: -1}) == {tp: 4}
    with pytest.raises(RefusedError, match="OFFSET_OUT_OF_RANGE"):
        list(fetch_range(peer, tp, 0, 4))


def test_the_cluster_and_its_disks(peer: Cluster) -> None:
    tp = TopicPartition(made(peer, "disks"), 0)
    with Producer({"bootstrap.servers": peer.config.bootstrap_servers}) as producer:
        producer.send("disks", bytes(1_000), partition=0).result(180)
    admin = Admin(peer)
    described = admin.describe_cluster()
    assert described.cluster_id == peer.view.cluster_id
    assert [node.node_id for node in described.nodes] == sorted(peer.view.nodes)
    ((directory,),) = admin.describe_log_dirs([tp]).values()
    assert [(replica.tp, replica.is_future) for replica in directory.replicas] == [(tp, False)]
    assert directory.replicas[0].size > 1_000
    assert directory.total_bytes >= directory.usable_bytes


def test_a_brokers_error_is_raised_with_its_name(peer: Cluster) -> None:
    made(peer, "small", max_message_bytes="100")
    with Producer({"bootstrap.servers": peer.config.bootstrap_servers}) as producer:
        with pytest.raises(RefusedError, match="MESSAGE_TOO_LARGE"):
            producer.send("small", bytes(1_000)).result(180)
        assert producer.send("small", b"fits").result(180).offset == 0


@pytest.mark.kafka
@pytest.mark.interop
@pytest.mark.slow
def test_read_committed_hides_aborted_and_open_transactions(apache_kafka: str) -> None:
    from confluent_kafka import Producer

    with Cluster(ClientConfig(bootstrap_servers=apache_kafka)) as cluster:
        tp = TopicPartition(made(cluster, "transactions"), 0)
    producer = Producer({"bootstrap.servers": apache_kafka, "transactional.id": "id", "log_level": 0})
    producer.init_transactions(60)
    for number in range(6):
        producer.begin_transaction()
        producer.produce("transactions", b"%d" % number, partition=0)
        producer.flush(180)
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(60)
    producer.begin_transaction()
    producer.produce("transactions", b"open", partition=0)
    producer.flush(180)
    seen = {}
    for isolation in ("read_uncommitted", "read_committed"):
        config = ClientConfig(bootstrap_servers=apache_kafka, isolation_level=isolation)
        with Cluster(config) as cluster:
            end = values_of(Admin(cluster).list_offsets({tp: LATEST}))[tp].offset
            found = fetch_range(cluster, tp, 0, end)
            seen[isolation] = [record.value for fetched in found for record in records_in(fetched)]
    assert seen == {
        "read_uncommitted": [b"0", b"1", b"2", b"3", b"4", b"5", b"open"],
        "read_committed": [b"0", b"2", b"4"],
    }
    producer.abort_transaction(60)
