"""Three Apache Kafka nodes in KRaft mode, each broker and controller: the peer of an Ottla cluster.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from testbench.apache_kafka.broker import HEAP, KafkaNode
from testbench.network import Host
from testbench.ports import HOST

REPLICATED = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
}


class KafkaCluster:
    """The brokers 1 to N on 127.0.0.1, or each on a host of its own."""

    def __init__(
        self,
        directory: Path,
        size: int = 3,
        *,
        settings: dict[str, str] | None = None,
        hosts: Sequence[Host] = (),
        data: Sequence[Path] = (),
        heap: str = HEAP,
    ) -> None:
        self.brokers: list[KafkaNode] = []
        for index in range(size):
            place = directory / f"node-{index + 1}"
            self.brokers.append(
                KafkaNode(
                    place,
                    data=data[index] if data else None,
                    address=hosts[index].address if hosts else HOST,
                    prefix=hosts[index].prefix if hosts else (),
                    heap=heap,
                )
            )
        voters = ",".join(
            f"{index}@{node.address}:{node.controller_port}" for index, node in enumerate(self.brokers, start=1)
        )
        for index, node in enumerate(self.brokers, start=1):
            node.cluster_id = self.brokers[0].cluster_id
            node.id = index
            node.settings = REPLICATED | {"controller.quorum.voters": voters} | (settings or {})

    @property
    def bootstrap(self) -> str:
        """All brokers, for clients."""
        return ",".join(node.bootstrap for node in self.brokers)

    def start(self, wait_s: float = 180) -> None:
        """Start all, and wait until they answer, which needs an elected controller. Raises NodeError."""
        for node in self.brokers:
            node.begin()
        for node in self.brokers:
            node.await_ready(node.ready, wait_s, 0.05)

    def stop(self) -> None:
        """Kill all: in a shutdown of the whole cluster no broker can take leaderships over."""
        for node in self.brokers:
            node.kill()
