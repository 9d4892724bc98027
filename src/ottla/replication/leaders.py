"""The current leaders of partitions, as far as this broker knows: for responses that redirect a client (KIP-951).

Zone: deterministic. The interface through which the handlers here query the cluster's view; `cluster` implements it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition_registry import HostedTopic


class CurrentLeader(NamedTuple):
    """The leader of a partition; -1: it has none."""

    leader: int
    leader_epoch: int


class Address(NamedTuple):
    """The address of a live broker for clients that connected through a given listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Leaders(Protocol):
    """The cluster's view of leaders and brokers."""

    def leader_of(self, topic: str | bytes, partition: int) -> CurrentLeader | None:
        """The leader of a partition of the cluster, by topic name or id; None: there is no such partition."""
        ...

    def knows_topic(self, topic: str | bytes) -> bool:
        """Whether there is a topic of that name or id."""
        ...

    def name_of_topic(self, topic_id: bytes) -> str | None:
        """The name of the topic with that id; None: there is none."""
        ...

    def broker_address(self, node_id: int, listener: str) -> Address | None:
        """A live broker that has this listener; None otherwise."""
        ...

    def is_alive(self, node_id: int) -> bool:
        """Whether that broker is registered."""
        ...


class NoLeaders:
    """A view without a cluster: a partition that is not on this broker does not exist."""

    def leader_of(self, _topic: str | bytes, _partition: int) -> CurrentLeader | None:
        """None."""
        return None

    def knows_topic(self, _topic: str | bytes) -> bool:
        """False."""
        return False

    def name_of_topic(self, _topic_id: bytes) -> str | None:
        """None."""
        return None

    def broker_address(self, _node_id: int, _listener: str) -> Address | None:
        """None."""
        return None

    def is_alive(self, _node_id: int) -> bool:
        """False."""
        return False


def missing_partition_error(leaders: Leaders, topic: str | bytes, partition: int) -> ApiError:
    """The error for a partition without a replica on this broker."""
    # 1. The cluster has it: the client refreshes its metadata and finds the leader.
    found = leaders.leader_of(topic, partition)
    if found is not None:
        text = f"this broker has no replica of partition {partition}; its leader is broker {found.leader} (-1: none)"
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
    # 2. No topic has this id: it was deleted or recreated, and the client has to look up the id again.
    if isinstance(topic, bytes) and not leaders.knows_topic(topic):
        return ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "the cluster has no topic of that id")
    # 3. The topic has fewer partitions, or does not exist.
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the cluster has no such topic, or partition of it")


def current_leader(
    topics: Mapping[Any, HostedTopic], leaders: Leaders, topic: str | bytes, partition: int
) -> CurrentLeader | None:
    """The leader of a partition, from the replica here or else from the cluster's view; None when neither knows it."""
    # The replica learns of a change from LeaderAndIsr, usually before the view learns of it from UpdateMetadata.
    hosted = topics.get(topic)
    here = None if hosted is None else hosted.partitions.get(partition)
    if here is not None and here.leader_epoch >= 0:
        return CurrentLeader(here.leader, here.leader_epoch)
    return leaders.leader_of(topic, partition)
