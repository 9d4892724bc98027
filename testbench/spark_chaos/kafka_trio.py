"""Three Apache Kafka brokers that are restarted when they die: the peer of `ottla up` for strikes at brokers.

Zone: real. Strikes need the process ids of the brokers and the active controller. They are in a status file, like that
of the supervisor of `ottla up`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from testbench.apache_kafka.broker import KafkaNode
from testbench.apache_kafka.cluster import KafkaCluster

LOOK_S = 0.1
QUICK = {"broker.session.timeout.ms": "6000", "broker.heartbeat.interval.ms": "1000"}
STATUS = "status.json"


@contextlib.contextmanager
def kafka_trio(directory: Path, transaction_version: str) -> Iterator[str]:
    """Start the brokers, and yield their address; `directory`/status.json has their status. Kills them at the end."""
    cluster = KafkaCluster(directory, settings=QUICK)
    for node in cluster.brokers:
        node.format_options = ["--feature", f"transaction.version={transaction_version}"]
    over = threading.Event()
    keeper = threading.Thread(target=_keep, args=(cluster, directory / STATUS, over), name="kafka-keeper")
    try:
        cluster.start()
        _tell(cluster, directory / STATUS)
        keeper.start()
        yield cluster.bootstrap
    finally:
        over.set()
        if keeper.ident is not None:
            keeper.join()
        cluster.stop()


def _keep(cluster: KafkaCluster, status: Path, over: threading.Event) -> None:
    while not over.wait(LOOK_S):
        for node in cluster.brokers:
            if not node.alive:
                node.begin()
        _tell(cluster, status)


def _tell(cluster: KafkaCluster, status: Path) -> None:
    told = {
        "brokers": [{"id": node.id, "pid": node.pid} for node in cluster.brokers],
        "controller": _controller(cluster.brokers),
    }
    written = status.with_suffix(".new")
    written.write_text(json.dumps(told))
    os.replace(written, status)


def _controller(brokers: list[KafkaNode]) -> int:
    """The leader of the quorum, according to the member with the latest epoch; Metadata of KRaft names any broker."""
    states = []
    for node in brokers:
        with contextlib.suppress(OSError, ValueError):  # the file is being replaced at this moment
            state = json.loads((node.data / "__cluster_metadata-0" / "quorum-state").read_text())
            states.append((state["leaderEpoch"], state["leaderId"]))
    return max(states)[1] if states else -1
