"""The transaction coordinator's view of the cluster: coordinator partitions, leaders, and offsets topics.

Zone: deterministic. Looks up the cluster image; `ottla.transactions` decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.cluster.cluster import Cluster
from ottla.cluster.coordinators import PartitionOf, partition_for
from ottla.cluster.image import CONSUMER_OFFSETS, INTERNAL_TOPICS, NO_LEADER, TRANSACTION_STATE, TopicImage
from ottla.errors import ApiError, ErrorCode
from ottla.replication.partition_registry import PartitionRegistry
from ottla.seams import Clock
from ottla.types import TopicPartition

SETTLED_MS: Final = 5000
"""A coordinator younger than this may not know yet all topics that its predecessor knew."""
_NS_PER_MS: Final = 1_000_000


class InternalTopics(Protocol):
    """The internal topics of the cluster (`ottla.cluster.topic_requests`)."""

    def find_internal_topic(self, name: str, done: Callable[[TopicImage | ApiError], None]) -> None:
        """Pass the topic to `done`; it is created when it is missing."""
        ...


class TransactionClusterView:
    """Implements `ClusterView` and `Topics` of `ottla.transactions`."""

    def __init__(self, cluster: Cluster, hosted: PartitionRegistry, topics: InternalTopics, clock: Clock) -> None:
        self._cluster = cluster
        self._hosted = hosted
        self._topics = topics
        self._clock = clock
        self._settled_ns = 0
        self._partition_of = PartitionOf()

    def took_over(self) -> None:
        """Note the time at which this broker became a coordinator in place of another one."""
        self._settled_ns = self._clock.now().mono_ns + SETTLED_MS * _NS_PER_MS

    # -- for the coordinator -----------------------------------------------------------------------------------------

    def index_of(self, transactional_id: str) -> int:
        """The partition of `__transaction_state` that coordinates an id; -1 without the topic."""
        topic = self._cluster.image.topics.get(TRANSACTION_STATE)
        return -1 if topic is None else self._partition_of(transactional_id, len(topic.partitions))

    def is_to_lead(self, index: int) -> bool:
        """Whether the cluster expects this broker to lead a partition of `__transaction_state`."""
        found = self._cluster.image.find_partition(TRANSACTION_STATE, index)
        return found is not None and found.leader == self._cluster.node_id

    def epoch_of(self, index: int) -> int:
        """The leader epoch of a partition of `__transaction_state` that is led here."""
        partition = self._hosted.find_partition(TRANSACTION_STATE, index)
        assert partition is not None, f"{TRANSACTION_STATE}-{index} is led here"
        return partition.leader_epoch

    def leader_of(self, tp: TopicPartition) -> int | None:
        """The broker that leads a partition; None while there is no leader. Raises KeyError for a deleted partition.

        A partition that counts as deleted gets no marker. So an unknown partition counts as deleted only when this
        broker has been the coordinator for SETTLED_MS: before that, the image may still lack it.
        """
        found = self._cluster.image.find_partition(*tp)
        if found is not None:
            return None if found.leader == NO_LEADER else found.leader
        if self._clock.now().mono_ns < self._settled_ns:
            return None
        raise KeyError(tp)

    # -- for the handlers --------------------------------------------------------------------------------------------

    def partition_refusal(self, tp: TopicPartition, by_client: bool) -> ErrorCode:
        """Why a partition cannot be part of a transaction; NONE if it can. Clients may not name internal topics."""
        if by_client and tp.topic in INTERNAL_TOPICS:
            return ErrorCode.INVALID_TOPIC_EXCEPTION
        known = self._cluster.image.find_partition(*tp) is not None
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def offsets_of(self, group_id: str, done: Callable[[TopicPartition | ApiError], None]) -> None:
        """The partition of `__consumer_offsets` that has a group's offsets; creates the topic when it is missing."""

        def found(outcome: TopicImage | ApiError) -> None:
            if isinstance(outcome, ApiError):
                done(ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE, outcome.message))
            else:
                done(TopicPartition(CONSUMER_OFFSETS, partition_for(group_id, len(outcome.partitions))))

        self._topics.find_internal_topic(CONSUMER_OFFSETS, found)
