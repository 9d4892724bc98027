"""The cluster image, as the handlers of Produce and Fetch ask it: who leads, where a broker is.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cluster.coordinators import PartitionOf
from ottla.cluster.image import ClusterImage
from ottla.replication.leaders import Address, CurrentLeader


class ImageLeaders:
    """Implements `ottla.replication.leaders.Leaders` over the image that is current when asked."""

    def __init__(self, image: Callable[[], ClusterImage]) -> None:
        self._image = image
        self._partition_of: dict[str, PartitionOf] = {}

    def leader_of(self, topic: str | bytes, partition: int) -> CurrentLeader | None:
        """The leader of a partition of the cluster, by topic name or id; None: there is no such partition."""
        image = self._image()
        name = image.names_by_id.get(topic, "") if isinstance(topic, bytes) else topic
        found = image.partition(name, partition)
        return None if found is None else CurrentLeader(found.leader, found.leader_epoch)

    def coordinator_of(self, topic: str, name: str) -> int | None:
        """The broker that leads the partition of an internal topic which is in charge of a name; None: nobody does."""
        found = self._image().topics.get(topic)
        if found is None or not found.partitions:
            return None
        partition_of = self._partition_of.get(topic)
        if partition_of is None:
            partition_of = self._partition_of[topic] = PartitionOf()
        led = self.leader_of(topic, partition_of(name, len(found.partitions)))
        return None if led is None or led.leader < 0 else led.leader

    def knows(self, topic: str | bytes) -> bool:
        """Whether there is a topic of that name or id."""
        image = self._image()
        return topic in (image.names_by_id if isinstance(topic, bytes) else image.topics)

    def address(self, node_id: int, listener: str) -> Address | None:
        """A live broker that has this listener; None otherwise."""
        broker = self._image().brokers.get(node_id)
        endpoint = None if broker is None else broker.endpoint(listener)
        if broker is None or endpoint is None:
            return None
        return Address(node_id, endpoint.host, endpoint.port, broker.rack)

    def is_alive(self, node_id: int) -> bool:
        """Whether that broker is registered."""
        return node_id in self._image().brokers
