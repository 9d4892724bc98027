"""Builds LeaderAndIsr, UpdateMetadata and StopReplica requests from the controller's state.

Zone: pure. Values in, messages out. `channel` sends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.cluster.image import BrokerImage, PartitionImage
from ottla.types import Endpoint, TopicPartition
from ottla.wire.messages import LeaderAndIsrRequest, StopReplicaRequest, UpdateMetadataRequest

LEADER_AND_ISR_VERSION: Final = 7
UPDATE_METADATA_VERSION: Final = 8
STOP_REPLICA_VERSION: Final = 4
LEADER_DURING_DELETE: Final = -2
"""Leader and leader epoch of a partition whose topic is being deleted: brokers obey it whatever epoch they know."""
_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}

_IsrTopic = LeaderAndIsrRequest.LeaderAndIsrTopicState
_IsrPartition = LeaderAndIsrRequest.LeaderAndIsrPartitionState
_MetaTopic = UpdateMetadataRequest.UpdateMetadataTopicState
_MetaPartition = UpdateMetadataRequest.UpdateMetadataPartitionState
_StopTopic = StopReplicaRequest.StopReplicaTopicState
_StopPartition = StopReplicaRequest.StopReplicaPartitionState


class RequestSender(NamedTuple):
    """The header of a request: the controller with its epoch, and the epoch of the broker that receives it."""

    node_id: int
    controller_epoch: int
    broker_epoch: int


class Leadership(NamedTuple):
    """A partition for LeaderAndIsr. `is_new`: a missing log is created, and not reported as lost."""

    tp: TopicPartition
    topic_id: bytes
    partition: PartitionImage
    is_new: bool


class UpdatedPartition(NamedTuple):
    """A partition for UpdateMetadata; `partition` None: its topic is being deleted."""

    tp: TopicPartition
    topic_id: bytes
    partition: PartitionImage | None
    offline: tuple[int, ...]


class StopOrder(NamedTuple):
    """A replica to stop, and perhaps to delete."""

    tp: TopicPartition
    leader_epoch: int
    delete: bool


def leader_and_isr(
    sender: RequestSender, states: Sequence[Leadership], brokers: Mapping[int, BrokerImage], listener: str
) -> LeaderAndIsrRequest:
    """Build LeaderAndIsr of these partitions. `listener`: the listener for brokers."""
    topics: dict[bytes, _IsrTopic] = {}
    leaders: dict[int, None] = {}
    for state in states:
        topic = topics.get(state.topic_id)
        if topic is None:
            topic = topics[state.topic_id] = _IsrTopic(
                topic_name=state.tp.topic, topic_id=state.topic_id, partition_states=[]
            )
        topic.partition_states.append(_isr_partition(state, sender.controller_epoch))
        # A dictionary keeps the order in which leaders are met; LeaderAndIsr lists each once.
        leaders[state.partition.leader] = None
    return LeaderAndIsrRequest(
        controller_id=sender.node_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=sender.broker_epoch,
        topic_states=list(topics.values()),
        live_leaders=[_live_leader(brokers[leader], listener) for leader in sorted(leaders) if leader in brokers],
    )


def _isr_partition(state: Leadership, controller_epoch: int) -> _IsrPartition:
    partition = state.partition
    return _IsrPartition(
        partition_index=state.tp.partition,
        controller_epoch=controller_epoch,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        partition_epoch=partition.state_version,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
        is_new=state.is_new,
    )


def _live_leader(broker: BrokerImage, listener: str) -> LeaderAndIsrRequest.LeaderAndIsrLiveLeader:
    endpoint = between_brokers(broker, listener)
    return LeaderAndIsrRequest.LeaderAndIsrLiveLeader(
        broker_id=broker.node_id, host_name=endpoint.host, port=endpoint.port
    )


def between_brokers(broker: BrokerImage, listener: str) -> Endpoint:
    """The endpoint for other brokers: that of this listener, or the broker's first one."""
    return broker.endpoint_of(listener) or next(iter(broker.endpoints), Endpoint(listener, "", -1))


def update_metadata(
    sender: RequestSender, states: Iterable[UpdatedPartition], brokers: Mapping[int, BrokerImage]
) -> UpdateMetadataRequest:
    """Build UpdateMetadata with all live brokers and the states of these partitions."""
    topics: dict[tuple[str, bytes], _MetaTopic] = {}
    for state in states:
        # By name and id: a topic that was deleted and created again may be in one request with both of its ids.
        key = (state.tp.topic, state.topic_id)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = _MetaTopic(topic_name=key[0], topic_id=key[1], partition_states=[])
        topic.partition_states.append(_meta_partition(state, sender.controller_epoch))
    return UpdateMetadataRequest(
        controller_id=sender.node_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=sender.broker_epoch,
        topic_states=list(topics.values()),
        live_brokers=[_live_broker(broker) for broker in brokers.values()],
    )


def _meta_partition(state: UpdatedPartition, controller_epoch: int) -> _MetaPartition:
    partition = state.partition
    if partition is None:
        return _MetaPartition(
            partition_index=state.tp.partition,
            controller_epoch=controller_epoch,
            leader=LEADER_DURING_DELETE,
            leader_epoch=LEADER_DURING_DELETE,
        )
    return _MetaPartition(
        partition_index=state.tp.partition,
        controller_epoch=controller_epoch,
        leader=partition.leader,
        leader_epoch=partition.leader_epoch,
        isr=list(partition.isr),
        zk_version=partition.state_version,
        replicas=list(partition.replicas),
        offline_replicas=list(state.offline),
    )


def _live_broker(broker: BrokerImage) -> UpdateMetadataRequest.UpdateMetadataBroker:
    endpoints = [
        UpdateMetadataRequest.UpdateMetadataEndpoint(
            port=endpoint.port,
            host=endpoint.host,
            listener=endpoint.listener,
            security_protocol=_PROTOCOLS.get(endpoint.protocol, 0),
        )
        for endpoint in broker.endpoints
    ]
    return UpdateMetadataRequest.UpdateMetadataBroker(id=broker.node_id, endpoints=endpoints, rack=broker.rack)


def stop_replica(sender: RequestSender, stops: Sequence[StopOrder]) -> StopReplicaRequest:
    """Build StopReplica of these replicas."""
    topics: dict[str, _StopTopic] = {}
    for stop in stops:
        topic = topics.get(stop.tp.topic)
        if topic is None:
            topic = topics[stop.tp.topic] = _StopTopic(topic_name=stop.tp.topic, partition_states=[])
        topic.partition_states.append(
            _StopPartition(
                partition_index=stop.tp.partition, leader_epoch=stop.leader_epoch, delete_partition=stop.delete
            )
        )
    return StopReplicaRequest(
        controller_id=sender.node_id,
        controller_epoch=sender.controller_epoch,
        broker_epoch=sender.broker_epoch,
        topic_states=list(topics.values()),
    )
