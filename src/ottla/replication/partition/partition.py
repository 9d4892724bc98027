"""One partition on this broker: a replica, and its two roles.

Zone: deterministic. Gives the replica the role that the controller decides. `leader_role` has the rules of an append
and the high watermark, `follower_role` takes records from the leader, `local_replica` has what they share.
"""

from __future__ import annotations

from ottla.config.topic import TopicConfig
from ottla.errors import ErrorCode
from ottla.replication.partition.follower_role import FollowerRole
from ottla.replication.partition.leader_role import IsrChannel, LeaderRole
from ottla.replication.partition.local_replica import LocalReplica
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.partition.replica_state import NO_LEADER, PartitionState
from ottla.seams import Instant
from ottla.storage.log import Log
from ottla.types import UNBOUNDED


class Partition(LocalReplica):
    """One replica of a partition, and what it does as leader and as follower."""

    __slots__ = ("follower_role", "leader_role")

    def __init__(
        self,
        log: Log,
        config: TopicConfig,
        node_id: int,
        isr_changes: IsrChannel,
        shared: PartitionContext,
    ) -> None:
        """There is no leader before `make_leader` or `make_follower`. `node_id` is this broker's."""
        super().__init__(log, config, node_id, shared)
        self.leader_role = LeaderRole(self, isr_changes)
        """What only the leader does; as a follower its appends are refused."""
        self.follower_role = FollowerRole(self)
        log.flush_policy.call_when_synced(self._on_synced)

    def apply_config(self, config: TopicConfig) -> None:
        """Apply a changed topic config; with another min.insync.replicas the high watermark may move."""
        super().apply_config(config)
        self.leader_role.refresh_guards()
        if self.is_leader:
            self.leader_role.advance_high_watermark()

    @property
    def isr(self) -> tuple[int, ...]:
        """The in-sync replicas, as the controller has confirmed them."""
        return self.leader_role.in_sync.isr

    @property
    def spare_in_sync(self) -> int:
        """In-sync replicas beyond min.insync.replicas; negative: too few of them."""
        return len(self.isr) - self.leader_role.min_isr

    @property
    def under_replicated(self) -> bool:
        """Whether this broker leads and an assigned replica is not in sync; one that is being added does not count."""
        return self.is_leader and len(self.replicas) - len(self.adding) > len(self.isr)

    # -- roles ---------------------------------------------------------------------------------------------------------

    def make_leader(self, state: PartitionState, now: Instant) -> bool:
        """Lead. Returns whether that is a new leader epoch, which starts at the present log end (KIP-101).

        The caller refuses states with an older leader epoch or partition epoch than the present one.
        """
        assert state.leader == self.node_id, f"{self.tp} is led by {state.leader}"
        newly = not self.is_leader or state.leader_epoch > self.leader_epoch
        self._take_state(state)
        self.leader_role.apply_state(state, newly, now)
        if newly:
            self._on_role_change()
        elif self.leader_role.guarded:  # the ISR may have become too small: delayed produces look at it
            self.shared.check(self)
        return newly

    def make_follower(self, state: PartitionState, now: Instant) -> bool:
        """Follow. Returns whether the leader or its epoch changed. Older states: see `make_leader`.

        The fetcher truncates the log where it diverges from the leader's.
        """
        assert state.leader != self.node_id, f"{self.tp} is led here"
        changed = (state.leader, state.leader_epoch) != (self.leader, self.leader_epoch)
        self._take_state(state)
        # An epoch start, whatever its value, drops the knowledge of followers: it is that of a past leadership.
        self.leader_role.in_sync.apply_state(state, 0, now.mono_ns)
        self.leader_role.refresh_guards()
        if changed:
            self._on_role_change()
        return changed

    def step_back(self) -> None:
        """Stop leading until the controller sends a state; the leader epoch stays."""
        self.leader = NO_LEADER
        self.is_leader = False
        self.leader_role.refresh_guards()
        self._on_role_change()

    def _take_state(self, state: PartitionState) -> None:
        if (state.leader, state.leader_epoch, state.replicas) != (self.leader, self.leader_epoch, self.replicas):
            # No tombstone goes before the replicas of this state have reported: one that was added may lack it, and
            # have the record that it deletes.
            self.log.removable_below = 0 if len(state.replicas) > 1 else UNBOUNDED
            self.log.note_bound_due()
        self.leader = state.leader
        self.is_leader = state.leader == self.node_id
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.adding = state.adding
        self.removing = state.removing

    def go_offline(self, why: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> None:
        """Refuse all requests: the log directory failed, or (UNKNOWN_TOPIC_OR_PARTITION) the replica is deleted."""
        self.offline = why
        self.is_leader = False
        self.leader_role.refresh_guards()
        self._on_role_change()
        if why is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            # Roles and replica refer to each other, and the garbage collector does not visit old objects. Calls that
            # come late, such as answers of the controller, are refused by the copy as well.
            self.leader_role.replica = self.follower_role.replica = self.copy_state()

    def _on_role_change(self) -> None:
        """After a change of role: void verifications, and wake everything that waits for this partition."""
        # Before anything is woken: another leader may have written the marker of a transaction that was verified here.
        self.leader_role.guards.void_all()
        self.wake_watchers()
        self.wake_end_watchers()
        self.shared.check(self)
        self.shared.on_role(self)

    # -- its log -------------------------------------------------------------------------------------------------------

    def move_to(self, log: Log) -> None:
        """Replace the log by its copy in another log directory."""
        self.log = log
        log.apply_config(self.config)
        log.flush_policy.call_when_synced(self._on_synced)
        self._on_synced()

    def _on_synced(self) -> None:
        """After a flush: advance the high watermark, and notify delayed operations."""
        if self.is_leader:
            self.leader_role.advance_high_watermark()
        self.shared.check(self)
