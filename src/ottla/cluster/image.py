"""The cluster image: an immutable view of brokers, topics, partitions and their settings.

Zone: pure. A change creates a new image; readers of the old one keep a consistent view. `cluster` maintains the image,
`layout` has the nodes of the metadata store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from ottla.config.topic import TopicConfig
from ottla.immutable_map import ImmutableMap
from ottla.types import Endpoint, TopicPartition

NO_LEADER: Final = -1
CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"
INTERNAL_TOPICS: Final = (CONSUMER_OFFSETS, TRANSACTION_STATE, SHARE_GROUP_STATE)


class BrokerImage(NamedTuple):
    """A live broker. `epoch` is the czxid of its registration: a later registration has a larger one."""

    node_id: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    epoch: int
    host: str | None = None
    """The machine that the broker runs on, if the operator named it. Only the controller knows it."""
    is_blank: bool = False
    """Whether a log directory was new when the broker registered. Only the controller knows it."""
    incomplete: tuple[TopicPartition, ...] = ()
    """Partitions whose logs had lost records when the broker registered. Only the controller knows them."""

    def has_lost(self, tp: TopicPartition) -> bool:
        """Whether the broker had lost records of this partition when it registered."""
        return self.is_blank or tp in self.incomplete

    def endpoint_of(self, listener: str) -> Endpoint | None:
        """The endpoint of the broker for clients of that listener."""
        for endpoint in self.endpoints:
            if endpoint.listener == listener:
                return endpoint
        return None


class PartitionImage(NamedTuple):
    """One partition. `state_version` is the version of its state node, Kafka's partition epoch."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    state_version: int = 0
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()
    """Replicas that cannot serve, because their broker is down or their log directory has failed."""


class TopicImage(NamedTuple):
    """One topic. Partition p is `partitions[p]`."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    overrides: Mapping[str, str]
    """The topic's own settings, as text."""
    config: TopicConfig
    """All settings, resolved."""

    @property
    def is_internal(self) -> bool:
        """Whether the brokers themselves write the topic."""
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """The whole view. `epoch` rises with every change, so that responses built from an image can be cached."""

    epoch: int = 0
    cluster_id: str | None = None
    controller_id: int = NO_LEADER
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: ImmutableMap[str, TopicImage] = field(default_factory=ImmutableMap)
    names_by_id: ImmutableMap[bytes, str] = field(default_factory=ImmutableMap)
    broker_defaults: Mapping[str, str] = field(default_factory=dict)
    """Cluster-wide dynamic settings of brokers, as text."""
    broker_overrides: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """Dynamic settings of single brokers, as text."""

    def topic_by_name(self, name: str) -> TopicImage | None:
        """The topic of that name."""
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        """The topic with that id."""
        name = self.names_by_id.get(topic_id)
        return None if name is None else self.topics[name]

    def find_partition(self, topic: str, partition: int) -> PartitionImage | None:
        """The partition, None if it does not exist."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def with_topics(self, changes: Mapping[str, TopicImage | None]) -> ClusterImage:
        """The next image: topics that are new or changed, by name, and None for those that are gone."""
        gone = [old for name in changes if (old := self.topics.get(name)) is not None]
        there = [topic for topic in changes.values() if topic is not None]
        topics = self.topics.removed(name for name, topic in changes.items() if topic is None)
        ids = self.names_by_id.removed(topic.topic_id for topic in gone)
        return replace(
            self,
            epoch=self.epoch + 1,
            topics=topics.updated({topic.name: topic for topic in there}),
            names_by_id=ids.updated({topic.topic_id: topic.name for topic in there}),
        )


class Delta(NamedTuple):
    """The differences between one image and the next: names of topics, in order."""

    deleted: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    """New topics, and those with new partitions or leaders."""
    configured: tuple[str, ...] = ()
    """Topics whose settings changed."""
    broker_config: bool = False
    """Whether this broker's own settings changed."""
