"""Reads the entries at the beginning of a log file that are whole and undamaged, by their checksums.

Zone: deterministic. Blocking reads, for a start after an unclean stop.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD
from ottla.record.header_fields import BASE_OFFSET, BATCH_LENGTH, CRC, LAST_OFFSET_DELTA
from ottla.record.log_entries import ENTRY_MIN, covered_from, entry_at, entry_checksum
from ottla.record.validation import HeaderTuple
from ottla.storage.indexes.index import MAX_RELATIVE_OFFSET
from ottla.storage.segments.scan import Readable
from ottla.types import LAST_OFFSET

CHUNK: Final = 4 * 1024 * 1024


def valid_batches(file: Readable, size: int, base_offset: int) -> Iterator[tuple[int, HeaderTuple]]:
    """Position and header of the whole, undamaged entries at the beginning of a log file, offsets rising.

    Ends at the first bytes that are not. Reads in large pieces; memory is bounded whatever the length fields are.
    """
    view = memoryview(bytearray(max(HEADER_SIZE, min(CHUNK, size))))
    position, expected, bound = 0, base_offset, min(base_offset + MAX_RELATIVE_OFFSET, LAST_OFFSET)
    while position + ENTRY_MIN <= size:
        got = file.read_now(position, view[: min(len(view), size - position)])
        at, stop = 0, got - (HEADER_SIZE if position + got < size else ENTRY_MIN)
        while at <= stop:
            header = entry_at(view, at, got)
            if header is None:
                return
            # The prefix ends at an entry that is cut short, whose offsets do not rise, or are out of the index's range.
            end, last = at + header[BATCH_LENGTH] + LOG_OVERHEAD, header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
            if position + end > size or header[BASE_OFFSET] < expected or last > bound:
                return
            # An entry that reaches beyond the buffer is read again from its start; one larger than the buffer is
            # checked piece by piece.
            if end > got:
                if at:
                    break  # read again, from this entry on
                if not large_crc_ok(file, position, header, view):
                    return
            elif entry_checksum(header, view[at + covered_from(header) : end]) != header[CRC]:
                return
            yield position + at, header
            expected = last + 1
            at = end
        if not at:
            return
        position += at


def large_crc_ok(file: Readable, position: int, header: HeaderTuple, view: memoryview) -> bool:
    """Whether the checksum of an entry that is larger than the buffer matches; reads it piece by piece."""
    at = position + covered_from(header)
    end = position + header[BATCH_LENGTH] + LOG_OVERHEAD
    crc = 0
    while at < end:
        got = file.read_now(at, view[: min(len(view), end - at)])
        if not got:
            return False
        crc = entry_checksum(header, view[:got], crc)
        at += got
    return crc == header[CRC]
