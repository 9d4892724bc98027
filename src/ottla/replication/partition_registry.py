"""The partitions that this broker hosts, by topic name and by topic id. Every Produce and Fetch looks them up here.

Zone: deterministic. A directory only; the replica manager creates and deletes partitions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ottla.replication.partition.partition import Partition
from ottla.types import INTERNAL_TOPICS, TopicPartition


class HostedTopic:
    """A topic with its partitions on this broker."""

    __slots__ = (
        "direct",
        "failed_fetches",
        "failed_produces",
        "heads",
        "internal",
        "name",
        "partitions",
        "prepared",
        "topic_id",
        "writable",
    )

    def __init__(self, name: str, topic_id: bytes) -> None:
        self.name = name
        self.topic_id = topic_id
        self.internal = name in INTERNAL_TOPICS
        self.partitions: dict[int, Partition] = {}
        self.writable: dict[int, Partition] = {} if self.internal else self.partitions
        """The partitions that clients may produce to."""
        self.direct = self.writable
        """Those of them whose batches are appended as they come: all, or none if the topic is `prepared`."""
        self.prepared = False
        """Whether batches are inspected, recompressed or down-converted before they are appended."""
        self.failed_produces = 0
        self.failed_fetches = 0
        self.heads: dict[int, bytes] = {}
        """The encoded beginning of the usual response to a Produce to this topic, by version."""


Topics = Mapping[Any, HostedTopic]
"""Topics by name, or by id where the request's version has ids."""


def find_writable(topics: Topics, name: Any, index: int) -> Partition | None:
    """A partition that clients may produce to; None if it is not here or its topic is internal."""
    topic = topics.get(name)
    return None if topic is None else topic.writable.get(index)


class PartitionRegistry:
    """Topics by name and by id."""

    __slots__ = ("by_id", "by_name", "preparing")

    def __init__(self) -> None:
        self.by_name: dict[str, HostedTopic] = {}
        self.by_id: dict[bytes, HostedTopic] = {}
        self.preparing = False
        """Whether there ever was a `prepared` topic; while False, Produce skips the check of each topic."""

    def get_or_add_topic(self, name: str, topic_id: bytes) -> HostedTopic:
        """The topic of that name, added if it is new."""
        topic = self.by_name.get(name)
        if topic is None or topic.topic_id != topic_id:
            assert topic is None or not topic.partitions, "forget_topic comes before a topic of the same name"
            topic = self.by_name[name] = self.by_id[topic_id] = HostedTopic(name, topic_id)
        return topic

    def forget_topic(self, name: str) -> HostedTopic | None:
        """Remove a topic, and notify its partitions, so that requests that wait for them look again."""
        topic = self.by_name.pop(name, None)
        if topic is not None:
            del self.by_id[topic.topic_id]
            for partition in topic.partitions.values():
                partition.wake_watchers()
        return topic

    def remove_partition(self, tp: TopicPartition) -> None:
        """Remove a replica, and its topic if that was the last one."""
        topic = self.by_name.get(tp.topic)
        if topic is not None:
            topic.partitions.pop(tp.partition, None)
            # The same dict as above, but for internal topics, which have an empty one.
            topic.writable.pop(tp.partition, None)
            if not topic.partitions:
                self.forget_topic(tp.topic)

    def find_partition(self, name: str, index: int) -> Partition | None:
        """A partition by topic name."""
        topic = self.by_name.get(name)
        return None if topic is None else topic.partitions.get(index)

    def __iter__(self) -> Iterator[Partition]:
        for topic in self.by_name.values():
            yield from topic.partitions.values()
