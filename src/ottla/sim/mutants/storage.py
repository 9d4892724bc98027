"""The safeguards of a log, and what switches each off.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.sim.mutants.mutant import Edit, Mutant

_BATCHES: Final = "ottla.storage.recovery.valid_prefix"
_CLEANER: Final = "ottla.storage.cleaning.cleaner"
_FLUSH: Final = "ottla.storage.flush"
_LOG: Final = "ottla.storage.log"
_RECOVERY: Final = "ottla.storage.recovery.recovery"
_STOP: Final = "ottla.storage.clean_shutdown"

STORAGE: Final = (
    Mutant(
        "recovery_scan",
        "After an unclean stop the log is read from the recovery point on, and cut at the first damage.",
        (
            Edit(_RECOVERY, "_Opening.build_log", "elif self.found.clean:", "elif True:"),
            Edit(_RECOVERY, "_Opening._trust_files", "if not right:", "if False:"),
        ),
    ),
    Mutant(
        "crc_check",
        "That scan ends at a batch whose checksum does not match.",
        (
            Edit(_BATCHES, "valid_batches", "if not large_crc_ok(", "if False and not large_crc_ok("),
            Edit(_BATCHES, "valid_batches", "elif entry_checksum(", "elif False and entry_checksum("),
        ),
    ),
    Mutant(
        "clean_marker_order",
        "The mark of a clean stop is removed before the first append, and written last.",
        (
            Edit(
                _STOP,
                "take_clean_mark",
                "disk.unlink_now(CLEAN_SHUTDOWN)",
                'disk.replace_now(CLEAN_SHUTDOWN, b\'{"version":0,"brokerEpoch":-1}\')',
            ),
            Edit(_STOP, "take_clean_mark", "disk.sync_now(ROOT)", "pass"),
        ),
    ),
    Mutant(
        "dedupe",
        "A batch of an idempotent producer that is already in the log is not written again.",
        (Edit(_LOG, "Log.check_producer", "return self.producers.check_batch(header)", "return None"),),
    ),
    Mutant(
        "fsync_before_recovery_point",
        "The recovery point moves when a sync has completed, not when it was requested.",
        (
            Edit(
                _FLUSH,
                "Flush.request_flush",
                "if not self._open_jobs:",
                "self._set_recovery_point(self._end_offset())\n        if not self._open_jobs:",
            ),
        ),
    ),
    Mutant(
        "region_generation",
        "A region of a file that was cut since is not sent. Each shell checks this; the mutant is the simulated one's.",
        (
            Edit(
                "ottla.sim.networks.node_network",
                "ServerEnd._bytes_of",
                "if file.generation != part.generation:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "flush_before_ack",
        "With flush.messages, records are neither acknowledged nor counted before they are durable.",
        (
            Edit(
                "ottla.storage.flush_policy",
                "FlushPolicy.on_appended",
                "self.awaited_offset = self._flushed",
                "pass",
            ),
        ),
    ),
    Mutant(
        "producers_replayed",
        "After a stop, producers' batches after their newest snapshot are read from the log.",
        (
            Edit(
                "ottla.storage.producers.producer_snapshots",
                "replay_to",
                "if segment.base_offset >= end:",
                "if True:",
            ),
            Edit(
                "ottla.storage.recovery.segment_replay",
                "SegmentReplay.read_segment",
                "self._note_producer(segment, position, header)",
                "pass",
            ),
        ),
    ),
    Mutant(
        "failed_sync_is_final",
        "A directory where a sync has failed is offline: the data of that sync are not assumed to be durable later.",
        (
            Edit(
                _FLUSH,
                "Flush._on_job_done",
                "if isinstance(outcome, Failure) and not self._on_renamed(outcome):",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "names_synced",
        "The recovery point moves past a new segment only when the name of its file is also durable.",
        (
            Edit(
                _FLUSH,
                "Flush._flush_jobs",
                "names = [name for name in self._names if not (everything and name == ROOT)]",
                "names = []",
            ),
        ),
    ),
    Mutant(
        "recovery_point_goes_back",
        "A log that is cut lowers its recovery point, in the checkpoint as well.",
        (Edit(_FLUSH, "Flush._lower_recovery_point", "if offset < self.recovery_point:", "if False:"),),
    ),
    Mutant(
        "start_before_names",
        "The log start is durable before the files below it are removed.",
        (
            Edit(
                "ottla.storage.retention.retention_enforcer",
                "_drop_first",
                "log.home.save_starts(lambda: _retire_segments(log, gone))",
                "_retire_segments(log, gone)",
            ),
        ),
    ),
    Mutant(
        "ghosts_forgotten",
        "A new log inherits no checkpoint entries of a deleted one that had its name.",
        (
            Edit(
                "ottla.storage.directory_names",
                "DirectoryNames.forget_deleted_log",
                "self._offsets.forget_deleted_logs()",
                "pass",
            ),
        ),
    ),
    Mutant(
        "durable_before_cleaned",
        "A pass of compaction begins when everything that its removals depend on is durable.",
        (
            Edit(_CLEANER, "Cleaner._make_inputs_durable", "yield log.flush", "pass"),
            Edit(_CLEANER, "Cleaner._make_inputs_durable", "yield directory.offsets.save_recovery_points", "pass"),
        ),
    ),
    Mutant(
        "cleans_stable_only",
        "Nothing is compacted at or above the first record of an open transaction.",
        (
            Edit(
                _CLEANER,
                "Cleaner._find_cleanable",
                "unstable = log.first_unstable_offset",
                "unstable = None",
            ),
        ),
    ),
    Mutant(
        "tombstones_stay",
        "A tombstone, and a marker, stays for delete.retention.ms after the pass that found nothing older.",
        (
            Edit(
                "ottla.storage.cleaning.batch_retention",
                "BatchRetention._is_due",
                "horizon = header.delete_horizon_ms",
                "return True",
            ),
        ),
    ),
    Mutant(
        "exchange_in_order",
        "Each rename by which a compacted segment replaces others is durable before the next.",
        (
            Edit(
                "ottla.storage.cleaning.segment_swap",
                "SegmentSwap._wait_until_durable",
                "yield self._sync_names",
                "return\n        yield self._sync_names",
            ),
        ),
    ),
    Mutant(
        "exchange_finished",
        "A start finishes an interrupted exchange: the segment under `.swap` names replaces the old ones.",
        (
            Edit(
                "ottla.storage.recovery.interrupted_operations",
                "finish_interrupted",
                "if swaps:",
                "if swaps:\n        _drop_files_now(home, directory, list(swaps))\n    elif swaps:",
            ),
        ),
    ),
    Mutant(
        "cleaner_checkpoint_cut",
        "The cleaner's checkpoint of a log is lowered, durably, before the log is cut below it.",
        (
            Edit(_LOG, "Log._prepare_cut", "self.home.save_cleaned()", "pass"),
            Edit(
                "ottla.storage.offset_checkpoints",
                "OffsetCheckpoints.take_cleaned",
                "self._correct_cleaned()",
                "pass",
            ),
        ),
    ),
    Mutant(
        "txn_indexes_vouched",
        "A transaction index that does not have the checksum of when it was finished is rebuilt.",
        (
            Edit(
                _RECOVERY,
                "_Opening._indexes_right",
                "if noted is not None and noted != segment.txn_index.file_checksum:",
                "if False:",
            ),
        ),
    ),
    Mutant(
        "holes_explained",
        "Records missing between two segments above the durable part are lost: compaction cannot have removed them.",
        (Edit(_RECOVERY, "_Opening._lost_before", "return base > durable", "return False"),),
    ),
    Mutant(
        "losses_told",
        "A log that lost durable records is reported: it is not in sync, and does not lead while others are.",
        (
            Edit(
                "ottla.storage.recovery.stored_files",
                "StoredFiles.note_loss",
                "if self.loss is None or lack > self.loss:",
                "if False:",
            ),
        ),
    ),
)
