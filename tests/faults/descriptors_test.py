"""A broker that may open few files: hundreds of partitions, and more connections than it has descriptors for."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer, TopicPartition

pytestmark = pytest.mark.slow

LIMIT = 256
PARTITIONS = 200


def test_files_give_way_to_connections_and_both_to_checkpoints(node, monkeypatch) -> None:
    broker = node()
    command = broker._command
    monkeypatch.setattr(broker, "_command", lambda ready: ["prlimit", f"--nofile={LIMIT}:{LIMIT}", *command(ready)])
    broker.start()
    with Cluster(ClientConfig(bootstrap_servers=broker.bootstrap)) as cluster, ExitStack() as idle:
        assert Admin(cluster).create_topics([NewTopic("many", PARTITIONS, 1)])
        for _ in range(LIMIT - 40):  # each stays in the backlog at least
            idle.enter_context(socket.create_connection(("127.0.0.1", broker.port), 30))
        broker.wait_until_says("cannot accept connections: too many open files", 0)
        with Producer({"bootstrap.servers": broker.bootstrap, "acks": "all"}) as producer:
            idle.pop_all().close()
            futures = [producer.send("many", b"v", partition=number) for number in range(PARTITIONS)]
            producer.flush()
            assert all(future.result().offset == 0 for future in futures)
        ends = Admin(cluster).list_offsets({TopicPartition("many", number): -1 for number in range(PARTITIONS)})
        assert [found.offset for found in ends.values()] == [1] * PARTITIONS
    said = broker.said()
    assert said.count("cannot accept connections") <= 2, "once a minute is enough"
    broker.stop()
    assert "was not stopped cleanly" not in broker.said()
