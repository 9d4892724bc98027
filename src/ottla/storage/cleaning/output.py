"""The files of the segment that several segments are rewritten into.

Zone: deterministic. They end in `.cleaned` while they are written, in `.swap` when they are complete, and have their
own names once the replaced segments are removed durably (`segment_swap`): after a stop at any moment
`recovery.interrupted_operations` finds either the old segments or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ottla.config.topic import TopicConfig
from ottla.record.batch import BatchHeader
from ottla.seams import Disk, Failure, Kind
from ottla.storage.cleaning.steps import Steps
from ottla.storage.indexes.index import OffsetIndex, TimeIndex
from ottla.storage.indexes.txn_index import AbortedTransaction, TxnIndex
from ottla.storage.layout import (
    CLEANED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from ottla.storage.log_dir_context import LogDirContext
from ottla.types import NO_TIMESTAMP

MAX_BYTES: Final = 2**31 - 1
"""Positions in a segment have 31 bits; a rewritten batch may be larger than it was."""


class CleanedFiles:
    """A segment under its `.cleaned` names."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, config: TopicConfig) -> None:
        """Create empty files; those of an earlier attempt are removed. Raises Failure."""
        self._disk = disk
        self._stem = {kind: f"{directory}/{file_name(base_offset, kind)}" for kind in SEGMENT_SUFFIXES}
        for kind in SEGMENT_SUFFIXES:
            disk.unlink_now(self._path_of(kind))
        self.log = disk.open(self._path_of(LOG), create=True)
        limit = config.segment_index_bytes
        self._index = OffsetIndex(disk, self._path_of(INDEX), base_offset, limit, create=True)
        self._time_index = TimeIndex(disk, self._path_of(TIME_INDEX), base_offset, limit, create=True)
        self._txn_index = TxnIndex(disk, self._path_of(TXN_INDEX))
        self._interval = config.index_interval_bytes
        self._since = 0
        self._latest = NO_TIMESTAMP
        self._offset_of_latest = base_offset
        self._closed = False

    def _path_of(self, kind: str) -> str:
        return self._stem[kind] + CLEANED

    def add_batches(self, batches: Sequence[tuple[bytes, BatchHeader]]) -> None:
        """Write batches, blocking, and index them where an entry is due. Raises Failure."""
        if self.log.size + sum(len(batch) for batch, _ in batches) > MAX_BYTES:
            raise Failure(Kind.NOT_DONE, f"{self._path_of(LOG)} would be larger than {MAX_BYTES} bytes")
        position = self.log.append([batch for batch, _ in batches]) if batches else 0
        for batch, header in batches:
            self._index_batch(position, header)
            self._since += len(batch)
            position += len(batch)

    def _index_batch(self, position: int, header: BatchHeader) -> None:
        if header.max_timestamp > self._latest:
            self._latest, self._offset_of_latest = header.max_timestamp, header.last_offset
        if self._since > self._interval and not self._index.is_full and not self._time_index.is_full:
            self._since = 0
            self._index.append(header.last_offset, position)
            if self._latest >= 0:
                self._time_index.append(self._latest, self._offset_of_latest)

    def finish_files(self, aborted: Iterable[AbortedTransaction]) -> Steps[None]:
        """Write what is still in memory, and make the files durable."""
        for entry in aborted:
            self._txn_index.append(entry)
        if self._latest > self._time_index.last_entry.timestamp:
            self._time_index.append(self._latest, self._offset_of_latest, closing=True)
        # Sealed before the syncs: that writes the last entries and trims the files.
        self._index.seal_file()
        self._time_index.seal_file()
        self._txn_index.write_out()
        yield self.log.sync
        yield self._index.sync_file
        yield self._time_index.sync_file
        if len(self._txn_index):
            yield self._txn_index.sync_file
        self.close_files()

    def close_files(self) -> None:
        """Close the files; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for each in (self.log, self._index, self._time_index, self._txn_index):
            each.close()

    def discard_files(self, home: LogDirContext) -> None:
        """Remove the files, off the loop: they may be large."""
        for kind in SEGMENT_SUFFIXES:
            home.unlink_path(self._path_of(kind))

    def rename_files(self, before: str, after: str, kinds: Sequence[str] = SEGMENT_SUFFIXES) -> None:
        """Give every file, or those of some kinds, another state. Raises Failure."""
        for stem in (self._stem[kind] for kind in kinds):
            if self._disk.exists(stem + before):
                self._disk.rename(stem + before, stem + after)
