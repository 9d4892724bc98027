"""The controller's state: live brokers, topics, partitions, and the changes that are under way.

Zone: deterministic. State and look-ups only. It follows the store: code that writes to the store updates it afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ottla.cluster.controller.reassignment import is_moving
from ottla.cluster.image import NO_LEADER, BrokerImage, ClusterImage, PartitionImage, TopicImage
from ottla.cluster.store.layout import TopicNode
from ottla.config.topic import TopicConfig
from ottla.types import TopicPartition

NOT_STORED: Final = -1
"""State version of a partition that has no state node yet."""


class ControlledTopic:
    """One topic. `node_version` is the version of its assignment node."""

    __slots__ = ("image", "name", "node_version", "partitions", "topic_id")

    def __init__(self, name: str, topic_id: bytes, node_version: int) -> None:
        self.name = name
        self.topic_id = topic_id
        self.node_version = node_version
        self.partitions: dict[int, PartitionImage] = {}
        """By number, in that order, without a gap."""
        self.image: TopicImage | None = None
        """The same as an immutable image; None after a change until a reader needs it."""


def assignment_node(topic_id: bytes, partitions: Mapping[int, PartitionImage]) -> TopicNode:
    """The assignment node of a topic with these partitions."""
    return TopicNode(
        topic_id,
        {number: each.replicas for number, each in partitions.items()},
        {number: each.adding for number, each in partitions.items() if each.adding},
        {number: each.removing for number, each in partitions.items() if each.removing},
    )


class ControllerContext:
    """The controller's state. Iteration is in the order of insertion or sorted, so that seeds replay."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerImage] = {}
        """Registered brokers, including those that are stopping."""
        self.stopping: dict[int, None] = {}
        """Brokers that asked for a controlled shutdown."""
        self.topics: dict[str, ControlledTopic] = {}
        self.names_by_id: dict[bytes, str] = {}
        self.deleting: dict[str, dict[tuple[TopicPartition, int], None]] = {}
        """Topics whose deletion is decided, with the replicas that have not confirmed it."""
        self.creating: dict[str, None] = {}
        """Names of topics that are being created."""
        self.is_new = True
        """True until this controller has read the state of the cluster."""
        self.changed_at: dict[TopicPartition, int] = {}
        """While `is_new`: the zxid that last wrote each state. A broker with a higher epoch has registered since."""
        self.moving: dict[TopicPartition, None] = {}
        """Partitions with replicas being added or removed."""
        self.broken: dict[TopicPartition, None] = {}
        """Partitions whose state node cannot be decoded: the controller does not change them."""
        self.epoch = 0
        """Rises with every change."""
        self._on_broker: dict[int, dict[TopicPartition, None]] = {}
        self._dead_dirs: dict[int, dict[TopicPartition, None]] = {}
        self._image = ClusterImage()
        self._changed: dict[str, None] = {}
        """Topics that have changed since `_image` was built."""
        self._leaderless: dict[TopicPartition, None] = {}
        """Partitions whose state names no leader."""

    # -- brokers -----------------------------------------------------------------------------------------------

    def put_broker(self, broker: BrokerImage) -> None:
        """Add a broker, or replace its registration."""
        self.brokers[broker.node_id] = broker
        self.brokers = dict(sorted(self.brokers.items()))
        self.epoch += 1

    def remove_broker(self, broker: int) -> None:
        """Remove a broker, and what is known about its log directories."""
        self.brokers.pop(broker, None)
        self.stopping.pop(broker, None)
        self._dead_dirs.pop(broker, None)
        self.epoch += 1

    @property
    def eligible_brokers(self) -> list[int]:
        """Brokers that may lead and join ISRs: alive and not stopping, in ascending order."""
        return [broker for broker in self.brokers if broker not in self.stopping]

    def replicas_on(self, broker: int) -> list[TopicPartition]:
        """Partitions with a replica on that broker."""
        return list(self._on_broker.get(broker, ()))

    def set_offline(self, broker: int, tp: TopicPartition, offline: bool) -> bool:
        """Record whether a replica's log directory has failed. Returns whether that is a change."""
        dead = self._dead_dirs.setdefault(broker, {})
        if offline == (tp in dead):
            return False
        if offline:
            dead[tp] = None
        else:
            del dead[tp]
        self.epoch += 1
        return True

    def online_replicas(self, tp: TopicPartition, replicas: Iterable[int]) -> tuple[int, ...]:
        """The replicas among these that could lead now: alive, not stopping, in a working log directory."""
        return tuple(
            replica
            for replica in replicas
            if replica in self.brokers and replica not in self.stopping and not self.in_dead_dir(replica, tp)
        )

    def in_dead_dir(self, broker: int, tp: TopicPartition) -> bool:
        """Whether the replica's log directory is known to have failed."""
        return tp in self._dead_dirs.get(broker, ())

    # -- topics ------------------------------------------------------------------------------------------------

    def put_topic(self, topic: ControlledTopic, partitions: Iterable[PartitionImage]) -> None:
        """Add a topic with these partitions."""
        self.topics[topic.name] = topic
        self.names_by_id[topic.topic_id] = topic.name
        for partition in partitions:
            self.put_partition(TopicPartition(topic.name, partition.partition), partition)

    def begin_deletion(self, name: str) -> None:
        """Record that a topic's deletion is decided. Ends its moves; no replica has confirmed the deletion yet."""
        left: dict[tuple[TopicPartition, int], None] = {}
        for number, partition in self.topics[name].partitions.items():
            tp = TopicPartition(name, number)
            self.moving.pop(tp, None)
            left |= {(tp, replica): None for replica in partition.replicas}
        self.deleting[name] = left
        self._changed[name] = None
        self.epoch += 1

    def remove_topic(self, name: str) -> None:
        """Remove a topic and everything that is known about its partitions."""
        topic = self.topics.pop(name)
        self.names_by_id.pop(topic.topic_id, None)
        self.deleting.pop(name, None)
        for number, partition in topic.partitions.items():
            tp = TopicPartition(name, number)
            self.moving.pop(tp, None)
            self.broken.pop(tp, None)
            self._leaderless.pop(tp, None)
            self._forget_replicas(tp, partition.replicas)
        self._changed[name] = None
        self.epoch += 1

    def find_partition(self, tp: TopicPartition) -> PartitionImage | None:
        """The state of a partition, None if it does not exist."""
        topic = self.topics.get(tp.topic)
        return None if topic is None else topic.partitions.get(tp.partition)

    def put_partition(self, tp: TopicPartition, partition: PartitionImage) -> None:
        """Add a partition, or replace its state, and update the indexes by broker, move and leader."""
        topic = self.topics[tp.topic]
        before = topic.partitions.get(tp.partition)
        if before is None or before.replicas != partition.replicas:
            # Only replicas that leave the assignment lose their entry; what is known of the others stays.
            gone = () if before is None else [each for each in before.replicas if each not in partition.replicas]
            self._forget_replicas(tp, gone)
            for replica in partition.replicas:
                self._on_broker.setdefault(replica, {})[tp] = None
        # The indexes follow every change, so that no reader has to scan all partitions.
        if is_moving(partition) and tp.topic not in self.deleting:
            self.moving[tp] = None
        else:
            self.moving.pop(tp, None)
        if partition.leader == NO_LEADER:
            self._leaderless[tp] = None
        else:
            self._leaderless.pop(tp, None)
        topic.partitions[tp.partition] = partition
        topic.image = None
        self._changed[tp.topic] = None
        self.epoch += 1

    def _forget_replicas(self, tp: TopicPartition, replicas: Sequence[int]) -> None:
        for replica in replicas:
            self._on_broker[replica].pop(tp, None)
            self._dead_dirs.get(replica, {}).pop(tp, None)

    def all_partitions(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        """All partitions, also of topics that are being deleted."""
        for topic in self.topics.values():
            for number, partition in topic.partitions.items():
                yield TopicPartition(topic.name, number), partition

    def without_leader(self) -> list[TopicPartition]:
        """Partitions whose state names no leader, or one that could not lead now. Leaves out topics being deleted.

        Checks only the partitions of dead or stopping brokers and of failed log directories, not all partitions.
        """
        # 1. No leader in the state. 2. Replicas on dead or stopping brokers. 3. Replicas in failed log directories.
        # Any other partition has a leader that was online when its state was written, and still is.
        suspects = dict(self._leaderless)
        for broker, replicas in self._on_broker.items():
            if broker not in self.brokers or broker in self.stopping:
                suspects |= replicas
        for replicas in self._dead_dirs.values():
            suspects |= replicas
        return [tp for tp in suspects if tp.topic not in self.deleting and not self._is_led(tp)]

    def _is_led(self, tp: TopicPartition) -> bool:
        partition = self.find_partition(tp)
        return partition is None or bool(self.online_replicas(tp, (partition.leader,)))

    def live_partitions(self) -> Iterator[tuple[TopicPartition, PartitionImage]]:
        """All partitions of topics that are not being deleted."""
        return ((tp, partition) for tp, partition in self.all_partitions() if tp.topic not in self.deleting)

    # -- for readers -------------------------------------------------------------------------------------------

    def cluster_image(self, controller_id: int, defaults: TopicConfig) -> ClusterImage:
        """An immutable view of the state. Only the topics that changed are built again."""
        if self._image.epoch != self.epoch or self._image.controller_id != controller_id:
            # Unchanged topics stay the same objects.
            changes = {name: self._changed_topic(name, defaults) for name in self._changed}
            self._changed.clear()
            self._image = replace(
                self._image.with_topics(changes),
                epoch=self.epoch,
                controller_id=controller_id,
                brokers=dict(self.brokers),
            )
        return self._image

    def _changed_topic(self, name: str, defaults: TopicConfig) -> TopicImage | None:
        return _topic_image(self.topics[name], defaults) if name in self.topics and name not in self.deleting else None

    # -- counts ------------------------------------------------------------------------------------------------

    def offline_partitions(self) -> int:
        """The number of partitions that have no live leader."""
        return sum(
            partition.leader == NO_LEADER or partition.leader not in self.brokers
            for _, partition in self.live_partitions()
        )

    def not_led_by_preferred(self) -> int:
        """The number of partitions that are not led by their first replica."""
        return sum(partition.leader != partition.replicas[0] for _, partition in self.live_partitions())


def _topic_image(topic: ControlledTopic, defaults: TopicConfig) -> TopicImage:
    if topic.image is None:
        settings: Mapping[str, str] = {}
        topic.image = TopicImage(topic.name, topic.topic_id, tuple(topic.partitions.values()), settings, defaults)
    return topic.image
