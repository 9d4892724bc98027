"""Sizes and checksums of a log's transaction indexes when they were finished: the file `txnindex-checksums`.

Zone: deterministic. Kafka's format of a `.txnindex` has no checksum, so a damaged one may look valid: with another
first offset, or without entries. This file is Ottla's; Kafka ignores names that it does not know. It can only make an
index distrusted: one that it does not name is checked as if the file did not exist. So a program that wrote or removed
indexes meanwhile, or a crash before the file was written, costs at most the rebuild of an index.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ottla.seams import Failure
from ottla.storage.checkpoints import format_checksums
from ottla.storage.indexes.txn_index import IndexChecksum
from ottla.storage.layout import TXN_INDEX, TXN_SUMS, file_name
from ottla.storage.log_dir_context import CoalescingWriter, CompletionBarrier, LogDirContext
from ottla.storage.segments.segment import Segment
from ottla.storage.segments.segments import SegmentList


def index_file_name(segment: Segment) -> str:
    """The name of a segment's transaction index in the file."""
    return file_name(segment.base_offset, TXN_INDEX)


class TxnIndexChecksums:
    """Size and checksum of every transaction index that is finished."""

    __slots__ = ("_file", "_saved", "_segments", "_sums")

    def __init__(
        self,
        home: LogDirContext,
        directory: Callable[[], str],
        segments: SegmentList,
        saved: Mapping[str, IndexChecksum],
    ) -> None:
        """`saved`: the content of the file."""
        self._segments = segments
        self._saved = dict(saved)
        self._sums = dict(saved)
        self._file = CoalescingWriter(home, lambda: f"{directory()}/{TXN_SUMS}")

    def let_go(self) -> None:
        """Drop all references to a log that was closed."""
        self._file.let_go()

    def record_checksum(self, segment: Segment) -> None:
        """Record the checksum of a segment's index, which is finished. Raises Failure."""
        found = segment.txn_index.file_checksum
        if found is None:
            self._sums.pop(index_file_name(segment), None)
        else:
            self._sums[index_file_name(segment)] = found

    def save_checksums(self) -> None:
        """Begin to write the file if it is outdated, without indexes of segments that were removed."""
        # Names of removed segments are dropped here: a new segment may get the name of one that was cut off.
        present = [index_file_name(segment) for segment in self._segments] if self._sums else []
        self._sums = {name: self._sums[name] for name in present if name in self._sums}
        if self._sums != self._saved:
            self._saved = dict(self._sums)
            self._file.write_soon(format_checksums(self._saved))

    def record_active(self, barrier: CompletionBarrier) -> None:
        """Record the active segment's index as well, at a stop: the log is not written any more."""
        try:
            self.record_checksum(self._segments.active)
        except Failure as failure:
            barrier.note_failure(failure.as_value())
            return
        self.save_checksums()
        if self._file.is_writing:
            self._file.when_idle(barrier.add_expected())
