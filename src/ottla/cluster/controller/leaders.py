"""Carries out elections: finds the partitions that need one, writes their states, updates the brokers.

Zone: deterministic. The choice itself is made in `elections`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import IntEnum

from ottla.cluster.controller.context import NOT_STORED
from ottla.cluster.controller.elections import (
    Elected,
    distrusting_election,
    offline_election,
    preferred_election,
    restarted_election,
)
from ottla.cluster.controller.partition_state_store import CHUNK, PartitionStateStore, StateDecision
from ottla.cluster.image import NO_LEADER, BrokerImage, PartitionImage
from ottla.cluster.store.layout import (
    PREFERRED_ELECTION,
    BrokenNode,
    decode_config,
    decode_partitions,
    topic_config_path,
)
from ottla.cluster.store.workflow import Workflow
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Node, Op
from ottla.types import TopicPartition

logger = logging.getLogger(__name__)

_UNCLEAN = "unclean.leader.election.enable"

ElectionOutcomes = dict[TopicPartition, "ApiError | None"]
"""Per partition the reason why it has no new leader; None: elected."""


class ElectionType(IntEnum):
    """How ElectLeaders chooses, by its number on the wire (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class LeaderElections:
    """Elections of one controller."""

    def __init__(self, core: PartitionStateStore) -> None:
        self._core = core
        self._context = core.context

    # -- failures and restarts -----------------------------------------------------------------------------------

    def elect_missing(self, tps: Sequence[TopicPartition]) -> Workflow[list[TopicPartition]]:
        """Elect online leaders and remove offline replicas from ISRs. Returns the partitions that changed."""
        changed: list[TopicPartition] = []
        for start in range(0, len(tps), CHUNK):
            changed += yield from self._elect_chunk(tps[start : start + CHUNK])
            if start + CHUNK < len(tps):
                yield from self._core.yield_turn()
        return changed

    def _elect_chunk(self, tps: Sequence[TopicPartition]) -> Workflow[list[TopicPartition]]:
        began = self._core.clock.now().mono_ns
        changed = yield from self._commit_and_send(tps, self._decide_offline(()))
        # The setting is read only for partitions that have no leader now: unclean elections are rare.
        stuck = [tp for tp in tps if self._could_be_unclean(tp)]
        if stuck:
            allowed = yield from self._unclean_topics(dict.fromkeys(tp.topic for tp in stuck))
            stuck = [tp for tp in stuck if tp.topic in allowed]
            unclean = yield from self._commit_and_send(stuck, self._decide_offline(allowed))
            for tp in unclean:
                logger.warning("controller: unclean election of partition %s: the new leader may lack records", tp)
            changed += unclean
        if changed:
            took_ns = self._core.clock.now().mono_ns - began
            self._core.counters.election_ms.observe(took_ns / 1_000_000)
        return changed

    def handle_restarts(self, tps: Sequence[TopicPartition]) -> Workflow[None]:
        """Handle leaders and ISR members that restarted before this controller read the cluster's state.

        Their logs may have lost records that they had when they joined the ISR.
        """
        reborn = [tp for tp in tps if self._has_restarted(tp)]
        doubtful = [broker for broker in self._context.brokers.values() if broker.is_blank or broker.incomplete]
        # Before the restarted brokers are considered, so that the election below does not choose one that has lost its
        # records.
        if doubtful:
            yield from self.remove_lost_replicas(reborn, doubtful)
        yield from self._commit_and_send(reborn, self._decide_restarted)

    def remove_lost_replicas(self, tps: Sequence[TopicPartition], brokers: Sequence[BrokerImage]) -> Workflow[None]:
        """Remove brokers from ISRs that registered with new log directories, or that have lost these partitions."""

        def decide(tp: TopicPartition, partition: PartitionImage) -> Elected | None:
            online = self._context.online_replicas(tp, partition.replicas)
            lost = [broker.node_id for broker in brokers if broker.has_lost(tp)]
            return distrusting_election(partition, online, [each for each in lost if self._came_after(tp, each)])

        changed = yield from self._commit_and_send(tps, decide)
        for tp in changed:
            logger.warning("controller: partition %s: a member of the ISR has lost records and leaves it", tp)

    def _has_restarted(self, tp: TopicPartition) -> bool:
        partition = self._context.find_partition(tp)
        # `changed_at` is filled only while the term starts: later restarts are noticed by the watch on registrations.
        if partition is None or tp not in self._context.changed_at:
            return False
        return any(self._is_younger(tp, replica) for replica in (partition.leader, *partition.isr))

    def _came_after(self, tp: TopicPartition, replica: int) -> bool:
        """Whether the replica's broker registered after the state was written.

        If not, the replica has joined the ISR since and has fetched everything. A registration keeps the mark of new
        directories for as long as it exists.
        """
        return tp not in self._context.changed_at or self._is_younger(tp, replica)

    def _is_younger(self, tp: TopicPartition, replica: int) -> bool:
        broker = self._context.brokers.get(replica)
        return broker is not None and broker.epoch > self._context.changed_at[tp]

    def _decide_restarted(self, tp: TopicPartition, partition: PartitionImage) -> Elected | None:
        if not self._has_restarted(tp):
            return None
        online = self._context.online_replicas(tp, partition.replicas)
        elders = [replica for replica in online if not self._is_younger(tp, replica)]
        return restarted_election(partition, online, elders)

    def elect_first_leaders(self, tps: Sequence[TopicPartition]) -> Workflow[None]:
        """Elect the first leaders of new partitions, and have all their replicas create logs."""
        # The first multi of a creation stores states that have a leader already. The elections below send only what
        # they change, so their replicas would not learn of these partitions.
        self._core.channels.send_leaders([tp for tp in tps if not self.is_not_stored(tp)], is_new=True)
        yield from self.elect_missing(tps)

    def _commit_and_send(self, tps: Sequence[TopicPartition], decide: StateDecision) -> Workflow[list[TopicPartition]]:
        unborn = {tp for tp in tps if self.is_not_stored(tp)}
        changed = yield from self._core.commit_partitions(tps, decide)
        # New partitions are sent with `is_new`, so that a missing log is created and not reported as lost.
        self._core.channels.send_leaders([tp for tp in changed if tp not in unborn])
        self._core.channels.send_leaders([tp for tp in changed if tp in unborn], is_new=True)
        return changed

    def is_not_stored(self, tp: TopicPartition) -> bool:
        """Whether the partition has no state in the store yet: it never had a leader."""
        partition = self._context.find_partition(tp)
        return partition is not None and partition.state_version == NOT_STORED

    def _decide_offline(self, unclean: Collection[str]) -> StateDecision:
        def decide(tp: TopicPartition, partition: PartitionImage) -> Elected | None:
            if tp.topic in self._context.deleting:
                return None
            online = self._context.online_replicas(tp, partition.replicas)
            return offline_election(partition, online, tp.topic in unclean)

        return decide

    def _could_be_unclean(self, tp: TopicPartition) -> bool:
        partition = self._context.find_partition(tp)
        if partition is None or partition.leader != NO_LEADER or tp.topic in self._context.deleting:
            return False
        return bool(self._context.online_replicas(tp, partition.replicas))

    def _unclean_topics(self, topics: Iterable[str]) -> Workflow[dict[str, None]]:
        """The topics among these whose current settings allow unclean leaders."""
        names = list(topics)
        # From the store, not from this broker's image, which may be older: an operator may just have forbidden unclean
        # leaders.
        nodes = yield from self._core.read_nodes([topic_config_path(name) for name in names])
        default = self._core.config().topic_defaults.unclean_leader_election_enable
        return {name: None for name, node in zip(names, nodes, strict=True) if _allows_unclean(name, node, default)}

    def retry_unclean(self) -> Workflow[None]:
        """Repeat the election for partitions without a leader, because settings may have changed."""
        yield from self.elect_missing(self._context.without_leader())

    # -- preferred leaders -------------------------------------------------------------------------------------

    def elect_preferred(self, tps: Sequence[TopicPartition]) -> Workflow[list[TopicPartition]]:
        """Give leadership to preferred replicas where possible. Returns the partitions that changed."""
        return (yield from self._commit_and_send(tps, self._decide_preferred))

    def _decide_preferred(self, tp: TopicPartition, partition: PartitionImage) -> Elected | None:
        if tp.topic in self._context.deleting:
            return None
        return preferred_election(partition, self._context.online_replicas(tp, partition.replicas))

    def rebalance_leaders(self) -> Workflow[None]:
        """Elect preferred leaders for brokers that lead too few of the partitions that prefer them."""
        limit = self._core.config().leader_imbalance_per_broker_percentage / 100
        preferring: dict[int, list[TopicPartition]] = {}
        strayed: dict[int, list[TopicPartition]] = {}
        for tp, partition in self._context.live_partitions():
            first = partition.replicas[0]
            preferring.setdefault(first, []).append(tp)
            if partition.leader != first:
                strayed.setdefault(first, []).append(tp)
        for broker in sorted(strayed):
            if len(strayed[broker]) / len(preferring[broker]) > limit:
                yield from self.elect_preferred(strayed[broker])

    def read_requested_elections(self, on_change: Callable[[], None]) -> Workflow[None]:
        """Carry out and remove a request that an operator wrote to /admin/preferred_replica_election."""
        # The watch is set with the read, and again after the node is deleted, for the next request.
        node = yield from self._core.read_node(PREFERRED_ELECTION, on_change)
        if node is None:
            return
        try:
            tps = decode_partitions(PREFERRED_ELECTION, node.data)
        except BrokenNode as broken:
            logger.warning("controller: ignoring a requested preferred election: %s", broken)
            return
        yield from self.elect_preferred([tp for tp in tps if self._context.find_partition(tp) is not None])
        # With the version that was read: a request that the operator wrote during the election is not deleted unread.
        yield from self._core.try_write("controller", [Op("delete", PREFERRED_ELECTION, version=node.version)])
        yield from self._core.read_node(PREFERRED_ELECTION, on_change)

    # -- requests ------------------------------------------------------------------------------------------------

    def elect_leaders(
        self, kind: ElectionType, partitions: Sequence[TopicPartition] | None, *, only_needed: bool
    ) -> Workflow[ElectionOutcomes]:
        """Carry out ElectLeaders (`partitions` None: all). `only_needed`: leave out partitions that need none."""
        # 1. Check each partition. 2. Elect for those that need it. 3. A partition that did not change had no candidate.
        asked = (
            [tp for tp, _ in self._context.live_partitions()] if partitions is None else list(dict.fromkeys(partitions))
        )
        refusals: dict[str, ApiError] = {}
        """Errors by text, shared because thousands of partitions may have the same one."""
        refused = {tp: self._refusal_of(kind, tp, refusals) for tp in asked}
        needed = [tp for tp in asked if refused[tp] is None]
        decide = self._decide_preferred if kind == ElectionType.PREFERRED else self._decide_unclean
        changed = set((yield from self._commit_and_send(needed, decide)))
        outcomes: ElectionOutcomes = {}
        nobody = _no_candidate_error(kind)
        for tp, refusal in refused.items():
            why = nobody if refusal is None and tp not in changed else refusal
            if not only_needed or why is None or why.code is not ErrorCode.ELECTION_NOT_NEEDED:
                outcomes[tp] = why
        return outcomes

    def _refusal_of(self, kind: ElectionType, tp: TopicPartition, known: dict[str, ApiError]) -> ApiError | None:
        """The reason why no election is needed or possible. Partitions with one reason share an object (`known`)."""
        code, message = self._why_not(kind, tp)
        if code is ErrorCode.NONE:
            return None
        if message not in known:
            known[message] = ApiError(code, message)
        return known[message]

    def _why_not(self, kind: ElectionType, tp: TopicPartition) -> tuple[ErrorCode, str]:
        partition = self._context.find_partition(tp)
        if partition is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "there is no such partition"
        if tp.topic in self._context.deleting:
            return ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic is being deleted"
        if kind == ElectionType.PREFERRED:
            needed = partition.leader != partition.replicas[0]
        else:
            needed = partition.leader not in self._context.brokers
        if needed:
            return ErrorCode.NONE, ""
        return ErrorCode.ELECTION_NOT_NEEDED, f"broker {partition.leader} leads already"

    def _decide_unclean(self, tp: TopicPartition, partition: PartitionImage) -> Elected | None:
        online = self._context.online_replicas(tp, partition.replicas)
        elected = offline_election(partition, online, True)
        # A state without a leader is not written here: the caller would count the partition as changed and report
        # success, where Kafka reports ELIGIBLE_LEADERS_NOT_AVAILABLE.
        return None if elected is None or elected.partition.leader == NO_LEADER else elected


def _no_candidate_error(kind: ElectionType) -> ApiError:
    if kind == ElectionType.PREFERRED:
        return ApiError(ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "the preferred leader is not alive or not in sync")
    return ApiError(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "no replica is alive")


def _allows_unclean(topic: str, node: Node | None, default: bool) -> bool:
    if node is None or not node.data:
        return default
    try:
        text = decode_config(topic_config_path(topic), node.data).get(_UNCLEAN)
    except BrokenNode as broken:
        logger.warning("controller: ignoring the settings of topic %s: %s", topic, broken)
        return default
    return default if text is None else text.strip().lower() == "true"
