"""The group coordinator's view of the cluster: topics, their ids, and the leaders of `__consumer_offsets`.

Zone: deterministic. Looks up the cluster image.
"""

from __future__ import annotations

from ottla.cluster.cluster import Cluster


class GroupClusterView:
    """Implements `TopicLookup` of `ottla.groups`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def partition_count(self, topic: str) -> int:
        """The number of partitions of a topic; 0: there is no such topic."""
        found = self._cluster.image.topics.get(topic)
        return 0 if found is None else len(found.partitions)

    def name_of(self, topic_id: bytes) -> str:
        """The name of the topic with that id; "" when there is none."""
        found = self._cluster.image.topic_by_id(topic_id)
        return "" if found is None else found.name

    def id_of(self, topic: str) -> bytes | None:
        """The id of a topic; None: there is no such topic."""
        found = self._cluster.image.topics.get(topic)
        return None if found is None else found.topic_id

    def is_to_lead(self, topic: str, partition: int) -> bool:
        """Whether the cluster expects this broker to lead a partition."""
        found = self._cluster.image.find_partition(topic, partition)
        return found is not None and found.leader == self._cluster.node_id
