"""The clusters that are measured: three Ottla brokers by either engine, and three of Apache Kafka, on 127.0.0.1."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
from confluent_kafka.admin import AdminClient, NewTopic
from testbench.apache_kafka.broker import KAFKAS_HEAP
from testbench.apache_kafka.cluster import KafkaCluster
from testbench.apache_kafka.packages import BenchError
from testbench.cluster import Broker, OttlaOnZooKeeper, OttlaUp
from testbench.process import ManagedProcess
from testbench.zookeeper import ZooKeeper

from bench.peers import COMMON, rss_mib

SIZE = 3
SESSION_MS = "2000"
OTTLA = {**COMMON, "zookeeper.session.timeout.ms": SESSION_MS}
KAFKA_FAILOVER = {"broker.session.timeout.ms": "2500", "broker.heartbeat.interval.ms": "500"}


class Cluster:
    """A running cluster of any engine."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        brokers: list[Broker],
        stop: Callable[[], None],
        beside: list[ManagedProcess] | None = None,
    ) -> None:
        self.name = name
        self.bootstrap = bootstrap
        self.brokers = brokers
        self.stop = stop
        self.beside = beside or []
        """Processes beside the brokers that are not counted: the supervisor, or ZooKeeper."""
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0, "socket.timeout.ms": 3_000})

    @property
    def pids(self) -> list[int]:
        """Process ids of the brokers."""
        return [broker.pid for broker in self.brokers]

    def rss(self) -> float:
        """Resident memory of the brokers, MiB."""
        return sum(map(rss_mib, self.pids))

    def make_topic(self, topic: str, partitions: int) -> None:
        """Create a topic with replication factor 3 and min ISR 2, and wait until it is usable."""
        new = NewTopic(topic, partitions, SIZE, config={"min.insync.replicas": "2"})
        patient = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 120_000})
        patient.create_topics([new], operation_timeout=90, request_timeout=100)[topic].result(120)
        self.await_whole(topic)

    def look(self, topic: str, wait_s: float = 3) -> confluent_kafka.admin.ClusterMetadata | None:
        """Metadata; None when no broker answers."""
        try:
            return self.admin.list_topics(topic, timeout=wait_s)
        except confluent_kafka.KafkaException:
            return None

    def await_whole(self, topic: str, wait_s: float = 120) -> None:
        """Wait until all brokers are registered, and all replicas of the topic in sync. Raises BenchError."""
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            seen = self.look(topic)
            if seen is not None and len(seen.brokers) == SIZE:
                partitions = seen.topics[topic].partitions.values()
                if partitions and all(each.leader > 0 and len(each.isrs) == SIZE for each in partitions):
                    return
            time.sleep(0.05)
        raise BenchError(f"{self.name}: the replicas of {topic} are not in sync after {wait_s} s")


def ottla_embedded(directory: Path, settings: dict[str, str] | None = None) -> Cluster:
    """`ottla up --brokers 3`."""
    up = OttlaUp(directory, SIZE, settings=OTTLA | (settings or {}))
    up.start()
    return Cluster("ottla", up.bootstrap, list(up.brokers), up.stop, [up])


def ottla_zookeeper(directory: Path, settings: dict[str, str] | None = None) -> Cluster:
    """`ottla server` three times on an ensemble of three."""
    ensemble = ZooKeeper(directory / "zookeeper", SIZE)
    ensemble.start()
    brokers = OttlaOnZooKeeper(directory, ensemble.chroot("/bench"), SIZE, settings=OTTLA | (settings or {}))

    def stop() -> None:
        brokers.stop()
        ensemble.kill()

    try:
        brokers.start()
    except BaseException:
        stop()
        raise
    return Cluster("ottla", brokers.bootstrap, list(brokers.brokers), stop, list(ensemble.servers))


def kafka(directory: Path, settings: dict[str, str] | None = None) -> Cluster:
    """Three KRaft nodes, each broker and controller."""
    cluster = KafkaCluster(directory, SIZE, settings=COMMON | (settings or {}), heap=KAFKAS_HEAP)
    cluster.start()
    return Cluster("kafka", cluster.bootstrap, list(cluster.brokers), cluster.stop)
