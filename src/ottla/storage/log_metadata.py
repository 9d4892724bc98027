"""The small files beside the segments of a log: topic id, leader epochs, index checksums, the mark of a loss.

Zone: deterministic. Decides when each of them is written; `log_files` has the segments, `log` the offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.seams import Failure
from ottla.storage.checkpoints import format_partition_metadata
from ottla.storage.flush import Flush
from ottla.storage.indexes.leader_epoch_file import EpochsFile
from ottla.storage.indexes.leader_epochs import EpochEntry, LeaderEpochs
from ottla.storage.indexes.txn_index import IndexChecksum
from ottla.storage.indexes.txn_index_checksums import TxnIndexChecksums
from ottla.storage.layout import INCOMPLETE, LEADER_EPOCHS, PARTITION_METADATA, ROOT
from ottla.storage.log_dir_context import CompletionBarrier, LogDirContext
from ottla.storage.log_loss import IncompleteLog, format_loss
from ottla.storage.producers.producer_snapshots import reload_after_cut
from ottla.storage.producers.producer_state import ProducerState
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segment_files import snapshot_path
from ottla.storage.segments.segments import SegmentList
from ottla.types import ZERO_UUID, TopicPartition


class LogOffsets(NamedTuple):
    """Where a log begins and ends when it is opened."""

    start: int
    end: int
    recovery_point: int


class StoredMetadata(NamedTuple):
    """What a start found in the files, or computed where they were wrong."""

    topic_id: bytes
    epochs: list[EpochEntry]
    snapshot_offset: int
    """Of the newest producer snapshot; -1: there is none."""
    txn_sums: Mapping[str, IndexChecksum]


class LogMetadata:
    """The small files of one log."""

    __slots__ = (
        "_home",
        "_tp",
        "_txn_sums",
        "directory",
        "epochs",
        "epochs_file",
        "epochs_stale",
        "flush",
        "loss",
        "snapshot_offset",
        "topic_id",
    )

    def __init__(
        self,
        home: LogDirContext,
        tp: TopicPartition,
        directory: str,
        stored: StoredMetadata,
        segments: SegmentList,
        recovery_point: int,
        end_offset: Callable[[], int],
    ) -> None:
        self._home = home
        self._tp = tp
        self.directory = directory
        """The name of the log's directory in its log directory."""
        self.topic_id = stored.topic_id
        self.snapshot_offset = stored.snapshot_offset
        """Of the newest producer snapshot on the disk; -1: there is none."""
        self.loss: IncompleteLog | None = None  # which durable records the log has lost; None: none, or it is excused
        self._txn_sums = TxnIndexChecksums(home, lambda: self.directory, segments, stored.txn_sums)
        self.epochs_file = EpochsFile(home, lambda: f"{self.directory}/{LEADER_EPOCHS}")
        self.flush = Flush(home, tp, segments, recovery_point, end_offset, self.epochs_file.write_jobs)
        """Its syncs cover these files as well as the segments."""
        self.epochs_stale = False
        """Whether the epochs differ from the file: an epoch without records is not written, since a start would not
        trust it, and a starting broker leads thousands of logs. The next append writes the file first
        (`LogFiles.unfence_appends`)."""
        self.epochs = LeaderEpochs(stored.epochs, end_offset, self._save_epochs)

    def let_go(self, end_offset: int) -> None:
        """Cut the references of its parts to it: the log was closed, and ended at `end_offset`."""
        self.epochs_file.let_go()
        self._txn_sums.let_go()
        self.flush.let_go(end_offset)
        self.epochs.let_go(end_offset)

    # -- leader epochs -------------------------------------------------------------------------------------------------

    def expect_epoch(self, epoch: int, end_offset: int) -> None:
        """Note that a leader of this epoch writes from the log end on. Its first record writes that to the file."""
        self.epochs_stale = self.epochs.expect_epoch(epoch, end_offset) or self.epochs_stale

    def compare_epochs(self, stored: list[EpochEntry], end_offset: int, trusted: bool) -> None:
        """At start: compare the epochs with those in the file.

        If the file is wrong about existing records, and the last stop was not clean, so that another recovery is
        likely, it is written at once; otherwise before the next record.
        """
        entries = list(self.epochs.entries)
        self.epochs_file.take_stored(stored)
        self.epochs_stale = entries != stored
        if not trusted and entries != [entry for entry in stored if entry.start_offset != end_offset]:
            self.settle_epochs()

    def settle_epochs(self) -> None:
        """Before records are appended: write the epochs if the file differs, without an epoch that has no records."""
        if self.epochs_stale:
            self._save_epochs(self.epochs.entries)

    def _save_epochs(self, entries: tuple[EpochEntry, ...]) -> None:
        self.epochs_stale = False
        if not self.flush.active_was_cut:
            self.epochs_file.save_entries(entries)
            return
        # After a cut that may not be durable, a power loss can leave new batches after those that were cut off. Only
        # the start of their epoch distinguishes them (`recovery`), so the epoch is on the disk before they are.
        try:
            self.epochs_file.write_entries_now(entries)
        except Failure as failure:
            self._home.on_failed(failure.as_value())

    def save_epochs_now(self) -> None:
        """Write the leader epochs to the disk, blocking. Raises Failure."""
        self.epochs_file.write_entries_now(self.epochs.entries)

    def write_epochs(self) -> None:
        """Begin to write the present leader epochs."""
        self.epochs_file.write_entries(self.epochs.entries)

    def when_epochs_saved(self, tell: Callable[[object], None]) -> None:
        """Call back in a later turn, once no write of the leader epochs is in progress."""
        if not self.epochs_file.is_writing:
            self.write_epochs()
        self.epochs_file.when_idle(tell)

    # -- the other files -----------------------------------------------------------------------------------------------

    def write_topic_id(self, then: Callable[[], None] = lambda: None) -> None:
        """Write `partition.metadata`; the names of a log just created become durable with its first flush.

        `then` is called when the topic's id is durable, at once if it has none.
        """

        def written(outcome: object) -> None:
            self._home.note_failure(outcome)
            if not isinstance(outcome, Failure):
                then()

        self.flush.note_names(self.directory, ROOT)
        # Topics from before Kafka 2.8 have no id (KIP-516), and their logs no such file.
        if self.topic_id == ZERO_UUID:
            then()
            return
        path = f"{self.directory}/{PARTITION_METADATA}"
        self._home.disk.replace_file(path, format_partition_metadata(self.topic_id), written)

    def mark_incomplete(self, lack: IncompleteLog) -> None:
        """Mark the log, durably, as one that lost records, until `clear_incomplete`. Raises Failure."""
        self._home.disk.replace_now(f"{self.directory}/{INCOMPLETE}", format_loss(lack))
        self.loss = lack

    def clear_incomplete(self) -> None:
        """Remove the mark of a log that lost records: it begins from another log, or no replica has more.

        Changed names are made durable first: after a power cut the old ones must not come back without the mark.
        Raises Failure.
        """
        self._home.disk.sync_now(self.directory)
        self._home.disk.unlink_now(f"{self.directory}/{INCOMPLETE}")
        self.loss = None

    def save_snapshot(self, offset: int, content: bytes, done: Callable[[object], None]) -> None:
        """Begin to write a producer snapshot."""
        self.snapshot_offset = offset
        self._home.disk.replace_file(snapshot_path(self.directory, offset), content, done)

    def reload_snapshots(self, segments: Sequence[Segment], marks: tuple[int, int, int], state: ProducerState) -> None:
        """Compute the state of producers after a cut, from snapshots and records.

        `marks`: log start, high watermark and log end.
        """
        self.snapshot_offset = reload_after_cut(self._home, self.directory, segments, marks, state)

    def record_index_checksums(self, segments: Iterable[Segment]) -> None:
        """Record the checksums of the transaction indexes of these segments, which are finished. Raises Failure."""
        self._home.on_log_changed(self._tp)  # they are new, or sealed now
        for segment in segments:
            self._txn_sums.record_checksum(segment)
        self._txn_sums.save_checksums()

    def record_active_index(self, barrier: CompletionBarrier) -> None:
        """Record the checksum of the active segment's transaction index as well, at a stop."""
        self._txn_sums.record_active(barrier)

    def relocate_files(self, directory: str) -> None:
        """Write the files that depend on the name of the directory, which has changed."""
        self.directory = directory
        self.write_topic_id()
        self.write_epochs()
