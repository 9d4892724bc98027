"""The safeguards of a log, each of which can be taken away to see that something would notice.

Zone: pure. Only switches; what each one guards stands where it is asked. A broker in service has all of them on.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Safeguards:
    """One switch per safeguard; the simulator turns single ones off and must catch what follows."""

    recovery_scan: bool = True
    """After an unclean stop the log is read from the recovery point on, and cut at the first damage."""
    crc_check: bool = True
    """That scan believes no batch whose checksum does not fit."""
    clean_marker_order: bool = True
    """The mark of a clean stop is gone before the first append, and written last."""
    dedupe: bool = True
    """A batch of an idempotent producer that is already in the log is not written again."""
    fsync_before_recovery_point: bool = True
    """The recovery point moves when a sync has completed, not when it was asked for."""
    region_generation: bool = True
    """A region of a file that was cut since is not sent. Asked by the shells."""
    flush_before_ack: bool = True
    """With flush.messages nobody is told of records, nor counts them, before they are durable."""
    producers_replayed: bool = True
    """After a stop, what producers wrote behind the newest snapshot of them is taken from the log."""
    failed_sync_is_final: bool = True
    """A directory where a sync has failed is offline: what that sync was to save is not believed to be there later."""
    names_synced: bool = True
    """The recovery point moves past a new segment when the name of its file is durable, too."""
    recovery_point_goes_back: bool = True
    """A log that is cut takes its recovery point back, in the checkpoint as well."""
    start_before_names: bool = True
    """The log start is durable before the files below it go."""
    ghosts_forgotten: bool = True
    """A new log inherits nothing from checkpoints of a deleted one that had its name."""
    durable_before_cleaned: bool = True
    """A pass of compaction begins when all that it goes by is durable."""
    cleans_stable_only: bool = True
    """Nothing is compacted at or above the first record of an open transaction."""
    tombstones_stay: bool = True
    """A tombstone, and a marker, stays for delete.retention.ms behind the pass that found nothing older."""
    exchange_in_order: bool = True
    """Each renaming with which a compacted segment takes the place of others is durable before the next."""
    exchange_finished: bool = True
    """A start finishes what of that is begun: the segment under `.swap` names is the one that counts."""
    cleaner_checkpoint_cut: bool = True
    """What compaction has noted of a log is taken back, durably, before the log is cut below it."""
    txn_indexes_vouched: bool = True
    """A transaction index that is not what it was when it was finished is built anew."""
    holes_explained: bool = True
    """Records missing between two segments beyond what was durable were not compacted away: they are lost."""
    losses_told: bool = True
    """A log that lost what had been durable says so: it is not in sync, and does not lead while others are."""
