"""The safeguards of a controller, and what switches each off.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.mutant import Edit, Mutant

_BROKERS: Final = "ottla.cluster.controller.brokers"
_ELECTIONS: Final = "ottla.cluster.controller.elections"
_LEADERS: Final = "ottla.cluster.controller.leaders"
_MOVES: Final = "ottla.cluster.controller.moves"
_PROPOSALS: Final = "ottla.cluster.controller.proposals"
_STORE: Final = "ottla.cluster.controller.partition_state_store"

CONTROLLER: Final = (
    Mutant(
        "controller.controller_epoch_check",
        "Every multi of a controller fails once another one has taken the next epoch.",
        (
            Edit(
                _STORE,
                "PartitionStateStore.with_epoch_check",
                'return [Op("check", CONTROLLER_EPOCH, version=self.term.epoch_version), *ops]',
                "return list(ops)",
            ),
            Edit(
                _STORE,
                "PartitionStateStore.verify_epoch",
                "if node is None or node.version != self.term.epoch_version:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "controller.isr_only_election",
        "Without `unclean.leader.election.enable` only an in-sync replica becomes leader.",
        (
            Edit(
                _ELECTIONS,
                "offline_election",
                "first_eligible(partition.replicas, partition.isr, online)",
                "first_eligible(partition.replicas, partition.replicas, online)",
            ),
        ),
    ),
    Mutant(
        "controller.last_isr_kept",
        "A partition that loses its last leader keeps its ISR: those replicas have all records when they come back.",
        (
            Edit(
                _ELECTIONS,
                "offline_election",
                "_next_state(partition, NO_LEADER, partition.isr)",
                "_next_state(partition, NO_LEADER, partition.replicas)",
            ),
        ),
    ),
    Mutant(
        "controller.partition_epoch_check",
        "A state replaces only the version that the decision was based on, not one that was written since.",
        (
            Edit(
                _PROPOSALS,
                "judge_proposal",
                "if proposal.partition_epoch < partition.state_version:",
                "if False:",
            ),
            Edit(
                _STORE,
                "PartitionStateStore._state_ops",
                'Op("put", path, change.data, version)',
                'Op("put", path, change.data, -1)',
            ),
        ),
    ),
    Mutant(
        "controller.leader_epoch_check",
        "Only the leader of the present epoch changes the ISR.",
        (
            Edit(
                _PROPOSALS,
                "judge_proposal",
                "if proposal.leader_epoch < partition.leader_epoch or proposal.leader != partition.leader:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "controller.broker_epoch_in_isr",
        "A replica joins the ISR with the broker epoch of its fetches; a restarted one has another (KIP-903).",
        (Edit(_PROPOSALS, "_may_be_in_sync", "return told in (_NO_EPOCH, eligible[replica])", "return True"),),
    ),
    Mutant(
        "controller.live_replicas_in_isr",
        "A replica whose broker is down or stopping does not join the ISR (KIP-841).",
        (Edit(_PROPOSALS, "_may_be_in_sync", "return False", "return True"),),
    ),
    Mutant(
        "controller.bounced_brokers",
        "A broker that registered again before its death was noticed is handled as if it had been dead.",
        (
            Edit(_BROKERS, "BrokerChanges.compare_brokers", "if bounced:", "if False:"),
            Edit(
                _LEADERS,
                "LeaderElections.handle_restarts",
                "yield from self._commit_and_send(reborn, self._decide_restarted)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "controller.blank_brokers",
        "A broker whose log directory is new leaves the ISRs of partitions that existed before.",
        (
            Edit(
                _LEADERS,
                "LeaderElections.remove_lost_replicas",
                "changed = yield from self._commit_and_send(tps, decide)",
                "changed = [] if True else (yield from self._commit_and_send(tps, decide))",
            ),
        ),
    ),
    Mutant(
        "controller.reassigned_when_in_sync",
        "Replicas are removed only when all that replace them are in sync.",
        (Edit(_MOVES, "PartitionMoves._is_ready", "return is_complete(partition)", "return True"),),
    ),
)
