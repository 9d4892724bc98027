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
        self._unseen: dict[TopicPartition, None] = {}
        """Those of them that the image has not shown yet."""
        self.missing: str | None = None
        """A topic or partition that was missing when it was last looked at."""
        self._missing: TopicPartition | None = None

    @property
    def told(self) -> int:
        """How many partitions have had their orders."""
        return len(self._told)

    def note(self, partitions: Iterable[TopicPartition]) -> None:
        """These orders have been carried out."""
        fresh = dict.fromkeys(partitions)
        self._told.update(fresh)
        self._unseen.update(fresh)

    def forget(self, topics: Iterable[str]) -> None:
        """These topics are gone."""
        names = frozenset(topics)
        self._unseen = {tp: None for tp in self._unseen if tp.topic not in names}

    def look(self, image: ClusterImage, expected: Sequence[str]) -> bool:
        """Whether nothing is missing. `expected`: the topics that were there when the broker joined."""
        if self._node_id not in image.brokers or self._still_missing(image):
            return False
        self.missing = self._not_shown(image) or next((name for name in expected if name not in image.topics), None)
        if self.missing is None:
            self._missing = self._find(image)
            self.missing = None if self._missing is None else str(self._missing)
        return self.missing is None

    def _not_shown(self, image: ClusterImage) -> str | None:
        """A partition that was ordered and is not in the image: of a large topic that is told a piece at a time."""
        while self._unseen:
            tp = next(iter(self._unseen))
            if image.partition(*tp) is None:
                return str(tp)
            del self._unseen[tp]
        return None

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
        """Nobody has told of it yet, or its order has not come, or an election in which this broker is a candidate is
        not over; of one whose log directory is out of service nothing is to be waited for.
        """
        if self._node_id not in partition.replicas:
            return not partition.replicas
        if tp not in self._told:
            return True
        is_candidate = self._node_id in partition.isr and self._node_id not in partition.offline
        return partition.leader == NO_LEADER and is_candidate
