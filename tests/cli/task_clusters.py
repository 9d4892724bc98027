"""Clusters on which the tasks of docs/cli-tasks.md are run: of Ottla, and of Apache Kafka 4.4, with the same settings.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from testbench.apache_kafka.cluster import KafkaCluster
from testbench.cluster import OttlaUp
from testbench.ports import HOST, free_port
from testbench.retention import NO_RETENTION

from ottla.server.embedded import EmbeddedBroker

SETTINGS = {
    **NO_RETENTION,
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "super.users": "User:ANONYMOUS;User:admin",
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "transaction.partition.verification.enable": "false",  # so that a transaction can hang
}
SCRAM = {
    "sasl.enabled.mechanisms": "SCRAM-SHA-512",
    "listener.name.login.scram-sha-512.sasl.jaas.config": (
        "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    ),
    "delegation.token.secret.key": "a secret of the brokers",
}


@dataclass
class TaskCluster:
    """Two brokers, and one with two log directories and a listener for logins, which may be one of the two."""

    kind: str
    bootstrap: str
    log_dirs: list[Path]
    """Those of broker 1 of the two."""
    disks: str
    """The address of the broker with two log directories."""
    disk_dirs: list[Path]
    disk_replicas: int
    """With this many replicas a topic has one on that broker."""
    login: str
    """host:port of the listener for logins."""
    logger: str


@contextmanager
def start_ottla(directory: Path) -> Iterator[TaskCluster]:
    """Two processes, and one broker in this process."""
    pair = OttlaUp(directory / "pair", 2, settings=SETTINGS)
    dirs = [directory / "one", directory / "two"]
    for each in dirs:
        each.mkdir(parents=True)
    port = free_port()
    single = SETTINGS | SCRAM | {
        "log.dirs": ",".join(map(str, dirs)),
        "listeners": f"PLAINTEXT://{HOST}:0,LOGIN://{HOST}:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    }  # fmt: skip
    pair.start()
    try:
        with EmbeddedBroker(config=single) as broker:
            yield TaskCluster(
                "ottla",
                pair.bootstrap,
                [pair.brokers[0].data],
                broker.bootstrap,
                dirs,
                1,
                f"{HOST}:{port}",
                "ottla.broker.startup",
            )
    finally:
        pair.stop()


@contextmanager
def start_kafka(directory: Path) -> Iterator[TaskCluster]:
    """Two nodes of Apache Kafka; the first one has the two log directories."""
    pair = KafkaCluster(directory, 2, settings=SETTINGS)
    node, port = pair.brokers[0], free_port()
    dirs = [node.data, node.directory / "second"]
    listeners = f"PLAINTEXT://{node.bootstrap},LOGIN://{HOST}:{port}"
    node.settings |= SCRAM | {
        "log.dirs": ",".join(map(str, dirs)),
        "listeners": f"{listeners},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_PLAINTEXT",
    }
    pair.brokers[1].settings["delegation.token.secret.key"] = SCRAM["delegation.token.secret.key"]
    pair.start()
    try:
        logger = "org.apache.kafka.common.network.Selector"
        yield TaskCluster("kafka", pair.bootstrap, dirs, pair.bootstrap, dirs, 2, f"{HOST}:{port}", logger)
    finally:
        pair.stop()
