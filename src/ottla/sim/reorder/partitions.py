"""One partition of `__transaction_state`, one of `__consumer_offsets`, and one of a topic; their followers and leaders.

Zone: deterministic. Each of the three has another broker number as its leader, so that their requests to each other go
over the network. A follower of each acknowledges at once, unless it is held.
"""

from __future__ import annotations

from typing import Any, Final, cast

from ottla.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE, PartitionImage, TopicImage
from ottla.replication.partition.leader_role import LeaderRole
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import IsrProposal, PartitionState
from ottla.seams import Instant
from ottla.sim.reorder.broker_parts import TOPIC, BrokerParts
from ottla.types import TopicPartition

STATE: Final = TopicPartition(TRANSACTION_STATE, 0)
OFFSETS: Final = TopicPartition(CONSUMER_OFFSETS, 0)
DATA: Final = TopicPartition("t", 0)
PLACES: Final = (STATE, OFFSETS, DATA)
"""Led by the brokers 1, 2 and 3."""
_FOLLOWER: Final = 9


class _Contact:
    """The fetch session of the follower."""

    def __init__(self) -> None:
        self.used_ns = self.previous_ns = -1
        self.is_requested = True

    def on_replaced(self) -> None:
        """Does nothing: there is only one session."""


class Partitions:
    """The three partitions. Implements `IsrChannel` for them."""

    def __init__(self, parts: BrokerParts) -> None:
        self._hosted = parts.base.hosted
        self._contact = _Contact()
        self._epoch = 0
        self._host_partitions(parts)

    def _host_partitions(self, parts: BrokerParts) -> None:
        base = parts.base
        base.logs.load_logs(lambda _: TOPIC)
        topics = []
        for node, (name, index) in enumerate(PLACES, 1):
            topic_id = node.to_bytes(16, "big")
            log = base.logs.create_log(TopicPartition(name, index), topic_id, TOPIC)
            partition = Partition(log, TOPIC, base.node_id, self, parts.replicas.shared)
            self._hosted.get_or_add_topic(name, topic_id).partitions[index] = partition
            image = PartitionImage(index, node, 0, (node, _FOLLOWER), (node, _FOLLOWER))
            topics.append(TopicImage(name, topic_id, (image,), {}, TOPIC))
        base.cluster.image = base.cluster.image.with_topics({topic.name: topic for topic in topics})

    def find_partition(self, place: TopicPartition) -> Partition:
        """The hosted partition of that place."""
        found = self._hosted.find_partition(*place)
        assert found is not None, f"{place} is hosted here"
        return found

    def replicate_all(self, held: TopicPartition | None, now: Instant) -> bool:
        """Let every follower fetch once, except that of `held`. Returns whether one of them had something to fetch."""
        fetched = False
        for place in PLACES:
            partition = self.find_partition(place)
            end = partition.log.end_offset
            if place != held and partition.is_leader and partition.high_watermark < end:
                contact = cast("Any", self._contact)
                partition.leader_role.note_fetch(_FOLLOWER, 1, partition.leader_epoch, end, -1, 0, now, contact)
                fetched = True
        return fetched

    def propose_isr(self, leader: LeaderRole, proposal: IsrProposal) -> None:
        """Ignored: the ISR does not change."""

    def make_leader(self, place: TopicPartition, now: Instant) -> None:
        """Make this broker the leader, in the next epoch."""
        self.find_partition(place).make_leader(self._next_state(1), now)

    def make_follower(self, place: TopicPartition, now: Instant) -> None:
        """Make the other replica the leader, in the next epoch."""
        self.find_partition(place).make_follower(self._next_state(_FOLLOWER), now)

    def _next_state(self, leader: int) -> PartitionState:
        self._epoch += 1
        return PartitionState(leader, self._epoch, (1, _FOLLOWER), self._epoch, (1, _FOLLOWER))

    def has_uncommitted(self, place: TopicPartition) -> bool:
        """Whether the log has records that its follower does not have."""
        partition = self.find_partition(place)
        return partition.high_watermark < partition.log.end_offset
