"""Tracks which transactions still have records while a log is rewritten from its start on.

Zone: deterministic. Batches and markers are passed in offset order. A marker may be removed when none of its
transaction's batches is left before it; an aborted transaction stays in the index as long as its marker stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from ottla.record.batch import BatchHeader
from ottla.record.control import Marker
from ottla.storage.indexes.txn_index import AbortedTransaction


class CleanedTransactions:
    """The state of one pass over a log."""

    __slots__ = ("_aborted", "_committed", "_open", "kept")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        """`aborted`: all aborted transactions that have records in the range of the pass."""
        # Descending, so that the next transaction to begin is popped from the end.
        self._aborted = sorted(aborted, key=lambda txn: -txn.first_offset)
        self._open: dict[int, tuple[AbortedTransaction, bool]] = {}
        """By producer id: an aborted transaction between its first record and its marker; whether a batch was seen."""
        self._committed: set[int] = set()
        """Producer ids with batches of a transaction that was committed, whose marker was not reached yet."""
        self.kept: list[AbortedTransaction] = []
        """Aborted transactions whose marker stays because batches of theirs were seen: the new transaction index."""

    def is_aborted(self, header: BatchHeader) -> bool:
        """Note a data batch; returns whether its transaction was aborted."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        entry = self._open.get(header.producer_id)
        if entry is None:
            self._committed.add(header.producer_id)
            return False
        self._open[header.producer_id] = entry[0], True
        return True

    def is_needless(self, header: BatchHeader, marker: Marker | None) -> bool:
        """Note a control batch; returns whether its transaction has no batches left. Other control records stay."""
        self._begin_up_to(header.last_offset)
        if marker is None:
            return header.record_count == 0
        if marker.commit:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen
        entry = self._open.pop(header.producer_id, None)
        if entry is None or not entry[1]:
            return True
        self.kept.append(entry[0])
        return False

    def _begin_up_to(self, offset: int) -> None:
        while self._aborted and self._aborted[-1].first_offset <= offset:
            txn = self._aborted.pop()
            self._open[txn.producer_id] = txn, False
