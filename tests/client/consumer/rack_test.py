"""Reading from the replica in one's own rack (KIP-392), in a cluster of three brokers in three racks.

BROKER=ottla (the default) or kafka.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from kazoo.client import KazooClient
from testbench.apache_kafka.broker import KafkaNode
from testbench.apache_kafka.cluster import KafkaCluster
from testbench.cluster import OttlaServer, OttlaUp
from tests.client.consumer.conftest import KIND, read

from ottla.client import Admin, ClientConfig, Cluster, Consumer, NewTopic, Producer, TopicPartition, values_of

pytestmark = [pytest.mark.slow, *([pytest.mark.kafka, pytest.mark.interop] if KIND == "kafka" else [])]
SELECTOR = {"replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"}
QUICK = {"replica.lag.time.max.ms": "3000", "group.initial.rebalance.delay.ms": "0"}
WHERE = TopicPartition("racked", 0)


class Racks(NamedTuple):
    """A running cluster; broker N is in rack rN."""

    bootstrap: str
    second: OttlaServer | KafkaNode
    """Broker 2."""


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Racks]:
    """A cluster with a topic of one partition, led by broker 1 and replicated to the other two."""
    start = _kafka if KIND == "kafka" else _ottla
    for made in start(tmp_path_factory.mktemp("racks")):
        with Cluster(ClientConfig(bootstrap_servers=made.bootstrap)) as cluster:
            _until(lambda: len(Admin(cluster).describe_cluster().nodes) == 3)
            values_of(Admin(cluster).create_topics([NewTopic(WHERE.topic, assignment={0: (1, 2, 3)})]))
        yield made


def _kafka(directory: Path) -> Iterator[Racks]:
    cluster = KafkaCluster(directory, settings=SELECTOR | QUICK)
    for node in cluster.brokers:
        node.settings["broker.rack"] = f"r{node.id}"
    try:
        cluster.start()
        yield Racks(cluster.bootstrap, cluster.brokers[1])
    finally:
        cluster.stop()


def _ottla(directory: Path) -> Iterator[Racks]:
    """Three brokers on the metadata store of `ottla up`, whose own brokers, all in one rack, have no partitions."""
    up = OttlaUp(directory, 2)
    brokers: list[OttlaServer] = []
    try:
        up.start()
        client = KazooClient(up.store, auth_data=[("digest", up.digest)])
        client.start(20)
        client.ensure_path("/racks")
        client.stop()
        client.close()
        settings = SELECTOR | QUICK | {"zookeeper.connect": f"{up.store}/racks", "zookeeper.session.timeout.ms": "2000"}
        settings["ottla.zookeeper.digest"] = up.digest
        brokers = [OttlaServer(number, directory, settings | {"broker.rack": f"r{number}"}) for number in (1, 2, 3)]
        ready = [broker.begin() for broker in brokers]
        for broker, file in zip(brokers, ready, strict=True):
            broker.await_ready(lambda file=file: file.exists() and bool(file.read_text().strip()), 60)  # type: ignore[misc]
        yield Racks(",".join(broker.bootstrap for broker in brokers), brokers[1])
    finally:
        for broker in brokers:
            broker.kill()
        up.kill_all()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _write(racks: Racks, first: int, last: int) -> None:
    with Producer({"bootstrap.servers": racks.bootstrap}) as producer:
        for number in range(first, last):
            producer.send(WHERE.topic, b"%d" % number, partition=0)


def _reads_from(consumer: Consumer) -> int | None:
    """The replica that the leader has named; None: the leader itself."""
    return consumer._reader._fetcher._preferred.get(WHERE, (None,))[0]


def test_a_reader_uses_the_replica_in_its_rack_and_continues_without_it(racks: Racks) -> None:
    _write(racks, 0, 100)
    settings = {"bootstrap.servers": racks.bootstrap, "auto.offset.reset": "earliest", "fetch.max.wait.ms": 100}
    with Consumer(settings | {"client.rack": "r2"}) as near, Consumer(settings | {"client.rack": "r9"}) as far:
        for consumer, replica in ((near, 2), (far, None)):
            consumer.assign([WHERE])
            assert [record.value for record in read(consumer, 100)] == [b"%d" % number for number in range(100)]
            assert _reads_from(consumer) == replica
        racks.second.kill()
        _write(racks, 100, 150)
        assert [record.value for record in read(near, 50, 60)] == [b"%d" % number for number in range(100, 150)]
        assert _reads_from(near) != 2
