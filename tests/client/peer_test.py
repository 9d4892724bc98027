"""Tests with librdkafka: its mock brokers, its consumer and producer, its partitioner."""

from __future__ import annotations

import pytest

from ottla.client import (
    LATEST,
    Admin,
    ClientConfig,
    Cluster,
    Fetcher,
    Producer,
    TopicPartition,
    partition_of_key,
    records_in,
    values_of,
)

pytestmark = pytest.mark.interop
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture
def peer(mock_cluster: str):
    with Cluster(ClientConfig(bootstrap_servers=mock_cluster, batch_size=1_000)) as cluster:
        yield cluster


def written(cluster: Cluster, topic: str, count: int, codec: str = "none") -> dict[TopicPartition, list[bytes]]:
    brokers = {"bootstrap.servers": cluster.config.bootstrap_servers}
    placed: dict[TopicPartition, list[bytes]] = {}
    with Producer({**brokers, "batch.size": 1_000, "compression.type": codec}) as producer:
        for number in range(count):
            value = b"%s %d" % (codec.encode(), number)
            key, headers = b"key %d" % (number % 17), (("n", b"%d" % number), ("x", None))
            producer.send(topic, value, key=key, headers=headers)
            tp = TopicPartition(topic, partition_of_key(key, len(producer.partitions_for(topic))))
            placed.setdefault(tp, []).append(value)
    return placed


def test_what_we_write_we_read_from_all_brokers(peer: Cluster) -> None:
    expected = written(peer, "own", 500)
    positions = dict.fromkeys(expected, 0)
    ends = {
        tp: found.offset for tp, found in values_of(Admin(peer).list_offsets(dict.fromkeys(expected, LATEST))).items()
    }
    assert ends == {tp: len(values) for tp, values in expected.items()}
    fetcher = Fetcher(peer, positions, ends)
    seen: dict[TopicPartition, list[bytes | None]] = {}
    while fetcher.active:
        for fetched in fetcher.poll(10_000):
            seen.setdefault(fetched.tp, []).extend(record.value for record in records_in(fetched))
    assert seen == expected


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_what_we_wrote(peer: Cluster, mock_cluster: str, codec: str) -> None:
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as Assigned

    topic = f"to-librdkafka-{codec}"
    expected = written(peer, topic, 60, codec)
    consumer = Consumer({"bootstrap.servers": mock_cluster, "group.id": "g", "log_level": 0})
    consumer.assign([Assigned(topic, tp.partition, 0) for tp in expected])
    seen: dict[TopicPartition, list[bytes]] = {}
    headers = []
    for message in consumer.consume(60, timeout=180):
        assert message.error() is None
        seen.setdefault(TopicPartition(topic, message.partition()), []).append(message.value())
        headers.append(message.headers())
    consumer.close()
    assert seen == expected
    assert sorted(int(pairs[0][1]) for pairs in headers) == list(range(60))
    assert all(pairs[1] == ("x", None) for pairs in headers)


@pytest.mark.parametrize("codec", CODECS)
def test_we_read_what_librdkafka_wrote_and_agree_on_partitions(peer: Cluster, mock_cluster: str, codec: str) -> None:
    from confluent_kafka import Producer

    topic = f"from-librdkafka-{codec}"
    options = {"partitioner": "murmur2_random", "compression.type": codec, "log_level": 0, "linger.ms": 5}
    producer = Producer({"bootstrap.servers": mock_cluster, **options})
    for number in range(100):
        producer.produce(
            topic, b"value " * 20 + b"%d" % number, key=b"k%d" % number, headers=[("h", b"1"), ("h", None)]
        )
    assert producer.flush(180) == 0
    partitions = peer.topic(topic).partitions
    where = [TopicPartition(topic, number) for number in partitions]
    ends = {at: found.offset for at, found in values_of(Admin(peer).list_offsets(dict.fromkeys(where, LATEST))).items()}
    fetcher = Fetcher(peer, dict.fromkeys(where, 0), ends)
    seen = []
    while fetcher.active:
        for fetched in fetcher.poll(10_000):
            for record in records_in(fetched):
                assert record.key is not None
                assert partition_of_key(record.key, len(partitions)) == fetched.tp.partition
                assert record.headers == (("h", b"1"), ("h", None))
                seen.append(record.key)
    assert sorted(seen) == sorted(b"k%d" % number for number in range(100))
