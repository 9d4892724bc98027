"""Brokers that die or leave while a producer writes: the time without acknowledgements."""

from __future__ import annotations

import random
import time

from testbench.apache_kafka.packages import BenchError

from bench.cluster_work import Gap, Stream
from bench.clusters import Cluster

TOPIC = "failover"


def kills(cluster: Cluster, count: int, seed: int = 1) -> list[Gap]:
    """SIGKILL to the leader, repeatedly; sometimes that broker is the controller as well."""
    return _leaders(cluster, count, seed, "kill")


def stops(cluster: Cluster, count: int, seed: int = 1) -> list[Gap]:
    """SIGTERM to the leader, repeatedly."""
    return _leaders(cluster, count, seed, "stop")


def pauses(cluster: Cluster, count: int, seed: int = 1) -> list[Gap]:
    """SIGSTOP to the leader until others have taken over: only the end of its session shows the failure."""
    return _leaders(cluster, count, seed, "pause")


def _leaders(cluster: Cluster, count: int, seed: int, how: str) -> list[Gap]:
    rng = random.Random(seed)
    topic = f"{TOPIC}-{how}"
    cluster.make_topic(topic, 1)
    stream = Stream(cluster, topic)
    found = []
    try:
        for _ in range(count):
            time.sleep(rng.uniform(0.2, 0.7))
            stream.forget()
            broker = cluster.brokers[leader(cluster, topic) - 1]
            at = time.monotonic()
            getattr(broker, how)()
            found.append(stream.gap(at))
            (broker.resume if how == "pause" else broker.start)()
            cluster.await_whole(topic)
    finally:
        stream.stop()
    return found


def leader(cluster: Cluster, topic: str) -> int:
    """Id of the leader of partition 0. Raises BenchError."""
    seen = cluster.look(topic)
    if seen is None or seen.topics[topic].partitions[0].leader < 1:
        raise BenchError(f"{cluster.name}: {topic}-0 has no leader")
    return int(seen.topics[topic].partitions[0].leader)


def controller_lost(cluster: Cluster, topic: str) -> float:
    """SIGKILL to the controller: seconds until every partition of the topic has a live leader."""
    seen = cluster.look(topic)
    assert seen is not None, "no broker answers"
    dead = seen.controller_id
    broker = cluster.brokers[dead - 1]
    at = time.monotonic()
    broker.kill()
    while True:
        seen = cluster.look(topic, 1)
        if seen is not None and all(each.leader not in (dead, -1) for each in seen.topics[topic].partitions.values()):
            taken = time.monotonic() - at
            break
        if time.monotonic() > at + 120:
            raise BenchError(f"{cluster.name}: partitions without a leader 120 s after the controller died")
    broker.start()
    cluster.await_whole(topic)
    return taken
