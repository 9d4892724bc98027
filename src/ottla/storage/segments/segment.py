"""One segment of a log: the batches in a file, and the indexes into it.

Zone: deterministic. Appending, indexing, finding positions in one segment; the log decides when to roll or delete it.
The active segment is appended to; a sealed one is only truncated or removed.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Final

from ottla.config.topic import TopicConfig
from ottla.record.batch import LOG_OVERHEAD, MAGIC_V2
from ottla.record.header_fields import BASE_OFFSET, BATCH_LENGTH, LAST_OFFSET_DELTA, MAX_TIMESTAMP
from ottla.seams import Disk, Failure, File
from ottla.storage.indexes.index import (
    LOT_BYTES,
    MAX_RELATIVE_OFFSET,
    OffsetIndex,
    TimeIndex,
    TimestampOffset,
)
from ottla.storage.indexes.txn_index import TxnIndex
from ottla.storage.layout import INDEX, LOG, TIME_INDEX, TXN_INDEX, file_name
from ottla.storage.segments.scan import magic_at, walk_headers
from ottla.types import LAST_OFFSET, NO_TIMESTAMP

NEVER: Final = sys.maxsize


class Segment:
    """Batches from `base_offset` on. The plain attributes are read by the log on its hot path."""

    __slots__ = (
        "_disk",
        "_index_limit",
        "_time_index",
        "_txn_index",
        "active",
        "base_offset",
        "bytes_since_index",
        "directory",
        "entries_wait",
        "file",
        "first_timestamp",
        "hot_from",
        "index_interval",
        "index_state",
        "jitter_ms",
        "max_offset",
        "max_timestamp",
        "offset_of_max_timestamp",
        "on_entries",
        "open_index",
        "path",
        "roll_size",
        "roll_timestamp",
        "roll_wall_ms",
        "size",
    )

    def __init__(self, disk: Disk, directory: str, base_offset: int, config: TopicConfig, create: bool = False) -> None:
        """Open (or create) the segment's log file; indexes are opened when they are needed. Raises Failure."""
        self._disk = disk
        self.directory = directory
        self.path = f"{directory}/{file_name(base_offset, LOG)}"
        self.base_offset = base_offset
        self.file: File = disk.open(self.path, create)
        self.size = self.file.size
        self.active = False
        self.hot_from = self.size
        """Bytes from here on were written by this process: they are in the page cache."""
        self.open_index: OffsetIndex | None = None
        """`index` if it is open: saves a call for every fetch of older records."""
        self._time_index: TimeIndex | None = None
        self._txn_index: TxnIndex | None = None
        self.on_entries: Callable[[Segment], None] | None = None
        """Called when the first entry waits in memory: `show_entries` has to be called soon."""
        self.entries_wait = False
        self.index_state = ""
        """The suffix of the index files' names while they are rebuilt."""
        self._index_limit = config.segment_index_bytes
        self.index_interval = config.index_interval_bytes
        self.bytes_since_index = 0
        self.max_timestamp = NO_TIMESTAMP
        self.offset_of_max_timestamp = base_offset
        self.first_timestamp = NO_TIMESTAMP
        """Largest timestamp of the first batch: the age of the segment counts from it."""
        self.max_offset = min(base_offset + MAX_RELATIVE_OFFSET, LAST_OFFSET)
        self.roll_size = self.roll_timestamp = self.roll_wall_ms = NEVER
        self.jitter_ms = 0

    # -- files ---------------------------------------------------------------------------------------------------------

    def path_of(self, kind: str) -> str:
        """Path of the segment's file of this kind."""
        return f"{self.directory}/{file_name(self.base_offset, kind)}"

    @property
    def index(self) -> OffsetIndex:
        """Offset → position."""
        if self.open_index is None:
            self.open_index = OffsetIndex(*self._index_arguments(INDEX))
        return self.open_index

    @property
    def time_index(self) -> TimeIndex:
        """Timestamp → offset."""
        if self._time_index is None:
            self._time_index = TimeIndex(*self._index_arguments(TIME_INDEX))
        return self._time_index

    @property
    def txn_index(self) -> TxnIndex:
        """Aborted transactions."""
        if self._txn_index is None:
            self._txn_index = TxnIndex(self._disk, self.path_of(TXN_INDEX) + self.index_state)
        return self._txn_index

    def _index_arguments(self, suffix: str) -> tuple[Disk, str, int, int, bool]:
        limit = self._index_limit if self.active else 0
        return self._disk, self.path_of(suffix) + self.index_state, self.base_offset, limit, self.active

    def make_appendable(self, config: TopicConfig, keep_entries: bool = True) -> None:
        """Make the segment appendable: its indexes are reopened for writing. Raises Failure."""
        if keep_entries:
            self.write_out()
        self.close_indexes()
        if not keep_entries:
            for suffix in (INDEX, TIME_INDEX, TXN_INDEX):
                self._truncate_file(self.path_of(suffix) + self.index_state)
            # Otherwise a power cut after a clean stop could restore its entries, which hide committed records.
            self.txn_index.dirty = self.txn_index.is_emptied
        self.active = True
        self._index_limit = config.segment_index_bytes
        if self.is_full:
            self.roll_size = -1
        if self._disk.exists(self.path_of(TXN_INDEX) + self.index_state):
            # Opened now, when a failure is allowed: once there is an entry, the marker is in the log already.
            assert self.txn_index is not None

    def _truncate_file(self, path: str) -> None:
        """Truncate a file to 0 without reading it: a sparse index that a crash left is long."""
        if self._disk.exists(path):
            file = self._disk.open(path, create=False)
            if file.size:
                file.truncate(0)
            file.close()

    def set_roll_bounds(self, config: TopicConfig, now_ms: int) -> None:
        """Compute the bounds past which the next append rolls (the rules of Kafka's LogSegment.shouldRoll)."""
        self.index_interval = config.index_interval_bytes
        self.bound_size(config)
        age = max(0, config.roll_ms - self.jitter_ms)
        self.roll_timestamp = self.roll_wall_ms = NEVER
        # The age counts from the first batch's timestamp. Records without timestamps have none: then it counts from
        # now.
        if self.size and self.first_timestamp >= 0:
            self.roll_timestamp = self.first_timestamp + age
        elif self.size:
            self.roll_wall_ms = now_ms + age

    def bound_size(self, config: TopicConfig) -> None:
        """Set the size past which the next append rolls."""
        self.roll_size = -1 if self.is_full else config.segment_bytes

    def relocate_files(self, directory: str) -> None:
        """Note the new name of its directory."""
        self.directory = directory
        self.path = self.path_of(LOG)
        for index, kind in ((self.open_index, INDEX), (self._time_index, TIME_INDEX), (self._txn_index, TXN_INDEX)):
            if index is not None:
                index.path = self.path_of(kind)

    @property
    def is_full(self) -> bool:
        """Whether an index takes no more entries."""
        return self.index.is_full or self.time_index.is_full

    # -- writing -------------------------------------------------------------------------------------------------------

    def has_room(self, size: int, last_offset: int, timestamp: int, now_ms: int) -> bool:
        """Whether a batch of `size` bytes with this last offset and largest timestamp fits without a roll."""
        return (
            self.size + size <= self.roll_size
            and timestamp <= self.roll_timestamp
            and last_offset <= self.max_offset
            and now_ms <= self.roll_wall_ms
        )

    def write_batches(self, view: memoryview) -> int:
        """Write several batches at once; the caller calls `index_batch` for each. Returns the position of the first.

        Raises Failure of the log file; then nothing has changed.
        """
        position = self.file.append((view,))
        self.size = position + len(view)
        return position

    def index_batch(self, position: int, size: int, last_offset: int, timestamp: int) -> None:
        """Index a batch that is in the file already. For recovery and followers; `Log.append` has it inline."""
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.offset_of_max_timestamp = last_offset
        if self.bytes_since_index > self.index_interval and self.roll_size >= 0:
            self.add_entry(last_offset, position)
        self.bytes_since_index += size

    def add_entry(self, last_offset: int, position: int) -> None:
        """Index the batch at `position`; a full index makes the next append roll."""
        index = self.open_index or self.index
        time_index = self._time_index or self.time_index
        self.bytes_since_index = 0
        index.append(last_offset, position)
        if self.max_timestamp >= 0:
            time_index.append(self.max_timestamp, self.offset_of_max_timestamp)
        # Both indexes are checked: the time index skips equal timestamps, but has larger entries, so either may be full
        # first.
        if index.size >= index.limit or time_index.size >= time_index.limit:
            self.roll_size = -1
        if index.size % LOT_BYTES == 0:
            self.show_entries()
        elif self.on_entries is not None and not self.entries_wait:
            self.entries_wait = True
            self.on_entries(self)

    def show_entries(self) -> None:
        """Write entries to their files, where tools see them.

        A failure is suppressed, and met again by the next flush or roll: the batch that was just written must not be
        refused because of its index.
        """
        self.entries_wait = False
        with contextlib.suppress(Failure):
            self.write_out()

    def write_out(self) -> None:
        """Write index entries that are only in memory to their files. Raises Failure."""
        for index in (self.open_index, self._time_index, self._txn_index):
            if index is not None:
                index.write_out()

    def sync_jobs(self, with_indexes: bool) -> list[Callable[[Callable[[object], None]], None]]:
        """The syncs that make the segment durable, to be called with their completion."""
        jobs: list[Callable[[Callable[[object], None]], None]] = [self.file.sync]
        if with_indexes:
            indexes = (self.open_index, self._time_index, self._txn_index)
            jobs += [index.sync_file for index in indexes if index is not None and index.dirty]
        return jobs

    @property
    def has_unsaved_index(self) -> bool:
        """Whether an index has entries that are not in its file, or not durable."""
        indexes = (self.open_index, self._time_index, self._txn_index)
        return any(index is not None and index.dirty for index in indexes)

    def close_time_index(self) -> None:
        """Append the segment's largest timestamp to the time index, as its last entry: it need not be searched."""
        index = self.time_index
        if self.max_timestamp > index.last_entry.timestamp and index.size < index.limit + index.ENTRY:
            index.append(self.max_timestamp, self.offset_of_max_timestamp, closing=True)

    def seal_segment(self) -> None:
        """End appending: complete the time index, write out and trim the indexes. Raises Failure; may be repeated."""
        self.close_time_index()
        self.write_out()
        self.index.seal_file()
        self.time_index.seal_file()
        self.active = False
        self.roll_size = NEVER

    def truncate_to(self, offset: int, position: int) -> None:
        """Cut everything from `position` on, where the first batch at or above `offset` begins. Raises Failure."""
        old = magic_at(self.file, position) < MAGIC_V2
        self.file.truncate(position)
        if old:  # messages of old formats have no leader epoch by which recovery could detect that a cut was undone
            self._disk.sync_now(self.path)
        self.size = position
        # The bytes that take the place of those cut off are written by this process.
        self.hot_from = min(self.hot_from, position)
        self.index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.bytes_since_index = 0
        self.walk_tail()
        if not position:
            self.first_timestamp = NO_TIMESTAMP

    def walk_tail(self) -> tuple[int, int]:
        """Read the headers after the last index entry, blocking, for the largest timestamp.

        Returns the position and the offset where batches end.
        """
        self.load_max_timestamp()
        last = self.index.last_entry
        end, end_offset = last.position if last else 0, self.base_offset
        for position, header in walk_headers(self.file, end, self.size):
            end = position + header[BATCH_LENGTH] + LOG_OVERHEAD
            end_offset = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA] + 1
            if header[MAX_TIMESTAMP] > self.max_timestamp:
                self.max_timestamp, self.offset_of_max_timestamp = header[MAX_TIMESTAMP], end_offset - 1
        return end, end_offset

    def load_max_timestamp(self) -> None:
        """Take the largest timestamp from the time index."""
        last: TimestampOffset = self.time_index.last_entry
        self.max_timestamp, self.offset_of_max_timestamp = last

    @property
    def largest_timestamp(self) -> int:
        """The time that retention counts from, ms: the largest timestamp; without one, when the file last changed."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        if not self.active:
            self.load_max_timestamp()
        if self.max_timestamp > 0:
            return self.max_timestamp
        return self._disk.modified_ms(self.path)

    # -- end of life ---------------------------------------------------------------------------------------------------

    def release_files(self) -> None:
        """Free resources after a start: the log is open, but not used yet."""
        for index in (self.open_index, self._time_index):
            if index is not None:
                index.release_file()
        if not self.active:
            self.file.rest()

    def close_indexes(self) -> None:
        """Close the index files; they are opened again when they are needed."""
        for index in (self.open_index, self._time_index, self._txn_index):
            if index is not None:
                index.close()
        self.open_index = self._time_index = self._txn_index = None

    def close_files(self) -> None:
        """Close all files."""
        self.close_indexes()
        self.file.close()
