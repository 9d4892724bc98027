"""Decides when a broker that has joined is ready: it has applied orders for all its partitions in the cluster image.

Zone: deterministic. Compares the image with the applied orders, and remembers the first difference.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.cluster.image import NO_LEADER, ClusterImage, PartitionImage
from ottla.types import TopicPartition


class Readiness:
    """Finds partitions whose image or order is still missing."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._applied: dict[str, dict[int, None]] = {}
        """Partitions, by topic, whose orders (LeaderAndIsr) were applied, or failed."""
        self._unseen: dict[str, dict[int, None]] = {}
        """Those of them that the image does not contain yet."""
        self.applied_orders = 0
        """The number of applied orders."""
        self.missing: str | None = None
        """A topic or partition that was missing at the last check."""
        self._missing: TopicPartition | None = None

    def mark_applied(self, partitions: Iterable[TopicPartition]) -> None:
        """Note partitions whose orders were applied."""
        for topic, number in partitions:
            told = self._applied.setdefault(topic, {})
            self.applied_orders += number not in told
            told[number] = None
            self._unseen.setdefault(topic, {})[number] = None

    def forget_topics(self, topics: Iterable[str]) -> None:
        """Forget topics that were deleted."""
        for topic in topics:
            self._applied.pop(topic, None)
            self._unseen.pop(topic, None)

    def lacks_topics(self, image: ClusterImage, expected: Iterable[str]) -> bool:
        """Whether the image is older than the broker's registration, or lacks topics or partitions that exist."""
        # An image without this broker does not show what the broker will be assigned.
        return self._node_id not in image.brokers or self._find_unseen(image, expected) is not None

    def is_complete(self, image: ClusterImage, expected: Iterable[str]) -> bool:
        """Whether nothing is missing. `expected`: the topics that existed when the broker joined."""
        if self._node_id not in image.brokers or self._still_missing(image):
            return False
        self.missing = self._find_unseen(image, expected)
        if self.missing is None:
            self._missing = self._find_image(image)
            self.missing = None if self._missing is None else str(self._missing)
        return self.missing is None

    def _find_unseen(self, image: ClusterImage, expected: Iterable[str]) -> str | None:
        return self._not_shown(image) or next((name for name in expected if name not in image.topics), None)

    def _not_shown(self, image: ClusterImage) -> str | None:
        """A partition that was ordered and is not in the image yet: large topics arrive in pieces."""
        while self._unseen:
            topic, numbers = next(iter(self._unseen.items()))
            for number in list(numbers):
                if image.find_partition(topic, number) is None:
                    return str(TopicPartition(topic, number))
                del numbers[number]
            del self._unseen[topic]
        return None

    def _still_missing(self, image: ClusterImage) -> bool:
        """Whether the partition of the last check is still missing, which is cheaper than to check all."""
        if self._missing is None:
            return False
        partition = image.find_partition(*self._missing)
        return partition is not None and self._is_missing(self._missing, partition)

    def _find_image(self, image: ClusterImage) -> TopicPartition | None:
        for topic in image.topics.values():
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition)
                if self._is_missing(tp, partition):
                    return tp
        return None

    def _is_missing(self, tp: TopicPartition, partition: PartitionImage) -> bool:
        """Whether something about a partition is still to come."""
        # 1. A partition of other brokers, unless its replicas have not arrived yet.
        if self._node_id not in partition.replicas:
            return not partition.replicas
        # 2. Its order has not arrived.
        if tp.partition not in self._applied.get(tp.topic, ()):
            return True
        # 3. Its election is not over, and this broker may win it; it cannot if its log directory is out of service.
        is_candidate = self._node_id in partition.isr and self._node_id not in partition.offline
        return partition.leader == NO_LEADER and is_candidate
