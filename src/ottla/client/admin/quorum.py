"""The quorum of an Apache Kafka cluster's controllers (KRaft): its leader, voters and observers.

Zone: real. Sends DescribeQuorum (KIP-595, KIP-836, KIP-853), which brokers forward to the leader. Ottla's brokers have
no such quorum: UnsupportedVersionError.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.errors import MalformedReplyError, RefusedError, refused_error
from ottla.client.retry import Deadline
from ottla.types import ZERO_UUID
from ottla.wire.apis import ApiKey
from ottla.wire.messages import DescribeQuorumRequest, DescribeQuorumResponse

_TOPIC: Final = "__cluster_metadata"


class QuorumReplica(NamedTuple):
    """A replica of the metadata log. Times are wall times of the leader in ms; -1: not known."""

    node_id: int
    directory_id: bytes
    """ZERO_UUID before Kafka 3.9, and for voters that the configuration names."""
    log_end_offset: int
    last_fetch_ms: int
    last_caught_up_ms: int
    """When it last had all records of the leader."""


class QuorumEndpoint(NamedTuple):
    """A listener of a controller."""

    name: str
    host: str
    port: int


class QuorumView(NamedTuple):
    """The quorum according to its leader."""

    leader_id: int
    leader_epoch: int
    high_watermark: int
    voters: tuple[QuorumReplica, ...]
    observers: tuple[QuorumReplica, ...]
    endpoints: Mapping[int, tuple[QuorumEndpoint, ...]]
    """Of nodes; empty before Kafka 3.9."""


class QuorumAdmin:
    """Calls about the quorum of controllers over a Cluster."""

    __slots__ = ("_cluster",)

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def describe_metadata_quorum(self, deadline: Deadline | None = None) -> QuorumView:
        """The quorum. Raises RefusedError CLUSTER_AUTHORIZATION_FAILED, UnsupportedVersionError and others."""
        request = DescribeQuorumRequest
        topic = request.TopicData(topic_name=_TOPIC, partitions=[request.PartitionData(partition_index=0)])
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_QUORUM,
            lambda _: request(topics=[topic]),
            DescribeQuorumResponse,
            deadline=deadline,
            refused=_quorum_refusal,
        )
        found = answer.topics[0].partitions[0]
        return QuorumView(
            found.leader_id,
            found.leader_epoch,
            found.high_watermark,
            tuple(map(_quorum_replica, found.current_voters)),
            tuple(map(_quorum_replica, found.observers)),
            {
                node.node_id: tuple(QuorumEndpoint(each.name, each.host, each.port) for each in node.listeners)
                for node in answer.nodes
            },
        )


def _quorum_refusal(answer: DescribeQuorumResponse) -> RefusedError | None:
    # An error of the whole request comes without the partition.
    if answer.error_code:
        return refused_error(answer.error_code, "quorum", answer.error_message)
    if [(topic.topic_name, len(topic.partitions)) for topic in answer.topics] != [(_TOPIC, 1)]:
        raise MalformedReplyError("the response to DescribeQuorum is not about the metadata log")
    found = answer.topics[0].partitions[0]
    return refused_error(found.error_code, "quorum", found.error_message)


def _quorum_replica(row: DescribeQuorumResponse.ReplicaState) -> QuorumReplica:
    return QuorumReplica(
        row.replica_id,
        row.replica_directory_id or ZERO_UUID,
        row.log_end_offset,
        row.last_fetch_timestamp,
        row.last_caught_up_timestamp,
    )
