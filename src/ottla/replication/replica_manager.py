"""The replicas on this broker: which partitions have a log here, which of them it leads and which it follows.

Zone: deterministic. Turns the controller's decisions (LeaderAndIsr, StopReplica) into logs, roles and fetchers;
`control_handlers` handles the requests. Runs the periodic checks of partitions, and takes the replicas of a failed log
directory out of service.

The topic id identifies a topic: a log of an earlier topic of the same name is never used for the present one (KIP-516).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Final, NamedTuple

from ottla.changes import changes_state
from ottla.config.broker import BrokerConfig
from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.record.batch import MAGIC_V2
from ottla.record.headerless_records import LIMIT_MAX
from ottla.replication.control import UNKNOWN_BROKER_EPOCH, ControlFence
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.replica_state import NO_LEADER, PartitionState
from ottla.replication.partition_registry import HostedTopic, PartitionRegistry
from ottla.replication.replica_helpers import ReplicaHelpers
from ottla.seams import Clock, Failure, Instant
from ottla.storage.log_loss import IncompleteLog
from ottla.storage.log_manager import LogManager
from ottla.types import NO_EPOCH, ZERO_UUID, TopicPartition

EPOCH_DURING_DELETE: Final = -2
"""Leader epoch of a StopReplica that deletes a topic: it counts as newer than every other (KIP-570)."""
CHECKED_AT_ONCE: Final = 1000
"""Partitions whose in-sync replicas are checked in one turn."""
_log = logging.getLogger(__name__)


class StopOrder(NamedTuple):
    """The order of StopReplica for one replica."""

    leader_epoch: int
    """-1: not known, -2: the topic is being deleted; both count as newer than every epoch."""
    delete: bool

    @property
    def deletes_topic(self) -> bool:
        """Whether the replica is deleted because its topic is, and not because it moves to another broker."""
        return self.delete and self.leader_epoch == EPOCH_DURING_DELETE


class ReplicaManager:
    """Creates, changes and deletes the partitions of this broker."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        logs: LogManager,
        hosted: PartitionRegistry,
        purgatory: Purgatory,
        fence: ControlFence,
        helpers: ReplicaHelpers,
        later: Callable[[Callable[[], None]], None],
        topic_config: Callable[[str], TopicConfig],
        on_dir_failure: Callable[[], None],
    ) -> None:
        """`topic_config` returns the settings of a topic whose partition is created here; `later` queues an effect of
        this turn. `on_dir_failure` is called, in a turn's effects, when a log directory has failed and its replicas
        are out of service; it informs the controller. Call `start_checks` when requests are about to be served.
        """
        self._clock = clock
        self._logs = logs
        self._hosted = hosted
        self._purgatory = purgatory
        self._fence = fence
        self._later = later
        self._topic_config = topic_config
        self._shrink_check_ms = max(1, config.replica_lag_time_max_ms // 2)
        self._stopped = False
        self._followed: dict[Partition, None] = {}
        """Partitions that are led here and have other replicas; some may be led elsewhere by now."""
        self._unconfirmed: dict[str, None] = {}
        """Topics hosted since before the present registration: another topic may have the name by now."""
        self._broker_epoch = UNKNOWN_BROKER_EPOCH
        """The registration at the last LeaderAndIsr."""
        self._on_dir_failure = on_dir_failure
        self.shared, self.throttles, self.isr_changes, self.fetchers, self.removals, self.moves = helpers
        logs.removable_at_first = 0  # until LeaderAndIsr names the other replicas, no tombstone may be removed
        self.apply_broker_config(config)

    # -- periodic checks -----------------------------------------------------------------------------------------------

    def start_checks(self) -> None:
        """Begin the periodic checks: lagging in-sync replicas, and how far replicas have cleaned their logs."""
        self._schedule_isr_check()
        self.removals.start_reports()

    def _schedule_isr_check(self) -> None:
        """Schedule the next check, as Kafka does every half replica.lag.time.max.ms."""
        self._purgatory.look_after(self._shrink_check_ms, self._check_in_sync)

    def _check_in_sync(self) -> None:
        if self._stopped:
            return
        # A copy: partitions come and go between the turns of one check.
        self._check_next_share(iter(list(self._followed)))
        self._schedule_isr_check()

    def _check_next_share(self, left: Iterator[Partition]) -> None:
        """Check some partitions per turn: a broker may lead thousands."""
        if self._stopped:
            return
        now = self._clock.now()
        share = list(islice(left, CHECKED_AT_ONCE))
        for partition in share:
            if partition.is_leader:
                partition.leader_role.shrink_if_lagging(now)
            else:
                self._followed.pop(partition, None)
        if len(share) == CHECKED_AT_ONCE:
            self._purgatory.look_after(1, lambda: self._check_next_share(left))

    def shut_down(self) -> None:
        """Stop all fetchers, moves and periodic checks because the logs are about to be closed."""
        self._stopped = True
        self.removals.stop_reports()
        self.moves.stop_moves()
        for partition in list(self._hosted):
            self.fetchers.unfollow_partition(partition)

    # -- settings ------------------------------------------------------------------------------------------------------

    @changes_state
    def apply_topic_config(self, name: str, config: TopicConfig) -> None:
        """Apply changed settings of a topic."""
        topic = self._hosted.by_name.get(name)
        if topic is None:
            return
        self._mark_throttled(name, config)
        for partition in topic.partitions.values():
            partition.apply_config(config)
            self._note_preparation(topic, partition)

    @changes_state
    def apply_broker_config(self, config: BrokerConfig) -> None:
        """Apply changed settings of this broker."""
        self.throttles.set_rates(config.leader_replication_throttled_rate, config.follower_replication_throttled_rate)
        self.fetchers.number = config.num_replica_fetchers
        self.moves.apply_broker_config(config)
        self.shared.verifies = config.transaction_partition_verification_enable

    def _mark_throttled(self, name: str, config: TopicConfig) -> None:
        leaders, followers = (
            config.leader_replication_throttled_replicas,
            config.follower_replication_throttled_replicas,
        )
        self.throttles.mark_topic(name, leaders, followers)

    def _note_preparation(self, topic: HostedTopic, partition: Partition) -> None:
        limited = partition.record_max < LIMIT_MAX
        wanted = partition.needs_keys or limited or partition.codec_and_level[0] >= 0 or partition.log.magic < MAGIC_V2
        topic.prepared = wanted and not topic.internal  # clients do not produce to internal topics
        topic.direct = {} if topic.prepared else topic.writable
        self._hosted.preparing = self._hosted.preparing or topic.prepared

    # -- LeaderAndIsr --------------------------------------------------------------------------------------------------

    @changes_state
    def apply(
        self, states: Mapping[TopicPartition, tuple[bytes, PartitionState]], controller_epoch: int, now: Instant
    ) -> dict[TopicPartition, ErrorCode]:
        """Apply the (topic id, state) of each partition of a LeaderAndIsr. Returns the result of each.

        STALE_CONTROLLER_EPOCH: the leader epoch is older than the present one, or there is a newer controller.
        INCONSISTENT_TOPIC_ID: another topic of this name is here. UNKNOWN_TOPIC_OR_PARTITION: this broker is not among
        the replicas. KAFKA_STORAGE_ERROR: the log cannot be created, or its directory is out of service.
        """
        if self._broker_epoch != self._fence.broker_epoch:
            # A new registration: this broker missed the decisions of the time without one, deletions among them.
            self._broker_epoch = self._fence.broker_epoch
            self._unconfirmed = dict.fromkeys(self._hosted.by_name)
        # The order may have waited some turns since its fencing, and a newer controller may have been accepted.
        if controller_epoch < self._fence.controller_epoch:
            return dict.fromkeys(states, ErrorCode.STALE_CONTROLLER_EPOCH)
        return {tp: self._apply_one(tp, topic_id, state, now) for tp, (topic_id, state) in states.items()}

    def is_hosted(self, tp: TopicPartition) -> bool:
        """Whether a replica of this partition is here."""
        return self._hosted.find_partition(*tp) is not None

    def has_log(self, tp: TopicPartition) -> bool:
        """Whether a replica of this partition is here, or a log of its name that it would use."""
        return self.is_hosted(tp) or self._logs.get_log(tp) is not None

    def _apply_one(self, tp: TopicPartition, topic_id: bytes, state: PartitionState, now: Instant) -> ErrorCode:
        # 1. Another topic of this name.
        topic_id = self._known_id(tp, topic_id)
        if not self._may_host(tp.topic, topic_id):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        # 2. A replica that is out of service, or that knows a newer state.
        partition = self._hosted.find_partition(*tp)
        if partition is not None:
            if partition.offline is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if state.leader_epoch < partition.leader_epoch:
                return ErrorCode.STALE_CONTROLLER_EPOCH
            if state.partition_epoch < partition.partition_epoch:
                return ErrorCode.NONE  # an older state of the same leader epoch, overtaken by its own answer: no error
        # 3. A controller that counts another broker with this id among the replicas.
        if self._fence.node_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        # 4. The log is opened or created; one that lost records may serve only if no other replica relies on them.
        if partition is None:
            partition = self._host_partition(tp, topic_id, self._topic_config(tp.topic), state.is_new)
        if partition is None or (partition.log.metadata.loss is not None and not self._may_serve(partition, state)):
            return ErrorCode.KAFKA_STORAGE_ERROR
        self._take_role(partition, state, now)
        return ErrorCode.NONE

    def _may_serve(self, partition: Partition, state: PartitionState) -> bool:
        """Whether a log that has lost records may serve: as the last in-sync replica, or out of sync."""
        tp, lack = partition.tp, partition.log.metadata.loss
        others = [replica for replica in state.isr if replica != self._fence.node_id]
        in_sync = len(others) < len(state.isr)
        # 1. In sync with others: it could be elected, and committed records would be lost. Out of service, it makes the
        #    controller take it out of the ISR.
        if in_sync and others:
            _log.error("%s lost records that in-sync brokers %s have; refusing to serve it until resynced", tp, others)
            return False
        # 2. Without a leader nothing is decided yet; the order that names one comes here again.
        if state.leader == NO_LEADER:
            return True
        # 3. The last in-sync replica serves what is left. 4. One out of sync catches up: from its end if only the end
        #    is missing, else from the beginning, because the follower protocol does not fill holes.
        try:
            if in_sync:
                _log.error("%s lost records, and no other replica is in sync; leading with the rest of the log", tp)
            elif lack is IncompleteLog.WITHIN:
                _log.warning("%s lost records; fetching the whole log again from broker %d", tp, state.leader)
                partition.follower_role.restart_at(0)
            partition.log.metadata.clear_incomplete()
        except (ApiError, Failure) as failure:
            _log.error("%s stays out of service, its log cannot be reset: %s", tp, failure)
            return False
        return True

    def _take_role(self, partition: Partition, state: PartitionState, now: Instant) -> None:
        # `unfollow_partition` comes first: a response of the former leader that is in flight is ignored from then on,
        # so that no record of it gets into a log that is led here.
        if state.leader == self._fence.node_id:
            self.fetchers.unfollow_partition(partition)
            partition.make_leader(state, now)
            if len(state.replicas) > 1:
                self._followed[partition] = None
            else:
                self._followed.pop(partition, None)
            return
        try:
            changed = partition.make_follower(state, now)
        except ApiError as refusal:  # the log could not be truncated: its directory is failing
            _log.error("%s cannot follow broker %d: %s", partition.tp, state.leader, refusal)
            return
        if changed or not self.fetchers.is_following(partition):
            self.fetchers.follow_partition(partition)

    @changes_state
    def step_back(self) -> None:
        """Give up leadership of all partitions because this broker was paused longer than its session.

        Its next registration makes the controller send all states again, perhaps with the same leader epochs.
        """
        led = [partition for partition in self._hosted if partition.is_leader]
        if led:
            _log.warning("broker was paused longer than its session; giving up leadership of %d partitions", len(led))
            for partition in led:
                partition.step_back()

    def _known_id(self, tp: TopicPartition, topic_id: bytes) -> bytes:
        """The topic id of an order; before version 5 requests have none, then the id that is known here."""
        if topic_id != ZERO_UUID:
            return topic_id
        topic = self._hosted.by_name.get(tp.topic)
        if topic is not None:
            return topic.topic_id
        log = self._logs.get_log(tp)
        return ZERO_UUID if log is None else log.metadata.topic_id

    def _may_host(self, name: str, topic_id: bytes) -> bool:
        """Whether a partition of this topic may be here: no other topic has the name, or that one was deleted."""
        topic = self._hosted.by_name.get(name)
        # Another id is an order for a deleted topic, unless this broker may have missed the deletion of its own.
        if topic is not None and topic.topic_id != topic_id:
            if name not in self._unconfirmed:
                return False
            _log.warning("topic %s was recreated while this broker was not registered; dropping the old one", name)
            self._forget_topic(name)
        self._unconfirmed.pop(name, None)
        return True

    def _forget_topic(self, name: str) -> None:
        """Stop serving a topic; its logs stay on disk."""
        topic = self._hosted.by_name[name]
        for partition in topic.partitions.values():
            self.fetchers.unfollow_partition(partition)
            partition.go_offline(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        self._hosted.forget_topic(name)
        self.throttles.forget_topic(name)

    def _host_partition(
        self, tp: TopicPartition, topic_id: bytes, config: TopicConfig, is_new: bool
    ) -> Partition | None:
        """A partition on its existing log or on a new one; None when the log cannot be opened or created.

        If the partition is not new and its log is missing, none is created while a directory is out of service: the
        log may be there.
        """
        try:
            log = self._logs.adopt_log(tp, topic_id)
            if log is None:
                log = self._logs.create_log(tp, topic_id, config, is_new, self.moves.take_preferred_dir(tp))
        except Failure as failure:
            _log.error("%s is offline on this broker, its log cannot be opened or created: %s", tp, failure)
            return None
        topic = self._hosted.get_or_add_topic(tp.topic, topic_id)
        partition = Partition(log, config, self._fence.node_id, self.isr_changes, self.shared)
        topic.partitions[tp.partition] = partition
        self._note_preparation(topic, partition)
        self._mark_throttled(tp.topic, config)
        self.moves.resume_move(partition)
        return partition

    # -- StopReplica ---------------------------------------------------------------------------------------------------

    @changes_state
    def stop_replicas(self, orders: Mapping[TopicPartition, StopOrder]) -> dict[TopicPartition, ErrorCode]:
        """Stop to follow partitions, and delete those that StopReplica orders to delete. Returns the result of each.

        FENCED_LEADER_EPOCH: the leader epoch is older than the present one. KAFKA_STORAGE_ERROR: the log's directory is
        out of service. Without a replica here there is nothing to stop; a log of that name is still deleted.
        """
        return {tp: self._stop_one(tp, order) for tp, order in orders.items()}

    def _stop_one(self, tp: TopicPartition, order: StopOrder) -> ErrorCode:
        partition = self._hosted.find_partition(*tp)
        if partition is not None:
            if partition.offline is not None:
                return ErrorCode.KAFKA_STORAGE_ERROR
            # Without an epoch an order cannot be compared, so it counts as newer; so does a deletion (KIP-570).
            outdates = order.leader_epoch in (NO_EPOCH, EPOCH_DURING_DELETE)
            if not outdates and order.leader_epoch < partition.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            self.fetchers.unfollow_partition(partition)
        return self._delete_partition(tp, partition) if order.delete else ErrorCode.NONE

    def _delete_partition(self, tp: TopicPartition, partition: Partition | None) -> ErrorCode:
        if partition is not None:
            # Before its log is closed: requests that wait for the partition are answered here, and later ones do not
            # find it.
            partition.go_offline(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            self._hosted.remove_partition(tp)
            if tp.topic not in self._hosted.by_name:
                self.throttles.forget_topic(tp.topic)
        try:
            self._logs.delete_log(tp)
        except Failure as failure:
            _log.error("cannot delete the log of %s: %s", tp, failure)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return ErrorCode.NONE

    def on_dir_offline(self, name: str) -> None:
        """Take all replicas of a failed log directory out of service, in the effects of this turn."""
        self._later(lambda: self._dir_failed(name))

    def _dir_failed(self, name: str) -> None:
        for partition in list(self._hosted):
            if partition.offline is None and partition.log.disk.name == name:
                self.fetchers.unfollow_partition(partition)
                partition.go_offline()
        self._on_dir_failure()
