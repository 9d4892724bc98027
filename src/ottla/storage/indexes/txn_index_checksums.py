"""What the transaction indexes of a log were when they were last finished: `txnindex-checksums` beside them.

Zone: deterministic. Kafka's format of a `.txnindex` has no checksum, so a wrong one may look right: another first
offset, or nothing where something was. This file is ours, Kafka leaves names it does not know alone. It is only ever a
reason to distrust: an index that it does not name is looked at as if there were no such file, so whoever wrote or
removed indexes meanwhile, or died before the file was written, costs at most that an index is built anew.
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


def name_of(segment: Segment) -> str:
    """How the file names a segment's transaction index."""
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
        """`saved`: what the file says."""
        self._segments = segments
        self._saved = dict(saved)
        self._sums = dict(saved)
        self._file = CoalescingWriter(home, lambda: f"{directory()}/{TXN_SUMS}")

    def let_go(self) -> None:
        """The log is gone: hold nothing of it."""
        self._file.let_go()

    def record_checksum(self, segment: Segment) -> None:
        """A segment's index is finished, as it is now. Raises Failure."""
        found = segment.txn_index.sum
        if found is None:
            self._sums.pop(name_of(segment), None)
        else:
            self._sums[name_of(segment)] = found

    def save(self) -> None:
        """Bring the file up to date, soon; indexes of segments that are gone are forgotten."""
        present = [name_of(segment) for segment in self._segments] if self._sums else []
        self._sums = {name: self._sums[name] for name in present if name in self._sums}
        if self._sums != self._saved:
            self._saved = dict(self._sums)
            self._file.write(format_checksums(self._saved))

    def stop(self, barrier: CompletionBarrier) -> None:
        """The log is not written any more: the active segment's index is finished, too."""
        try:
            self.record_checksum(self._segments.active)
        except Failure as failure:
            barrier.fail(failure.as_value())
            return
        self.save()
        if self._file.busy:
            self._file.when_idle(barrier.expect())
