"""Reads the batches of segments, and computes from them what a log knows: indexes, producers, leader epochs, its end.

Zone: deterministic. Reads segment after segment; `recovery` chooses which, and cuts the log where a read stops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.config.topic import TopicConfig
from ottla.record.batch import CONTROL, LOG_OVERHEAD
from ottla.record.header_fields import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BATCH_LENGTH,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
)
from ottla.record.validation import HeaderTuple
from ottla.storage.indexes.leader_epochs import EpochEntry, LeaderEpochs
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.producers.producer_state import SEQUENCE_MASK, ProducerState, marker_of, replay_batch
from ottla.storage.recovery.valid_prefix import valid_batches
from ottla.storage.segments.segment import Segment
from ottla.types import NO_EPOCH

MAX_OFFSET: Final = 2**63 - 1


class SegmentReplay:
    """The state of a log up to the end of the segment that was read last."""

    def __init__(
        self,
        home: LogDirContext,
        config: TopicConfig,
        stored_epochs: list[EpochEntry],
        scanned: Callable[[int], None],
    ) -> None:
        """`stored_epochs`: the leader epochs in the checkpoint. `scanned` gets the number of bytes of each segment."""
        self._home = home
        self._config = config
        self._stored_epochs = stored_epochs
        self._scanned = scanned
        self.end_offset = 0
        self.batches_end = 0
        """The offset after the last batch that was read; a compacted log may continue at a higher one."""
        self.epochs = LeaderEpochs(stored_epochs, lambda: self.end_offset, lambda _: None)
        self.state = ProducerState()
        self.has_aborted = False
        """Whether an aborted transaction was found."""
        self.follows_loss = False
        """Whether records before the next segment were lost, though it has some: producers' sequences may have gaps."""

    def forget_producers(self) -> None:
        """Begin with no producers: the log is read from its beginning."""
        self.state = ProducerState()

    def read_segment(self, segment: Segment, durable: int = MAX_OFFSET) -> int:
        """Read a segment, compute its indexes, note producers and epochs; returns the bytes that are whole batches.

        From offset `durable` on the log ends where leader epochs decrease: records that had been cut off follow."""
        # The old indexes are emptied, not continued: they may have entries for bytes that are cut off below.
        segment.make_appendable(self._config, keep_entries=False)
        segment.max_timestamp, segment.offset_of_max_timestamp = -1, segment.base_offset
        segment.bytes_since_index = 0
        self.end_offset = self.state.end_offset = segment.base_offset
        valid = 0
        for position, header in valid_batches(segment.file, segment.size, segment.base_offset):
            if header[BASE_OFFSET] >= durable and self._was_cut_off(header):
                break
            last = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
            size = header[BATCH_LENGTH] + LOG_OVERHEAD
            segment.index_batch(position, size, last, header[MAX_TIMESTAMP])
            self._note_epoch(header)
            if header[PRODUCER_ID] >= 0:
                self._note_producer(segment, position, header)
            valid = position + size
            self.end_offset = self.batches_end = last + 1
        self.state.end_offset = self.end_offset
        segment.close_time_index()
        segment.write_out()
        self._scanned(segment.size)
        return valid

    def _note_epoch(self, header: HeaderTuple) -> None:
        """Note the leader epoch of an entry. Messages of formats v0 and v1, and batches that the cleaner made of them,
        do not have it: for these the checkpoint is trusted."""
        epoch, start = header[LEADER_EPOCH], header[BASE_OFFSET]
        if epoch == NO_EPOCH:
            known = [entry for entry in self._stored_epochs if entry.start_offset <= header[BASE_OFFSET]]
            if not known:
                return
            epoch, start = known[-1]
        if epoch > self.epochs.latest:
            self.epochs.assign_epoch(epoch, self._epoch_start(epoch, start))

    def _epoch_start(self, epoch: int, start: int) -> int:
        """Where an epoch began whose first remaining batch is at `start`: the checkpoint may have a lower offset, of
        records that were compacted away, but above the batch before."""
        known = (entry.start_offset for entry in self._stored_epochs if entry.epoch == epoch)
        return next((offset for offset in known if self.end_offset <= offset <= start), start)

    def _was_cut_off(self, header: HeaderTuple) -> bool:
        """Whether a batch had been cut off: it follows newer batches, or precedes the new ones (according to the
        checkpoint its epoch began at a lower offset)."""
        if header[LEADER_EPOCH] <= self.epochs.latest:
            return NO_EPOCH < header[LEADER_EPOCH] < self.epochs.latest
        return any(epoch == header[LEADER_EPOCH] and start < self.batches_end for epoch, start in self._stored_epochs)

    def _note_producer(self, segment: Segment, position: int, header: HeaderTuple) -> None:
        marker = None
        if header[ATTRIBUTES] & CONTROL:
            batch = memoryview(bytearray(header[BATCH_LENGTH] + LOG_OVERHEAD))
            segment.file.read_now(position, batch)
            marker = marker_of(batch, 0)
        elif self.follows_loss:
            self._raise_floor(header)
        aborted = replay_batch(self.state, header, marker, self._home.clock.now().wall_ms)
        if aborted is not None:
            segment.txn_index.append(aborted)
            self.has_aborted = True

    def _raise_floor(self, header: HeaderTuple) -> None:
        """Before a batch that follows lost records is noted: if its producer's sequences have a gap before it, the
        batches of the gap are lost, so none below this one is certainly written."""
        producer = self.state.get(header[PRODUCER_ID])
        if producer is not None and producer.epoch == header[PRODUCER_EPOCH] and producer.batches:
            expected = (producer.batches[-1][0] + 1) & SEQUENCE_MASK
            if header[BASE_SEQUENCE] != expected:
                producer.floor = header[BASE_SEQUENCE]
