"""The safeguards of replication, each of which can be taken away to see that something would notice.

Zone: pure. Only switches; what each one guards stands where it is asked. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicationSafeguards:
    """One switch per safeguard; the simulator turns single ones off and must catch what follows."""

    truncate_by_epoch: bool = True
    """A follower cuts its log where the leader's epochs say (KIP-101). Off: at its high watermark, as before 0.11."""
    divergence_in_fetch: bool = True
    """A leader answers a fetch from a log that is not its own with the place where both part (KIP-595)."""
    epoch_fencing: bool = True
    """Whoever names another leader epoch is refused (KIP-320)."""
    maximal_isr: bool = True
    """The high watermark waits for who may be in the ISR by now, and for who may still be (KIP-497)."""
    min_isr_on_hw: bool = True
    """The high watermark does not advance while the ISR is smaller than min.insync.replicas (KIP-966)."""
    ack_needs_isr_min: bool = True
    """acks=all is refused while the ISR is smaller than min.insync.replicas."""
    isr_epoch_start_rule: bool = True
    """Nobody joins the ISR before it has what the leader's epoch began with (KIP-207, KIP-320)."""
    broker_epoch_isr: bool = True
    """The ISR is proposed with the broker epochs of those who fetched: a reborn broker is another one (KIP-903)."""
    partition_epoch_check: bool = True
    """A state or an answer that is older than what the partition knows changes nothing (KIP-497)."""
    controller_epoch_fencing: bool = True
    """Requests of a controller are refused once a newer one was heard of."""
    broker_epoch_fencing: bool = True
    """Requests of a controller that were meant for an earlier life of this broker are refused (KIP-380)."""
    leader_epoch_check: bool = True
    """A state, or an order to stop a replica, of an older leader epoch is refused (KIP-570)."""
    topic_id_check: bool = True
    """A partition of another topic that had the same name is another partition (KIP-516)."""
    follower_sync_before_ack: bool = True
    """With flush.messages a follower asks for more, which acknowledges, only when what it has is durable."""
    empty_epochs_cut: bool = True
    """A follower that is told where its log ends forgets epochs in which it wrote nothing: no leader knows them
    (KAFKA-10706)."""
    standstill_steps_back: bool = True
    """A leader that stood still past its session leads no more before the controller has spoken."""
    marker_coordinator_epoch: bool = True
    """A transaction's marker of a coordinator that is not in charge any more is refused (KIP-98)."""
    marker_epoch: bool = True
    """A transaction's marker that comes late ends no later transaction of its producer (KIP-890)."""
    verify_transactions: bool = True
    """A leader opens a transaction only when its coordinator knows that the partition is in it (KIP-890)."""
    verification_guard: bool = True
    """What a coordinator has said of a transaction counts no more once that one's marker is written (KIP-890)."""
    aborted_in_order: bool = True
    """Readers of committed records hear of aborted transactions in the order in which these begin."""
    refused_comes_first: bool = True
    """What an idempotent producer sent behind a batch that was refused is refused too, until that one is here."""
    gaps_confirmed: bool = True
    """A leader tells a producer that batches are missing when it surely led while they could have been written."""
    replica_crc_check: bool = True
    """A follower appends no batch whose checksum does not fit."""
    all_have_cleaned: bool = True
    """A tombstone, or a transaction's marker, is not cleaned away before every replica has cleaned past it."""
    control_order: bool = True
    """Orders of a controller that it sent before one that is here already are refused, whichever way they came."""
