"""The safeguards of a controller, each of which can be taken away to see that something would notice.

Zone: pure. Only switches; what each one guards stands where it is asked. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ControllerSafeguards:
    """One switch per safeguard; the simulator turns single ones off and must catch what follows."""

    controller_epoch_check: bool = True
    """Every multi of a controller fails once another one has taken the next epoch."""
    isr_only_election: bool = True
    """Without `unclean.leader.election.enable` only an in-sync replica becomes leader."""
    last_isr_kept: bool = True
    """A partition that loses its last leader keeps its in-sync replicas: they know best when they come back."""
    partition_epoch_check: bool = True
    """A state is written over the one that was decided upon, not over one that somebody wrote since."""
    leader_epoch_check: bool = True
    """Only the leader of the present epoch changes its in-sync replicas."""
    broker_epoch_in_isr: bool = True
    """A replica joins with the broker epoch that its leader saw fetching; a restarted one has another (KIP-903)."""
    live_replicas_in_isr: bool = True
    """A replica whose broker is down or stopping does not join the in-sync replicas (KIP-841)."""
    bounced_brokers: bool = True
    """A broker that registered anew before its death was noticed counts as one that was dead."""
    blank_brokers: bool = True
    """A broker whose log directory is new is in sync with nothing that was there before."""
    reassigned_when_in_sync: bool = True
    """Replicas are removed when all that replace them are in sync."""
