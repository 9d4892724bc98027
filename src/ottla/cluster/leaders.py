"""Answers the questions of the Produce and Fetch handlers from the cluster image: leaders and broker addresses.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cluster.coordinators import PartitionOf
from ottla.cluster.image import ClusterImage
from ottla.replication.leaders import Address, CurrentLeader


class ImageLeaders:
    """Implements `ottla.replication.leaders.Leaders` over the current image."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._partition_of: dict[str, PartitionOf] = {}

    def leader_of(self, topic: str | bytes, partition: int) -> CurrentLeader | None:
        """The leader of a partition, by topic name or id; None if the partition does not exist."""
        image = self._image()
        name = image.names_by_id.get(topic, "") if isinstance(topic, bytes) else topic
        found = image.find_partition(name, partition)
        return None if found is None else CurrentLeader(found.leader, found.leader_epoch)

    def coordinator_of(self, topic: str, name: str) -> int | None:
        """The broker that coordinates a name: the leader of its partition of an internal topic. None: no leader."""
        found = self._image().topics.get(topic)
        if found is None or not found.partitions:
            return None
        partition_of = self._partition_of.get(topic)
        if partition_of is None:
            partition_of = self._partition_of[topic] = PartitionOf()
        led = self.leader_of(topic, partition_of(name, len(found.partitions)))
        return None if led is None or led.leader < 0 else led.leader

    def knows_topic(self, topic: str | bytes) -> bool:
        """Whether a topic of that name or id exists."""
        image = self._image()
        return topic in (image.names_by_id if isinstance(topic, bytes) else image.topics)

    def name_of_topic(self, topic_id: bytes) -> str | None:
        """The name of the topic with that id; None: there is none."""
        return self._image().names_by_id.get(topic_id)

    def broker_address(self, node_id: int, listener: str) -> Address | None:
        """The address of a broker for clients of this listener; None if the broker is not alive or lacks it."""
        broker = self._image().brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint_of(listener)
        if broker is None or endpoint is None:
            return None
        return Address(node_id, endpoint.host, endpoint.port, broker.rack)

    def is_alive(self, node_id: int) -> bool:
        """Whether that broker is registered."""
        return node_id in self._image().brokers
