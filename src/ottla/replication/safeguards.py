"""The safeguards of replication. The simulator switches single ones off to prove that its checks notice.

Zone: pure. Only switches; the guarded code checks them. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationSafeguards:
    """One switch per safeguard; with one of them off, a simulated run has to fail."""

    truncate_by_epoch: bool = True
    """A follower truncates its log by leader epochs (KIP-101). Off: to its high watermark, as before Kafka 0.11."""
    divergence_in_fetch: bool = True
    """A leader responds to a fetch from a diverging log with the diverging epoch (KIP-595)."""
    epoch_fencing: bool = True
    """A request with another leader epoch is refused (KIP-320)."""
    maximal_isr: bool = True
    """The high watermark waits for all replicas that may be in the ISR: current members and proposed ones (KIP-497)."""
    min_isr_on_hw: bool = True
    """The high watermark does not advance while the ISR is smaller than min.insync.replicas (KIP-966)."""
    ack_needs_isr_min: bool = True
    """acks=all is refused while the ISR is smaller than min.insync.replicas."""
    isr_epoch_start_rule: bool = True
    """A replica joins the ISR only when it has reached the start of the leader epoch (KIP-207, KIP-320)."""
    broker_epoch_isr: bool = True
    """A proposed ISR contains the broker epochs of the fetches: a restarted broker has another one (KIP-903)."""
    partition_epoch_check: bool = True
    """A state or an answer that is older than the partition's state changes nothing (KIP-497)."""
    controller_epoch_fencing: bool = True
    """Requests of a controller are refused once a newer one is known."""
    broker_epoch_fencing: bool = True
    """Requests of a controller that were meant for an earlier registration of this broker are refused (KIP-380)."""
    leader_epoch_check: bool = True
    """A state, or an order to stop a replica, of an older leader epoch is refused (KIP-570)."""
    topic_id_check: bool = True
    """A partition of an earlier topic of the same name is not used for the present topic (KIP-516)."""
    follower_sync_before_ack: bool = True
    """With flush.messages a follower fetches, which acknowledges, only when its records are durable."""
    empty_epochs_cut: bool = True
    """A follower that truncates its log also drops epochs without records, which no leader knows (KAFKA-10706)."""
    standstill_steps_back: bool = True
    """A leader that was paused longer than its session gives up leadership until the controller sends a state."""
    marker_coordinator_epoch: bool = True
    """A marker of a coordinator that was replaced since is refused (KIP-98)."""
    marker_epoch: bool = True
    """A late marker does not end a later transaction of its producer (KIP-890)."""
    verify_transactions: bool = True
    """A leader opens a transaction only when its coordinator confirms that the partition is part of it (KIP-890)."""
    verification_guard: bool = True
    """A coordinator's answer about a transaction is void once the transaction's marker is written (KIP-890)."""
    aborted_in_order: bool = True
    """Readers of committed records receive aborted transactions in the order of their first offsets."""
    refused_comes_first: bool = True
    """After a refused batch of an idempotent producer its later batches are also refused, until that one arrives."""
    gaps_confirmed: bool = True
    """A leader reports missing batches only if no other broker can have led while they could have been written."""
    replica_crc_check: bool = True
    """A follower does not append a batch with a wrong checksum."""
    all_have_cleaned: bool = True
    """A tombstone or transaction marker is not removed before every replica has cleaned past it."""
    control_order: bool = True
    """An order that a controller sent before one that has arrived already is refused."""
