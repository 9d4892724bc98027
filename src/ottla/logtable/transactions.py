"""Finds how the transactions in a log ended.

Zone: real. A batch of a transaction belongs to the next marker of its producer in the partition: brokers decide the
same way, and the cleaner keeps a marker as long as there is data before it. `.txnindex` files are not needed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from ottla.logtable.errors import CorruptLog
from ottla.logtable.walk import read_headers_of
from ottla.record.batch import BatchHeader, records_of
from ottla.record.control import ControlType, control_type
from ottla.record.errors import CorruptRecord
from ottla.storage.dump.files import BatchFile

COMMITTED: Final = "committed"
ABORTED: Final = "aborted"
OPEN: Final = "open"
_CONTROL_MAX_BYTES: Final = 65_536


class Outcomes:
    """The outcomes of the transactions that have data in one segment."""

    def __init__(self, files: Sequence[str], *, skip: bool) -> None:
        """files: the segment, and those after it, which are read only until all its transactions have ended.

        Raises CorruptLog, LogChanged.
        """
        self._ends: dict[int, tuple[array[int], bytearray]] = {}
        waiting: set[int] = set()
        for number, path in enumerate(files):
            if number and not waiting:
                break
            for file, position, header in read_headers_of(path, last=path == files[-1], skip=skip):
                # `waiting` holds the producers with data in the first segment and no marker yet; data of later
                # segments does not concern it.
                if header.is_control:
                    self._note_batch(file, position, header, skip=skip)
                    waiting.discard(header.producer_id)
                elif header.is_transactional and not number:
                    waiting.add(header.producer_id)
                if number and not waiting:
                    break

    def outcome_of(self, header: BatchHeader) -> str | None:
        """COMMITTED, ABORTED or OPEN; None for a batch that is in no transaction."""
        if not header.is_transactional or header.is_control:
            return None
        # Markers of a producer are in offset order, so the first one after the batch is the end of its transaction.
        offsets, commits = self._ends.get(header.producer_id, _NO_ENDS)
        place = bisect_right(offsets, header.base_offset)
        return OPEN if place == len(offsets) else COMMITTED if commits[place] else ABORTED

    def _note_batch(self, file: BatchFile, position: int, header: BatchHeader, *, skip: bool) -> None:
        kind = marker_type(file, position, header, skip=skip)
        if kind in (ControlType.COMMIT, ControlType.ABORT):
            offsets, commits = self._ends.setdefault(header.producer_id, (array("q"), bytearray()))
            offsets.append(header.base_offset)
            commits.append(kind == ControlType.COMMIT)


_NO_ENDS: Final = (array("q"), bytearray())


def marker_type(file: BatchFile, position: int, header: BatchHeader, *, skip: bool) -> int | None:
    """The control type of a control batch; None when it is empty, or broken and `skip`. Raises CorruptLog."""
    try:
        batch = file.read(position, min(header.size, _CONTROL_MAX_BYTES))
        record = next(records_of(batch, max_bytes=_CONTROL_MAX_BYTES), None)
        return None if record is None else control_type(record.key)
    except CorruptRecord as error:
        if skip:
            return None
        raise CorruptLog(file.path, position, error.message) from error


def first_open_offset(files: Sequence[str], *, skip: bool) -> int | None:
    """The last stable offset: where the first transaction begins that has not ended. None when all have ended.

    Reads the headers of the whole log. Raises CorruptLog, LogChanged.
    """
    opened: dict[int, int] = {}
    for path in files:
        for file, position, header in read_headers_of(path, last=path == files[-1], skip=skip):
            if header.is_control:
                if marker_type(file, position, header, skip=skip) in (ControlType.COMMIT, ControlType.ABORT):
                    opened.pop(header.producer_id, None)
            elif header.is_transactional:
                opened.setdefault(header.producer_id, header.base_offset)
    return min(opened.values(), default=None)
