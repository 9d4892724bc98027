"""The safeguards of replication, and what switches each off.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.mutant import Edit, Mutant

_FENCE: Final = "ottla.replication.control"
_FOLLOWER: Final = "ottla.replication.partition.follower_role"
_ISR: Final = "ottla.replication.partition.isr"
_LEADER: Final = "ottla.replication.partition.leader_role"
_MANAGER: Final = "ottla.replication.replica_manager"
_PARTITION: Final = "ottla.replication.partition.partition"
_REPLICA: Final = "ottla.replication.partition.local_replica"

_NO_DIVERGENCE: Final = Edit(
    _REPLICA, "LocalReplica.find_divergence", "found = EpochEnd(", "return None\n        found = EpochEnd("
)

REPLICATION: Final = (
    Mutant(
        "replication.truncate_by_epoch",
        "A follower truncates its log by leader epochs (KIP-101). Off: to its high watermark, as before Kafka 0.11.",
        (
            Edit(
                _PARTITION,
                "Partition.make_follower",
                "if changed:",
                "if changed:\n            self.follower_role.truncate_to(self.high_watermark)",
            ),
            _NO_DIVERGENCE,
        ),
    ),
    Mutant(
        "replication.divergence_in_fetch",
        "A leader responds to a fetch from a diverging log with the diverging epoch (KIP-595).",
        (_NO_DIVERGENCE,),
    ),
    Mutant(
        "replication.epoch_fencing",
        "A request with another leader epoch is refused (KIP-320).",
        (
            Edit(
                _REPLICA,
                "LocalReplica.check_epoch",
                "raise leader_epoch_error(",
                "return\n        raise leader_epoch_error(",
            ),
        ),
    ),
    Mutant(
        "replication.maximal_isr",
        "The high watermark waits for all replicas that may be in the ISR: current and proposed members (KIP-497).",
        (
            Edit(
                _ISR,
                "InSyncReplicas._count_members",
                "maximal_isr(self.isr, self.proposed.isr)",
                "tuple(each for each in self.isr if each in self.proposed.isr)",
            ),
        ),
    ),
    Mutant(
        "replication.min_isr_on_hw",
        "The high watermark does not advance while the ISR is smaller than min.insync.replicas (KIP-966).",
        (
            Edit(
                _LEADER,
                "LeaderRole.advance_high_watermark",
                "len(self.in_sync.isr), self.min_isr)",
                "len(self.in_sync.isr), 0)",
            ),
        ),
    ),
    Mutant(
        "replication.ack_needs_isr_min",
        "acks=all is refused while the ISR is smaller than min.insync.replicas.",
        (
            Edit(_LEADER, "LeaderRole._check_append", "if acks < 0 and self.isr_too_small:", "if False:"),
            Edit(_LEADER, "LeaderRole.is_settled", "if acks < 0 and self.isr_too_small:", "if False:"),
        ),
    ),
    Mutant(
        "replication.isr_epoch_start_rule",
        "A replica joins the ISR only when it has reached the start of the leader epoch (KIP-207, KIP-320).",
        (Edit(_ISR, "InSyncReplicas._can_join", "high_watermark, self.epoch_start)", "high_watermark, 0)"),),
    ),
    Mutant(
        "replication.broker_epoch_isr",
        "A proposed ISR contains the broker epochs of the fetches: a restarted broker has another one (KIP-903).",
        (
            Edit(
                _ISR,
                "InSyncReplicas.on_follower_fetch",
                "if broker_epoch < before.broker_epoch and broker_epoch != NO_EPOCH:",
                "if False:",
            ),
            Edit(
                _ISR,
                "InSyncReplicas._epoch_of",
                "return self.replicas.get(member, _UNKNOWN).broker_epoch",
                "return NO_EPOCH",
            ),
        ),
    ),
    Mutant(
        "replication.partition_epoch_check",
        "A state or an answer that is older than the partition's state changes nothing (KIP-497).",
        (
            Edit(
                _MANAGER,
                "ReplicaManager._apply_one",
                "if state.partition_epoch < partition.partition_epoch:",
                "if False:",
            ),
            Edit(
                _ISR,
                "InSyncReplicas.on_alter_partition_response",
                "if outcome.proposal is not self.proposed:",
                "if False:",
            ),
            Edit(
                _ISR,
                "InSyncReplicas.on_alter_partition_response",
                "if outcome.leader_epoch != self.leader_epoch or outcome.partition_epoch < self.partition_epoch:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "replication.controller_epoch_fencing",
        "Requests of a controller are refused once a newer one is known.",
        (
            Edit(
                _MANAGER,
                "ReplicaManager.apply",
                "if controller_epoch < self._fence.controller_epoch:",
                "if False:",
            ),
            Edit(
                _FENCE,
                "ControlFence.check_request",
                "if controller_epoch < self.controller_epoch:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "replication.broker_epoch_fencing",
        "Requests of a controller that were meant for an earlier registration of this broker are refused (KIP-380).",
        (Edit(_FENCE, "ControlFence.check_request", "if self._is_stale(broker_epoch):", "if False:"),),
    ),
    Mutant(
        "replication.leader_epoch_check",
        "A state, or an order to stop a replica, of an older leader epoch is refused (KIP-570).",
        (
            Edit(
                _MANAGER,
                "ReplicaManager._apply_one",
                "if state.leader_epoch < partition.leader_epoch:",
                "if False:",
            ),
            Edit(
                _MANAGER,
                "ReplicaManager._stop_one",
                "if not outdates and order.leader_epoch < partition.leader_epoch:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "replication.topic_id_check",
        "A partition of an earlier topic of the same name is not used for the present topic (KIP-516).",
        (
            Edit(
                _MANAGER,
                "ReplicaManager._may_host",
                "if topic is not None and topic.topic_id != topic_id:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "replication.follower_sync_before_ack",
        "With flush.messages a follower fetches, which acknowledges, only when its records are durable.",
        (
            Edit(
                "ottla.replication.follower.fetcher",
                "ReplicaFetcher._request_partition",
                "if following.must_sync:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "replication.empty_epochs_cut",
        "A follower that truncates its log also drops epochs without records, which no leader knows (KAFKA-10706).",
        (
            Edit(
                _FOLLOWER,
                "FollowerRole.truncate_to",
                "replica.log.epochs.truncate_from_end(replica.log.end_offset)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "replication.standstill_steps_back",
        "A leader that was paused longer than its session gives up leadership until the controller sends a state.",
        (Edit(_MANAGER, "ReplicaManager.step_back", "if led:", "if False:"),),
    ),
    Mutant(
        "replication.marker_coordinator_epoch",
        "A marker of a coordinator that was replaced since is refused (KIP-98).",
        (
            Edit(
                _LEADER,
                "LeaderRole.append_marker",
                "producers.check_coordinator(producer_id, marker.coordinator_epoch)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "replication.marker_epoch",
        "A late marker does not end a later transaction of its producer (KIP-890).",
        (
            Edit(
                _LEADER,
                "LeaderRole.append_marker",
                "if not producers.needs_marker(producer_id, epoch, bumped):",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "replication.verify_transactions",
        "A leader opens a transaction only when its coordinator confirms that the partition is part of it (KIP-890).",
        (
            Edit(
                _MANAGER,
                "ReplicaManager.apply_broker_config",
                "self.shared.verifies = config.transaction_partition_verification_enable",
                "self.shared.verifies = False",
            ),
        ),
    ),
    Mutant(
        "replication.verification_guard",
        "A coordinator's answer about a transaction is void once the transaction's marker is written (KIP-890).",
        (
            Edit(
                _LEADER,
                "LeaderRole.append_marker",
                "self.guards.void_ended(producer_id, epoch, bumped)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "replication.aborted_in_order",
        "Readers of committed records receive aborted transactions in the order of their first offsets.",
        (
            Edit(
                "ottla.replication.fetch.fetch_reading",
                "aborted_in",
                "aborted.sort(key=itemgetter(1))",
                "pass",
            ),
        ),
    ),
    Mutant(
        "replication.refused_comes_first",
        "After a refused batch of an idempotent producer its later batches are also refused, until that one arrives.",
        (
            Edit(
                _LEADER,
                "LeaderRole.apply_state",
                "log.producers.cautious = len(state.replicas) > 1",
                "log.producers.cautious = False",
            ),
            Edit(
                _LEADER,
                "LeaderRole.note_refused",
                "self._refusals.note_refused(records, error, now)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "replication.gaps_confirmed",
        "A leader reports missing batches only if no other broker can have led while they could have been written.",
        (
            Edit(
                _ISR,
                "InSyncReplicas.follows_since",
                "contacts = (self._contacts.get(each) for each in self.counted)",
                "contacts = ()",
            ),
        ),
    ),
    Mutant(
        "replication.replica_crc_check",
        "A follower does not append a batch with a wrong checksum.",
        (
            Edit(
                _FOLLOWER,
                "FollowerRole.append",
                "replica.log.append_replica(records, leader_epoch)",
                "replica.log.append_replica(records, leader_epoch, False)",
            ),
        ),
    ),
    Mutant(
        "replication.all_have_cleaned",
        "A tombstone or transaction marker is not removed before every replica has cleaned past it.",
        (
            Edit(_MANAGER, "ReplicaManager.__init__", "logs.removable_at_first = 0", "pass"),
            Edit(_MANAGER, "ReplicaManager.start_checks", "self.removals.start_reports()", "pass"),
            Edit(
                _PARTITION,
                "Partition._take_state",
                "self.log.removable_below = 0 if len(state.replicas) > 1 else UNBOUNDED",
                "self.log.removable_below = UNBOUNDED",
            ),
        ),
    ),
    Mutant(
        "replication.control_order",
        "An order that a controller sent before one that has arrived already is refused.",
        (Edit("ottla.replication.control_handlers", "ControlHandlers._check_order", "if late:", "if False:"),),
    ),
)
