"""What a controller knows: live brokers, topics, partitions, and what is being done to them.

Zone: deterministic. State and look-ups only; it follows the store, and whoever changes the store changes it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ottla.cluster.controller.reassignment import is_moving
from ottla.cluster.image import NO_LEADER, BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla.cluster.store.layout import TopicNode
from ottla.config.topic import TopicConfig
from ottla.types import TopicPartition

NOT_STORED: Final = -1
"""State version of a partition that has no state node yet."""


class ControlledTopic:
    """One topic. `node_version` is that of its assignment node."""

    __slots__ = ("image", "name", "node_version", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, node_version: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.node_version = node_version
        self.partitions: dict[int, PartitionImage] = {}
        """By number, in that order, without a gap."""
        self.image: TopicImage | None = None
        """The same for readers, until something changes."""


def assignment_node(topic_id: bytes, partitions: Mapping[int, PartitionImage]) -> TopicNode:
    """The assignment node of a topic with these partitions."""
    return TopicNode(
        topic_id,
        {number: each.replicas for number, each in partitions.items()},
        {number: each.adding for number, each in partitions.items() if each.adding},
        {number: each.removing for number, each in partitions.items() if each.removing},
    )


class ControllerContext:
    """The whole of it. Iteration is always in the order of insertion or sorted: seeds must replay."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerImage] = {}
        """Registered brokers, those that are stopping among them."""
        self.stopping: dict[int, None] = {}
        """Brokers that said they are about to stop."""
        self.topics: dict[str, ControlledTopic] = {}
        self.names_by_id: dict[bytes, str] = {}
        self.deleting: dict[str, dict[tuple[TopicPartition, int], None]] = {}
        """Topics whose deletion is decided, with the replicas that have not confirmed it."""
        self.creating: dict[str, None] = {}
        """Names of topics whose creation is on its way."""
        self.is_new = True
        """While the office is being taken."""
        self.changed_at: dict[TopicPartition, int] = {}
        """Until then: the transactions that wrote states; a broker that registered after one is younger than it."""
        self.moving: dict[TopicPartition, None] = {}
        """Partitions with replicas being added or removed."""
        self.broken: dict[TopicPartition, None] = {}
        """Partitions whose state node cannot be understood: they are left alone."""
        self.epoch = 0
        """Grows with every change."""
        self._on_broker: dict[int, dict[TopicPartition, None]] = {}
        self._dead_dirs: dict[int, dict[TopicPartition, None]] = {}
        self._image = ClusterImage()
        self._changed: dict[str, None] = {}
        """Topics that are not in `_image` as they are now."""
        self._unled: dict[TopicPartition, None] = {}
        """Partitions whose state names no leader."""

    # -- brokers -----------------------------------------------------------------------------------------------

    def put_broker(self, broker: BrokerImage) -> None:
        """A broker is there, or is reached elsewhere."""
        self.brokers[broker.node_id] = broker
        self.brokers = dict(sorted(self.brokers.items()))
        self.epoch += 1

    def remove_broker(self, broker: int) -> None:
        """A broker is gone, with what was known of its log directories."""
        self.brokers.pop(broker, None)
        self.stopping.pop(broker, None)
        self._dead_dirs.pop(broker, None)
        self.epoch += 1

    @property
    def eligible(self) -> list[int]:
        """Brokers that may lead and join in-sync replicas: alive and not stopping, in ascending order."""
        return [broker for broker in self.brokers if broker not in self.stopping]

    def replicas_on(self, broker: int) -> list[TopicPartition]:
        """Partitions with a replica on that broker."""
        return list(self._on_broker.get(broker, ()))

    def set_offline(self, broker: int, tp: TopicPartition, offline: bool) -> bool:
        """Note whether a replica's log directory is out of service; True when that is news."""
        dead = self._dead_dirs.setdefault(broker, {})
        if offline == (tp in dead):
            return False
        if offline:
            dead[tp] = None
        else:
            del dead[tp]
        self.epoch += 1
        return True

    def online(self, tp: TopicPartition, replicas: Iterable[int]) -> tuple[int, ...]:
        """Those of the replicas that could lead now."""
        return tuple(
            replica
            for replica in replicas
            if replica in self.brokers and replica not in self.stopping and not self.in_dead_dir(replica, tp)
        )

    def in_dead_dir(self, broker: int, tp: TopicPartition) -> bool:
        """Whether the replica's log directory is known to be out of service."""
        return tp in self._dead_dirs.get(broker, ())

    # -- topics ------------------------------------------------------------------------------------------------

    def put_topic(self, topic: ControlledTopic, partitions: Iterable[PartitionImage]) -> None:
        """A topic is there."""
        self.topics[topic.name] = topic
        self.names_by_id[topic.topic_id] = topic.name
        for partition in partitions:
            self.put_partition(TopicPartition(topic.name, partition.partition), partition)

    def begin_deletion(self, name: str) -> None:
        """A topic's deletion is decided: none of its replicas has confirmed yet, and none is moved any more."""
        left: dict[tuple[TopicPartition, int], None] = {}
        for number, partition in self.topics[name].partitions.items():
            tp = TopicPartition(name, number)
            self.moving.pop(tp, None)
            left |= {(tp, replica): None for replica in partition.replicas}
        self.deleting[name] = left
        self._changed[name] = None
        self.epoch += 1

    def remove_topic(self, name: str) -> None:
        """A topic is gone for good."""
        topic = self.topics.pop(name)
        self.names_by_id.pop(topic.topic_id, None)
        self.deleting.pop(name, None)
        for number, partition in topic.partitions.items():
            tp = TopicPartition(name, number)
            self.moving.pop(tp, None)
            self.broken.pop(tp, None)
            self._unled.pop(tp, None)
            self._forget_replicas(tp, partition.replicas)
        self._changed[name] = None
        self.epoch += 1

    def partition(self, tp: TopicPartition) -> PartitionImage | None:
        """One partition."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def put_partition(self, tp: TopicPartition, partition: PartitionImage) -> None:
        """A partition is there, or is another now."""
        topic = self.topics[tp.topic]
        before = topic.partitions.get(tp.partition)
        if before is None or before.replicas != partition.replicas:
            gone = () if before is None else [each for each in before.replicas if each not in partition.replicas]
            self._forget_replicas(tp, gone)
            for replica in partition.replicas:
                self._on_broker.setdefault(replica, {})[tp] = None
        if is_moving(partition) and tp.topic not in self.deleting:
            self.moving[tp] = None
        else:
            self.moving.pop(tp, None)
        if partition.leader == NO_LEADER:
            self._unled[tp] = None
        else:
            self._unled.pop(tp, None)
        topic.partitions[tp.partition] = partition
        topic.image = None
        self._changed[tp.topic] = None
        self.epoch += 1

    def _forget_replicas(self, tp: TopicPartition, replicas: Sequence[int]) -> None:
        for replica in replicas:
            self._on_broker[replica].pop(tp, None)
            self._dead_dirs.get(replica, {}).pop(tp, None)

    def partitions(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        """All partitions, also of topics that are being deleted."""
        for topic in self.topics.values():
            for number, partition in topic.partitions.items():
                yield TopicPartition(topic.name, number), partition

    def without_leader(self) -> list[TopicPartition]:
        """Partitions of topics that stay whose state names no leader, or one that could not lead now.

        Only those of brokers and log directories that are out of service are looked at, not all partitions.
        """
        suspects = dict(self._unled)
        for broker, replicas in self._on_broker.items():
            if broker not in self.brokers or broker in self.stopping:
                suspects |= replicas
        for replicas in self._dead_dirs.values():
            suspects |= replicas
        return [tp for tp in suspects if tp.topic not in self.deleting and not self._is_led(tp)]

    def _is_led(self, tp: TopicPartition) -> bool:
        partition = self.partition(tp)
        return partition is None or bool(self.online(tp, (partition.leader,)))

    def living(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        """All partitions of topics that stay."""
        return ((tp, partition) for tp, partition in self.partitions() if tp.topic not in self.deleting)

    # -- for readers -------------------------------------------------------------------------------------------

    def image(self, controller_id: int, defaults: TopicConfig) -> ClusterImage:
        """The view of it. After a change the dicts of the last view are copied, and only what changed is made."""
        if self._image.epoch != self.epoch or self._image.controller_id != controller_id:
            topics, ids = dict(self._image.topics), dict(self._image.names_by_id)
            for name in self._changed:
                before = topics.get(name)
                if before is not None:
                    ids.pop(before.topic_id, None)
                if name in self.topics and name not in self.deleting:
                    topics[name] = _topic_image(self.topics[name], defaults)
                    ids[topics[name].topic_id] = name
                else:
                    topics.pop(name, None)
            self._changed.clear()
            self._image = ClusterImage(
                epoch=self.epoch,
                controller_id=controller_id,
                brokers=dict(self.brokers),
                topics=topics,
                names_by_id=ids,
            )
        return self._image

    # -- counts ------------------------------------------------------------------------------------------------

    def offline_partitions(self) -> int:
        """Partitions that nobody leads."""
        return sum(
            partition.leader == NO_LEADER or partition.leader not in self.brokers for _, partition in self.living()
        )

    def not_led_by_preferred(self) -> int:
        """Partitions that another replica than the first one leads."""
        return sum(partition.leader != partition.replicas[0] for _, partition in self.living())


def _topic_image(topic: ControlledTopic, defaults: TopicConfig) -> TopicImage:
    if topic.image is None:
        settings: Mapping[str, str] = {}
        topic.image = TopicImage(topic.name, topic.topic_id, tuple(topic.partitions.values()), settings, defaults)
    return topic.image
