"""The segment that several are rewritten into: its files while they are written, and their way into the log.

Zone: deterministic. `.cleaned` while it is written, `.swap` when it is complete, and its own name when what it replaces
is gone for good: after a stop at any moment `leftovers` finds either the old segments or the new one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.config.topic import TopicConfig
from ottla.record.batch import BatchHeader
from ottla.seams import Disk, Done
from ottla.storage.cleaning.steps import Steps
from ottla.storage.home import Home
from ottla.storage.index import OffsetIndex, TimeIndex
from ottla.storage.layout import (
    CLEANED,
    DELETED,
    INDEX,
    LOG,
    SEGMENT_SUFFIXES,
    SNAPSHOT,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
    file_name,
)
from ottla.storage.segment import Segment
from ottla.storage.txn_index import AbortedTransaction, TxnIndex
from ottla.types import NO_TIMESTAMP


class CleanedFiles:
    """A segment under its `.cleaned` names."""

    def __init__(self, disk: Disk, directory: str, base_offset: int, config: TopicConfig) -> None:
        """Empty files; what an earlier attempt left is removed. Raises Failure."""
        self._disk = disk
        self._stem = {kind: f"{directory}/{file_name(base_offset, kind)}" for kind in SEGMENT_SUFFIXES}
        self.discard_names()
        self.log = disk.open(self._path(LOG), create=True)
        limit = config.segment_index_bytes
        self._index = OffsetIndex(disk, self._path(INDEX), base_offset, limit, create=True)
        self._time_index = TimeIndex(disk, self._path(TIME_INDEX), base_offset, limit, create=True)
        self._txn_index = TxnIndex(disk, self._path(TXN_INDEX))
        self._interval = config.index_interval_bytes
        self._since = 0
        self._latest = NO_TIMESTAMP
        self._offset_of_latest = base_offset

    def _path(self, kind: str) -> str:
        return self._stem[kind] + CLEANED

    def add(self, batches: Sequence[tuple[bytes, BatchHeader]]) -> None:
        """Write batches, at once, and index them where it is time. Raises Failure."""
        position = self.log.append([batch for batch, _ in batches]) if batches else 0
        for batch, header in batches:
            self._note(position, header)
            self._since += len(batch)
            position += len(batch)

    def _note(self, position: int, header: BatchHeader) -> None:
        if header.max_timestamp > self._latest:
            self._latest, self._offset_of_latest = header.max_timestamp, header.last_offset
        if self._since > self._interval:
            self._since = 0
            self._index.append(header.last_offset, position)
            if self._latest >= 0:
                self._time_index.append(self._latest, self._offset_of_latest)

    def finish(self, aborted: Iterable[AbortedTransaction]) -> Steps[None]:
        """Write what is still in memory, and make all of it durable."""
        for entry in aborted:
            self._txn_index.append(entry)
        if self._latest > self._time_index.last.timestamp:
            self._time_index.append(self._latest, self._offset_of_latest, closing=True)
        self._index.seal()
        self._time_index.seal()
        self._txn_index.write_out()
        yield self.log.sync
        yield self._index.sync
        yield self._time_index.sync
        if self._txn_index.entries:
            yield self._txn_index.sync
        self.close()

    def close(self) -> None:
        """Give the files back."""
        for each in (self.log, self._index, self._time_index, self._txn_index):
            each.close()

    def discard_names(self) -> None:
        """Remove the files. Raises Failure."""
        for kind in SEGMENT_SUFFIXES:
            self._disk.unlink_now(self._path(kind))

    def rename(self, before: str, after: str) -> None:
        """Give every file another state. Raises Failure."""
        for stem in self._stem.values():
            if self._disk.exists(stem + before):
                self._disk.rename(stem + before, stem + after)


def put_in_place(
    home: Home, directory: str, files: CleanedFiles, old: Sequence[Segment], config: TopicConfig
) -> Steps[Segment]:
    """Let the finished files take the place of `old` on the disk; the segment over them. Raises Failure.

    The old segments stay open, for whoever still reads them. Each of the three renames is durable before the next: what
    a loss of power brings back must never be a part of the old beside the new.
    """

    def durable(done: Done[None]) -> None:
        home.disk.sync_dir(directory, done)

    files.rename(CLEANED, SWAP)
    yield durable
    gone = [path for segment in old for path in _names_of(home, directory, segment, first=segment is old[0])]
    for path in gone:
        home.disk.rename(path, path + DELETED)
    yield durable
    files.rename(SWAP, "")
    yield durable
    for path in gone:
        home.unlink_later(path + DELETED, config.file_delete_delay_ms)
    return Segment(home.disk, directory, old[0].base_offset, config)


def _names_of(home: Home, directory: str, segment: Segment, *, first: bool) -> list[str]:
    """What goes with an old segment; the snapshot at the first one's offset is that of the new one, too."""
    kinds = SEGMENT_SUFFIXES if first else (*SEGMENT_SUFFIXES, SNAPSHOT)
    paths = [f"{directory}/{file_name(segment.base_offset, kind)}" for kind in kinds]
    return [path for path in paths if home.disk.exists(path)]
