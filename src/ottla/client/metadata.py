"""Immutable views of a cluster, made from Metadata answers.

Zone: pure. Converts answers to values; `cluster` sends the requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.client.connections.address import Address
from ottla.client.errors import MalformedReplyError, RefusedError, error_code, refused_error
from ottla.errors import ErrorCode
from ottla.types import ZERO_UUID
from ottla.wire.messages import MetadataResponse

NO_LEADER = -1


class NodeView(NamedTuple):
    """A broker of the cluster."""

    node_id: int
    host: str
    port: int
    rack: str | None

    @property
    def address(self) -> Address:
        """The address that the broker advertises."""
        return Address(self.host, self.port, advertised=True)


class PartitionView(NamedTuple):
    """A partition; replicas, isr and offline are node ids, in the cluster's order."""

    partition: int
    leader: int
    """Node id, or NO_LEADER."""
    leader_epoch: int
    """-1 if the broker does not report it."""
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]
    error: ErrorCode
    """NONE, or the reason why there is no leader."""


class TopicView(NamedTuple):
    """A topic; `partitions` by number, ascending."""

    name: str
    topic_id: bytes
    """ZERO_UUID if the broker does not have topic ids."""
    internal: bool
    partitions: Mapping[int, PartitionView]


class ClusterView(NamedTuple):
    """The cluster according to the last answers."""

    cluster_id: str | None
    controller_id: int
    """-1 if unknown."""
    nodes: Mapping[int, NodeView]
    topics: Mapping[str, TopicView | RefusedError]

    def merge(self, newer: ClusterView) -> ClusterView:
        """The view with `newer` merged in, which has all nodes, but only the requested topics."""
        return newer._replace(topics={**self.topics, **newer.topics})


EMPTY = ClusterView(None, -1, {}, {})


def cluster_view(answer: MetadataResponse, source: str) -> ClusterView:
    """The view in an answer. Raises MalformedReplyError with the name `source` for impossible numbers."""
    nodes = {
        broker.node_id: NodeView(broker.node_id, broker.host, broker.port, broker.rack) for broker in answer.brokers
    }
    for node in nodes.values():
        if not node.host or not 0 < node.port < 65_536 or node.node_id < 0:
            raise MalformedReplyError(f"{source} has an impossible broker: {node.node_id} at {node.host}:{node.port}")
    topics = {topic.name: _topic_view(topic, source) for topic in answer.topics if topic.name}
    return ClusterView(answer.cluster_id, answer.controller_id, nodes, topics)


def _topic_view(topic: MetadataResponse.MetadataResponseTopic, source: str) -> TopicView | RefusedError:
    assert topic.name is not None
    if (refused := refused_error(topic.error_code, f"topic {topic.name}")) is not None and not topic.partitions:
        return refused
    partitions = {part.partition_index: _partition_view(part) for part in topic.partitions}
    if any(number < 0 for number in partitions):
        raise MalformedReplyError(f"{source} has a negative partition of topic {topic.name}")
    return TopicView(topic.name, topic.topic_id or ZERO_UUID, topic.is_internal, dict(sorted(partitions.items())))


def _partition_view(part: MetadataResponse.MetadataResponsePartition) -> PartitionView:
    return PartitionView(
        part.partition_index,
        part.leader_id,
        part.leader_epoch,
        tuple(part.replica_nodes),
        tuple(part.isr_nodes),
        tuple(part.offline_replicas),
        error_code(part.error_code),
    )
