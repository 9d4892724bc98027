"""Stops the logs of one directory cleanly: memory is written to the files, and the files are synced to the device.

Zone: deterministic. Takes a share of the logs per turn, so that the loop keeps answering. When many logs have data that
is not durable, one sync of the whole directory replaces several syncs for each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from ottla.seams import Failure, Kind
from ottla.storage.checkpoints import CorruptCheckpoint, parse_clean_shutdown
from ottla.storage.layout import CLEAN_SHUTDOWN, ROOT
from ottla.storage.log import Log
from ottla.storage.log_dir_context import CompletionBarrier, LogDirContext
from ottla.storage.producers.snapshot_writing import write_snapshot
from ottla.storage.recovery.load_progress import LOGS_PER_LINE
from ottla.storage.segments.scan import read_file

_logger = logging.getLogger(__name__)

LOGS_AT_ONCE: Final = 500
"""Logs per turn, and logs that are synced at the same time: their files keep their descriptors open until then."""
SYNCED_ALONE: Final = 100
"""Up to this many logs are synced one by one: a sync of the directory also waits for the files of other programs."""


class CleanShutdown:
    """The stop of one directory; the caller writes the checkpoints that follow."""

    def __init__(self, home: LogDirContext, logs: list[Log], done: Callable[[Failure | None], None]) -> None:
        """`done` gets the first failure, or None, in a later turn."""
        self._home = home
        self._logs = [log for log in logs if not log.closed]
        self._done = done
        self._failure: Failure | None = None
        self._unsynced: list[Log] = []
        self._written: list[Log] = []
        """Those of `_unsynced` with nothing in memory and no flush in progress."""
        self._written_epoch_files: list[Log] = []
        """Those of `_written` whose leader epochs are in a temporary file, which will replace the checkpoint."""
        self._batches_epoch_files = False
        self._synced = 0

    def begin_shutdown(self) -> None:
        """Run the first turn."""
        self._batches_epoch_files = sum(log.metadata.epochs_file.is_due for log in self._logs) > SYNCED_ALONE
        self._write_logs(0)

    def _write_logs(self, start: int) -> None:
        """Write what the logs from index `start` on have in memory to their files, a share per turn."""
        share = self._logs[start : start + LOGS_AT_ONCE]
        following = start + len(share)
        self._log_progress(following, "written")

        def settled(failure: Failure | None) -> None:
            self._failure = self._failure or failure
            if following < len(self._logs):
                self._write_logs(following)
            else:
                self._sync_written()

        barrier = CompletionBarrier(settled)
        for log in share:
            try:
                log.cleaning.finish_exchange()
            except Failure as failure:
                barrier.note_failure(failure.as_value())
            if _write_stop_files(log, barrier, self._batches_epoch_files):
                self._unsynced.append(log)
                self._write_out(log)
        self._home.disk.sync_dir(ROOT, barrier.add_expected())
        barrier.arm_barrier()

    def _write_out(self, log: Log) -> None:
        try:
            if not log.metadata.flush.is_idle:
                return  # a flush is in flight, which the sync of its own waits for
            log.files.write_out()
            self._written.append(log)
            if self._batches_epoch_files and log.metadata.epochs_file.write_beside():
                self._written_epoch_files.append(log)
        except Failure as failure:
            self._failure = self._failure or failure.as_value()

    def _sync_written(self) -> None:
        if len(self._written) <= SYNCED_ALONE:
            self._sync_some(self._unsynced)
            return
        _logger.info("%s: stopping, syncing %d logs with one call", self._home.disk.name, len(self._written))
        self._home.disk.sync_all(self._all_synced)

    def _all_synced(self, outcome: bool | Failure) -> None:
        # 1. The sync failed: nothing is known to be durable.
        if isinstance(outcome, Failure):
            self._failure = self._failure or outcome
            self._done(self._failure)
            return
        # 2. The temporary files are durable: rename them, then come here again for their names.
        if outcome and self._written_epoch_files:
            self._rename_epoch_files()
            return
        # 3. Everything written is durable. Logs whose epochs are still due need syncs of their own.
        # 4. False: the system has no such call, so every log is synced by itself.
        if outcome:
            covered_logs = [log for log in self._written if not log.metadata.epochs_file.is_due]
            for log in covered_logs:
                log.metadata.flush.on_directory_synced()
            covered = {id(log) for log in covered_logs}
            self._unsynced = [log for log in self._unsynced if id(log) not in covered]
        self._sync_some(self._unsynced)

    def _rename_epoch_files(self) -> None:
        """Rename the temporary files, whose content is durable, into place; another sync makes the names durable."""
        share, self._written_epoch_files = (
            self._written_epoch_files[:LOGS_AT_ONCE],
            self._written_epoch_files[LOGS_AT_ONCE:],
        )
        try:
            for log in share:
                log.metadata.epochs_file.rename_beside()
        except Failure as failure:
            self._done(self._failure or failure.as_value())
            return
        if self._written_epoch_files:
            # These names are not in the root. The sync only ends this turn: thousands of renames at once would block
            # the loop. The sync of the whole directory that follows the last share covers them.
            self._home.disk.sync_dir(ROOT, lambda _: self._rename_epoch_files())
        else:
            self._home.disk.sync_all(self._all_synced)

    def _sync_some(self, logs: list[Log]) -> None:
        """Sync a share at a time: files that wait for a sync keep their descriptors open, and those are limited."""
        share, left = logs[:LOGS_AT_ONCE], logs[LOGS_AT_ONCE:]
        self._synced += len(share)
        if self._synced > SYNCED_ALONE:
            self._log_progress(self._synced, "synced")

        def synced(failure: Failure | None) -> None:
            self._failure = self._failure or failure
            if left:
                self._sync_some(left)
            else:
                self._done(self._failure)

        barrier = CompletionBarrier(synced)
        for log in share:
            log.metadata.flush.request_flush(barrier.add_expected(), everything=True)
        self._home.disk.sync_dir(ROOT, barrier.add_expected())
        barrier.arm_barrier()

    def _log_progress(self, count: int, what: str) -> None:
        if len(self._logs) > LOGS_PER_LINE and (count % LOGS_PER_LINE == 0 or count == len(self._logs)):
            _logger.info("%s: stopping, %d of %d logs are %s", self._home.disk.name, count, len(self._logs), what)


def _write_stop_files(log: Log, barrier: CompletionBarrier, epochs_wait: bool) -> bool:
    """Write the files that a clean stop of a log needs: snapshot, epochs, checksums of transaction indexes.

    Returns whether a sync has to follow: log or indexes are not durable, or epochs with `epochs_wait` are due.
    """
    metadata = log.metadata
    # 1. A start after a clean stop that finds no snapshot assumes that there are no producers, as Kafka does.
    has_told = metadata.snapshot_offset >= 0 or len(log.producers)
    if has_told and log.end_offset > max(metadata.snapshot_offset, log.start_offset):
        write_snapshot(log.home, log, metadata.save_snapshot, barrier.add_expected(), whole=True)
    # 2. The leader epochs, unless those of many logs are written together. 3. The checksums.
    for job in metadata.epochs_file.write_jobs(begin=not epochs_wait):
        job(barrier.add_expected())
    metadata.record_active_index(barrier)
    if metadata.epochs_file.is_due:
        return True
    return any(segment.has_unsaved_index for segment in log.segments) or not metadata.flush.is_clean


def take_clean_mark(home: LogDirContext) -> bool:
    """At start-up: whether the last stop was clean. The mark is removed, durably, before anything is appended."""
    disk = home.disk
    try:
        parse_clean_shutdown(read_file(disk, CLEAN_SHUTDOWN))
        clean = True
    except CorruptCheckpoint as error:
        # A mark that cannot be read costs one recovery. To trust it could cost records.
        _logger.warning("%s: %s", disk.name, error)
        clean = False
    except Failure as failure:
        if failure.kind is not Kind.NOT_DONE:
            raise
        clean = False
    # With a mark left from before the first append, the start after a crash would trust files that were not synced.
    disk.unlink_now(CLEAN_SHUTDOWN)
    disk.sync_now(ROOT)
    return clean
