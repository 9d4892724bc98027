"""The safeguards of a controller. The simulator switches single ones off to prove that a checker notices.

Zone: pure. Only switches; each is explained where it is read. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSafeguards:
    """One switch per safeguard."""

    controller_epoch_check: bool = True
    """Every multi of a controller fails once another one has taken the next epoch."""
    isr_only_election: bool = True
    """Without `unclean.leader.election.enable` only an in-sync replica becomes leader."""
    last_isr_kept: bool = True
    """A partition that loses its last leader keeps its ISR: those replicas have all records when they come back."""
    partition_epoch_check: bool = True
    """A state replaces only the version that the decision was based on, not one that was written since."""
    leader_epoch_check: bool = True
    """Only the leader of the present epoch changes the ISR."""
    broker_epoch_in_isr: bool = True
    """A replica joins the ISR with the broker epoch of its fetches; a restarted one has another (KIP-903)."""
    live_replicas_in_isr: bool = True
    """A replica whose broker is down or stopping does not join the ISR (KIP-841)."""
    bounced_brokers: bool = True
    """A broker that registered again before its death was noticed is handled as if it had been dead."""
    blank_brokers: bool = True
    """A broker whose log directory is new leaves the ISRs of partitions that existed before."""
    reassigned_when_in_sync: bool = True
    """Replicas are removed only when all that replace them are in sync."""
