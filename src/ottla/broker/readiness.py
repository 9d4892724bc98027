"""When a broker that has just joined is ready: the controller has told it of everything that it has to do with.

Zone: deterministic. A comparison of what the image says with what was ordered, which remembers how far it has come.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.cluster.image import NO_LEADER, ClusterImage, PartitionImage
from ottla.types import TopicPartition


class Readiness:
    """Looks for what is still missing."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._told: dict[TopicPartition, None] = {}
        """Partitions whose orders (LeaderAndIsr) have been carried out, or could not be."""
        self.missing: str | None = None
        """A topic or partition that was missing when it was last looked at."""
        self._missing: TopicPartition | None = None

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """These orders have been carried out."""
        self._told.update(dict.fromkeys(partitions))

    def look(self, image: ClusterImage, expected: Sequence[str]) -> bool:
        """Whether nothing is missing. `expected`: the topics that were there when the broker joined."""
        if self._node_id not in image.brokers or self._still_missing(image):
            return False
        self.missing = next((name for name in expected if name not in image.topics), None)
        if self.missing is None:
            self._missing = self._find(image)
            self.missing = None if self._missing is None else str(self._missing)
        return self.missing is None

    def _still_missing(self, image: ClusterImage) -> bool:
        """Whether the partition that was missing before still is: looking at one is cheaper than looking at all."""
        if self._missing is None:
            return False
        partition = image.partition(*self._missing)
        return partition is not None and self._lacks(self._missing, partition)

    def _find(self, image: ClusterImage) -> TopicPartition | None:
        for topic in image.topics.values():
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition)
                if self._lacks(tp, partition):
                    return tp
        return None

    def _lacks(self, tp: TopicPartition, partition: PartitionImage) -> bool:
        """Its order has not come, or an election in which this broker is a candidate is not over."""
        if self._node_id not in partition.replicas:
            return False
        return tp not in self._told or (partition.leader == NO_LEADER and self._node_id in partition.isr)
