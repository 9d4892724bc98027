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
        self._told: dict[str, dict[int, None]] = {}
        """Partitions, by topic, whose orders (LeaderAndIsr) have been carried out, or could not be."""
        self._unseen: dict[str, dict[int, None]] = {}
        """Those of them that the image has not shown yet."""
        self.told = 0
        """How many orders have been carried out."""
        self.missing: str | None = None
        """A topic or partition that was missing when it was last looked at."""
        self._missing: TopicPartition | None = None

    def mark_applied(self, partitions: Iterable[TopicPartition]) -> None:
        """These orders have been carried out."""
        for topic, number in partitions:
            told = self._told.setdefault(topic, {})
            self.told += number not in told
            told[number] = None
            self._unseen.setdefault(topic, {})[number] = None

    def forget_topics(self, topics: Iterable[str]) -> None:
        """These topics are gone."""
        for topic in topics:
            self._told.pop(topic, None)
            self._unseen.pop(topic, None)

    def is_complete(self, image: ClusterImage, expected: Sequence[str]) -> bool:
        """Whether nothing is missing. `expected`: the topics that were there when the broker joined."""
        if self._node_id not in image.brokers or self._still_missing(image):
            return False
        self.missing = self._not_shown(image) or next((name for name in expected if name not in image.topics), None)
        if self.missing is None:
            self._missing = self._find_image(image)
            self.missing = None if self._missing is None else str(self._missing)
        return self.missing is None

    def _not_shown(self, image: ClusterImage) -> str | None:
        """A partition that was ordered and is not in the image: of a large topic that is told a piece at a time."""
        while self._unseen:
            topic, numbers = next(iter(self._unseen.items()))
            for number in list(numbers):
                if image.partition(topic, number) is None:
                    return str(TopicPartition(topic, number))
                del numbers[number]
            del self._unseen[topic]
        return None

    def _still_missing(self, image: ClusterImage) -> bool:
        """Whether the partition that was missing before still is: looking at one is cheaper than looking at all."""
        if self._missing is None:
            return False
        partition = image.partition(*self._missing)
        return partition is not None and self._lacks(self._missing, partition)

    def _find_image(self, image: ClusterImage) -> TopicPartition | None:
        for topic in image.topics.values():
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition)
                if self._lacks(tp, partition):
                    return tp
        return None

    def _lacks(self, tp: TopicPartition, partition: PartitionImage) -> bool:
        """Nobody has told of it yet, or its order has not come, or an election in which this broker is a candidate is
        not over; of one whose log directory is out of service nothing is to be waited for.
        """
        if self._node_id not in partition.replicas:
            return not partition.replicas
        if tp.partition not in self._told.get(tp.topic, ()):
            return True
        is_candidate = self._node_id in partition.isr and self._node_id not in partition.offline
        return partition.leader == NO_LEADER and is_candidate
