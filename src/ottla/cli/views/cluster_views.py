"""The state of a cluster, gathered from metadata, settings and reassignments: documents and rows.

Zone: real. The JSON documents here are an interface: docs/cli.md describes them, fields are only ever added.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.cli.views.output import Json
from ottla.client import (
    Admin,
    ClientError,
    ClusterDescription,
    NodeView,
    PartitionView,
    Resource,
    ResourceType,
    TopicView,
    UnsupportedVersionError,
)

MIN_ISR = "min.insync.replicas"


class BrokerState(NamedTuple):
    """A broker, and how many partitions it leads and holds."""

    node: NodeView
    controller: bool
    leads: int
    replicas: int
    out_of_sync: int
    """Replicas on it that are not in sync."""

    def document(self) -> dict[str, Json]:
        """The JSON form."""
        return {
            "id": self.node.node_id,
            "host": self.node.host,
            "port": self.node.port,
            "rack": self.node.rack,
            "controller": self.controller,
            "leads": self.leads,
            "replicas": self.replicas,
            "out_of_sync": self.out_of_sync,
        }


class ClusterState(NamedTuple):
    """Everything that `ottla cluster describe` shows."""

    description: ClusterDescription
    topics: Sequence[TopicView]
    min_isr: Mapping[str, int]
    """min.insync.replicas by topic, of the topics whose settings could be read."""
    reassigning: int | None
    """Partitions that are being moved; None when the cluster does not support the request."""

    @property
    def controller(self) -> int | None:
        """Node id of the controller."""
        return self.description.controller_id if self.description.controller_id >= 0 else None

    def broker_states(self) -> list[BrokerState]:
        """The live brokers, by id."""
        # Replicas on brokers that are not alive are seen as those that lack in their partitions' ISR.
        partitions = [part for _, part in all_partitions(self.topics)]
        return [
            BrokerState(
                node,
                node.node_id == self.controller,
                sum(part.leader == node.node_id for part in partitions),
                sum(node.node_id in part.replicas for part in partitions),
                sum(node.node_id in part.replicas and node.node_id not in part.isr for part in partitions),
            )
            for node in self.description.nodes
        ]

    def broker_rows(self) -> Iterator[Sequence[object]]:
        """One row per broker for a table."""
        for each in self.broker_states():
            address = f"{each.node.host}:{each.node.port}"
            mark = "yes" if each.controller else None
            yield (each.node.node_id, address, each.node.rack, mark, each.leads, each.replicas, each.out_of_sync)

    def document(self) -> dict[str, Json]:
        """The JSON form."""
        parts = list(all_partitions(self.topics))
        return {
            "cluster_id": self.description.cluster_id,
            "controller": self.controller,
            "brokers": [each.document() for each in self.broker_states()],
            "topics": len(self.topics),
            "internal_topics": sum(topic.internal for topic in self.topics),
            "partitions": len(parts),
            "under_replicated": sum(is_under_replicated(part) for _, part in parts),
            "under_min_isr": sum(is_under_min_isr(part, self.min_isr.get(name, 1)) for name, part in parts),
            "offline": sum(is_unavailable(part) for _, part in parts),
            "not_preferred": sum(part.leader != part.replicas[0] for _, part in parts if part.replicas),
            "reassigning": self.reassigning,
        }


def read_cluster(admin: Admin) -> ClusterState:
    """Read everything that `ClusterState` holds from the cluster."""
    topics = admin.list_topics(internal=True)
    try:
        reassigning: int | None = len(admin.list_partition_reassignments())
    # Brokers before Kafka 2.4 move partitions by a znode, which no request shows.
    except UnsupportedVersionError:
        reassigning = None
    names = [topic.name for topic in topics]
    return ClusterState(admin.describe_cluster(), topics, min_isr_of(admin, names), reassigning)


def min_isr_of(admin: Admin, topics: Sequence[str]) -> dict[str, int]:
    """min.insync.replicas by topic; topics whose settings may not be read are left out."""
    if not topics:
        return {}
    try:
        results = admin.describe_configs([Resource(ResourceType.TOPIC, name) for name in topics])
    except UnsupportedVersionError:
        return {}
    found: dict[str, int] = {}
    for resource, entries in results.items():
        if not isinstance(entries, ClientError):
            found[resource.name] = next((int(each.value or 1) for each in entries if each.name == MIN_ISR), 1)
    return found


def all_partitions(topics: Iterable[TopicView]) -> Iterator[tuple[str, PartitionView]]:
    """Every partition with its topic's name."""
    for topic in topics:
        for part in topic.partitions.values():
            yield topic.name, part


def is_under_replicated(part: PartitionView) -> bool:
    """Whether a replica is not in sync."""
    return len(part.isr) < len(part.replicas)


def is_under_min_isr(part: PartitionView, min_isr: int) -> bool:
    """Whether acks=all is refused. A partition without a leader counts, whatever its last in-sync replicas were.

    The broker asks for no more replicas in sync than the partition has.
    """
    return len(part.isr) < min(min_isr, len(part.replicas)) or part.leader < 0


def is_at_min_isr(part: PartitionView, min_isr: int) -> bool:
    """Whether acks=all would be refused after the loss of one more replica."""
    return len(part.isr) == min(min_isr, len(part.replicas))


def is_unavailable(part: PartitionView) -> bool:
    """Whether there is no leader."""
    return part.leader < 0
