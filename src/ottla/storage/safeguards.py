"""The safeguards of a log, each of which can be switched off to prove that the simulator notices it.

Zone: pure. Only switches; the code that reads one implements it. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Safeguards:
    """One switch per safeguard; the simulator turns single ones off and has to find the fault that follows."""

    recovery_scan: bool = True
    """After an unclean stop the log is read from the recovery point on, and cut at the first damage."""
    crc_check: bool = True
    """That scan ends at a batch whose checksum does not match."""
    clean_marker_order: bool = True
    """The mark of a clean stop is removed before the first append, and written last."""
    dedupe: bool = True
    """A batch of an idempotent producer that is already in the log is not written again."""
    fsync_before_recovery_point: bool = True
    """The recovery point moves when a sync has completed, not when it was requested."""
    region_generation: bool = True
    """A region of a file that was cut since is not sent. The shells read this switch."""
    flush_before_ack: bool = True
    """With flush.messages, records are neither acknowledged nor counted before they are durable."""
    producers_replayed: bool = True
    """After a stop, producers' batches after their newest snapshot are read from the log."""
    failed_sync_is_final: bool = True
    """A directory where a sync has failed is offline: the data of that sync are not assumed to be durable later."""
    names_synced: bool = True
    """The recovery point moves past a new segment only when the name of its file is also durable."""
    recovery_point_goes_back: bool = True
    """A log that is cut lowers its recovery point, in the checkpoint as well."""
    start_before_names: bool = True
    """The log start is durable before the files below it are removed."""
    ghosts_forgotten: bool = True
    """A new log inherits no checkpoint entries of a deleted one that had its name."""
    durable_before_cleaned: bool = True
    """A pass of compaction begins when everything that its removals depend on is durable."""
    cleans_stable_only: bool = True
    """Nothing is compacted at or above the first record of an open transaction."""
    tombstones_stay: bool = True
    """A tombstone, and a marker, stays for delete.retention.ms after the pass that found nothing older."""
    exchange_in_order: bool = True
    """Each rename by which a compacted segment replaces others is durable before the next."""
    exchange_finished: bool = True
    """A start finishes an interrupted exchange: the segment under `.swap` names replaces the old ones."""
    cleaner_checkpoint_cut: bool = True
    """The cleaner's checkpoint of a log is lowered, durably, before the log is cut below it."""
    txn_indexes_vouched: bool = True
    """A transaction index that does not have the checksum of when it was finished is rebuilt."""
    holes_explained: bool = True
    """Records missing between two segments above the durable part are lost: compaction cannot have removed them."""
    losses_told: bool = True
    """A log that lost durable records is reported: it is not in sync, and does not lead while others are."""
