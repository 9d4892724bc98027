"""Applies UpdateMetadata requests to the image.

Zone: pure. The request in, the next image out. The request does not contain settings: callers have read those of new
topics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from ottla.cluster.image import NO_LEADER, BrokerImage, ClusterImage, Delta, PartitionImage, TopicImage
from ottla.errors import ApiError, ErrorCode
from ottla.types import Endpoint
from ottla.wire.messages import UpdateMetadataRequest

MAX_PARTITIONS: Final = 1_000_000
"""Limit of partitions of one topic: ten times as many as Kafka clusters with ZooKeeper had in all their topics."""
LEADER_DURING_DELETE: Final = -2
"""The leader of a partition whose topic is being deleted."""
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Security protocols by their number in the request."""

_Topic = UpdateMetadataRequest.UpdateMetadataTopicState
_Partition = UpdateMetadataRequest.UpdateMetadataPartitionState
MakeTopic = Callable[[str, bytes, tuple[PartitionImage, ...]], TopicImage]
"""A topic with its settings, from name, id and partitions."""


def check_partitions(request: UpdateMetadataRequest) -> None:
    """Raise ApiError INVALID_REQUEST for an impossible partition number: the image has an entry for each below it."""
    for topic in request.topic_states:
        for partition in topic.partition_states:
            if not 0 <= partition.partition_index < MAX_PARTITIONS:
                message = f"topic {topic.topic_name!r} has no partition {partition.partition_index}"
                raise ApiError(ErrorCode.INVALID_REQUEST, message)


def new_topics(image: ClusterImage, request: UpdateMetadataRequest) -> list[str]:
    """The names of topics that the image lacks, or has with another id."""
    return [topic.topic_name for topic in request.topic_states if not _is_deletion(topic) and _is_new(image, topic)]


def apply_request(
    image: ClusterImage, request: UpdateMetadataRequest, own: BrokerImage, make: MakeTopic
) -> tuple[ClusterImage, Delta]:
    """The next image. `own`: this broker's registration, whose epoch the request does not contain.

    1. A deletion removes the topic, unless the image already has a later topic of that name.
    2. A topic with another id replaces the one of that name as a whole.
    3. Else the request's partitions replace those of the same number; the others stay.
    """
    changes: dict[str, TopicImage | None] = {}
    """Topics that are gone are None."""
    deleted, changed = [], []
    for state in request.topic_states:
        present = changes[state.topic_name] if state.topic_name in changes else image.topics.get(state.topic_name)
        if _is_deletion(state):
            if present is not None and present.topic_id == state.topic_id:
                changes[state.topic_name] = None
                deleted.append(state.topic_name)
            continue
        if present is not None and present.topic_id != state.topic_id:
            # The topic was deleted and created again, and this broker missed the deletion.
            present = None
        changes[state.topic_name] = _merge_topic(state, present, make)
        changed.append(state.topic_name)
    brokers = {
        broker.id: _broker_image(broker, own) for broker in sorted(request.live_brokers, key=lambda each: each.id)
    }
    after = replace(image.with_topics(changes), controller_id=request.controller_id, brokers=brokers)
    return after, Delta(deleted=tuple(deleted), changed=tuple(changed))


def _is_deletion(topic: _Topic) -> bool:
    return any(partition.leader == LEADER_DURING_DELETE for partition in topic.partition_states)


def _is_new(image: ClusterImage, topic: _Topic) -> bool:
    present = image.topics.get(topic.topic_name)
    return present is None or present.topic_id != topic.topic_id


def _merge_topic(state: _Topic, present: TopicImage | None, make: MakeTopic) -> TopicImage:
    before = () if present is None else present.partitions
    partitions = tuple(_merge_partitions(before, {one.partition_index: one for one in state.partition_states}))
    if present is not None:
        if partitions == present.partitions:
            return present  # the same object, so that values cached for its partitions stay valid
        return present._replace(partitions=partitions)
    return make(state.topic_name, state.topic_id, partitions)


def _merge_partitions(before: tuple[PartitionImage, ...], told: Mapping[int, _Partition]) -> Iterable[PartitionImage]:
    """All partitions in order. One that no request has contained yet, below a known one, has no leader."""
    for index in range(max(len(before), 1 + max(told, default=-1))):
        if index in told:
            yield _partition_image(told[index])
        elif index < len(before):
            yield before[index]
        else:
            yield PartitionImage(index, NO_LEADER, 0, (), ())


def _partition_image(told: _Partition) -> PartitionImage:
    return PartitionImage(
        told.partition_index,
        told.leader,
        told.leader_epoch,
        tuple(told.replicas),
        tuple(told.isr),
        told.zk_version,
        offline=tuple(told.offline_replicas),
    )


def _broker_image(broker: UpdateMetadataRequest.UpdateMetadataBroker, own: BrokerImage) -> BrokerImage:
    endpoints = tuple(
        Endpoint(each.listener, each.host, each.port, _protocol_name(each.security_protocol))
        for each in broker.endpoints
    )
    return BrokerImage(broker.id, endpoints, broker.rack, own.epoch if broker.id == own.node_id else 0)


def _protocol_name(number: int) -> str:
    return PROTOCOLS[number] if 0 <= number < len(PROTOCOLS) else PROTOCOLS[0]
