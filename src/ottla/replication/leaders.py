"""Where partitions are led, as far as this broker knows: for answers that send somebody elsewhere (KIP-951).

Zone: deterministic. What the handlers of this room ask of the cluster's view; the cluster answers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition_registry import HostedTopic


class CurrentLeader(NamedTuple):
    """Who leads a partition; -1: nobody."""

    leader: int
    leader_epoch: int


class Address(NamedTuple):
    """Where a live broker is reached by those who came through a listener."""

    node_id: int
    host: str
    port: int
    rack: str | None


class Leaders(Protocol):
    """The cluster's view."""

    def leader_of(self, topic: str | bytes, partition: int) -> CurrentLeader | None:
        """The leader of a partition of the cluster, by topic name or id; None: there is no such partition."""
        ...

    def knows(self, topic: str | bytes) -> bool:
        """Whether there is a topic of that name or id."""
        ...

    def address(self, node_id: int, listener: str) -> Address | None:
        """A live broker that has this listener; None otherwise."""
        ...

    def is_alive(self, node_id: int) -> bool:
        """Whether that broker is registered."""
        ...


class NoLeaders:
    """The view of nobody: every partition that is not here does not exist."""

    def leader_of(self, _topic: str | bytes, _partition: int) -> CurrentLeader | None:
        """None."""
        return None

    def knows(self, _topic: str | bytes) -> bool:
        """False."""
        return False

    def address(self, _node_id: int, _listener: str) -> Address | None:
        """None."""
        return None

    def is_alive(self, _node_id: int) -> bool:
        """False."""
        return False


def missing(leaders: Leaders, topic: str | bytes, partition: int) -> ApiError:
    """Why a partition is not found here: it lives on other brokers, or nowhere."""
    found = leaders.leader_of(topic, partition)
    if found is not None:
        text = f"this broker has no replica of partition {partition}, broker {found.leader} leads it (-1: nobody)"
        return ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER, text)
    if isinstance(topic, bytes) and not leaders.knows(topic):
        return ApiError(ErrorCode.UNKNOWN_TOPIC_ID, "the cluster has no topic of that id")
    return ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "the cluster has no such topic, or partition of it")


def current_leader(
    topics: Mapping[Any, HostedTopic], leaders: Leaders, topic: str | bytes, partition: int
) -> CurrentLeader | None:
    """Who leads a partition: its replica here knows first, else the cluster's view; None when neither does."""
    hosted = topics.get(topic)
    here = None if hosted is None else hosted.partitions.get(partition)
    if here is not None and here.leader_epoch >= 0:
        return CurrentLeader(here.leader, here.leader_epoch)
    return leaders.leader_of(topic, partition)
