"""Finds batches in a log file by their headers.

Zone: deterministic. Walks over headers, with bytes that are in memory (`HeaderScan`) or by blocking reads
(`walk_headers`, for start-up); reads no records, and verifies no checksums.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple, Protocol

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CODEC_MASK, HEADER_SIZE, LOG_OVERHEAD, MAGIC_POS, MAGIC_V2
from ottla.record.header_fields import BATCH_LENGTH
from ottla.record.log_entries import ENTRY_MIN, OLD_SIZES, entry_at
from ottla.record.validation import HeaderTuple
from ottla.seams import Disk, File, Region
from ottla.storage.errors import Cold

CHUNK: Final = 8192
WARM_BYTES: Final = 1024 * 1024
"""Bytes that are warmed from a cold place on: the search that needs it will read on from there."""
_FRAME: Final = Struct(">qi4xbB5xi").unpack_from
"""base offset, batch length, magic, attributes of an old message, last offset delta of a batch"""


_new = tuple.__new__  # a third of the time of the class's own, and a fetch of older records makes two
_BATCH_LENGTH_MIN: Final = HEADER_SIZE - LOG_OVERHEAD


class ScannedBatch(NamedTuple):
    """A batch in a file, or a message of an old format."""

    position: int
    base_offset: int
    """-1 for a wrapper message: it would have to be unpacked."""
    last_offset: int
    end: int
    """Position after its last byte."""


class Readable(Protocol):
    """An open file."""

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    def read_now(self, pos: int, into: memoryview) -> int:
        """Read into a buffer; returns the number of bytes, fewer only at the end of the file."""
        ...

    def close(self) -> None:
        """Close the file."""
        ...


class HeaderScan:
    """Searches forward from a position, without blocking; one per broker, for its buffer."""

    __slots__ = ("_head", "_view")

    def __init__(self) -> None:
        self._view = memoryview(bytearray(CHUNK + HEADER_SIZE))
        self._head = self._view[:HEADER_SIZE]

    def first_reaching(
        self, file: File, position: int, end: int, offset: int, patient: bool = False
    ) -> ScannedBatch | None:
        """The first batch from `position` on whose last offset is ≥ `offset`; None when there is none before `end`.

        Raises Cold when headers are not in memory (or blocks for them, when `patient`), ApiError CORRUPT_MESSAGE when
        the bytes are not a batch.
        """
        view = self._view
        while position + ENTRY_MIN <= end:
            got = self._fill_buffer(file, position, end, patient)
            # Before the end of the range, a header that is cut off by the buffer is read again with the next chunk. At
            # the end, a message of an old format may be shorter than HEADER_SIZE.
            at, stop = 0, got - (HEADER_SIZE if position + got < end else ENTRY_MIN)
            while at <= stop:
                base, length, magic, attributes, delta = _FRAME(view, at)
                after = position + at + length + LOG_OVERHEAD
                if magic != MAGIC_V2:
                    if not _is_old(magic, length) or after > end:
                        raise damaged_log_error(position + at)
                    if base >= offset:
                        return ScannedBatch(position + at, -1 if attributes & CODEC_MASK else base, base, after)
                elif length < _BATCH_LENGTH_MIN or delta < 0 or after > end:
                    raise damaged_log_error(position + at)
                elif base + delta >= offset:
                    return _new(ScannedBatch, (position + at, base, base + delta, after))
                at += length + LOG_OVERHEAD
            position += at
        return None

    def batch_at(self, file: File, position: int, end: int, patient: bool = False) -> ScannedBatch | None:
        """The batch that begins at `position`, if one does. Raises Cold."""
        if position + ENTRY_MIN > end:
            return None
        if file.try_read(position, self._head) < HEADER_SIZE:
            got = self._read_into(file, position, end, self._head, patient)
            if got < min(HEADER_SIZE, end - position):
                return None
        base, length, magic, attributes, delta = _FRAME(self._view)
        after = position + length + LOG_OVERHEAD
        if after > end:
            return None
        if magic != MAGIC_V2:
            return (
                ScannedBatch(position, -1 if attributes & CODEC_MASK else base, base, after)
                if _is_old(magic, length)
                else None
            )
        if length < _BATCH_LENGTH_MIN or delta < 0:
            return None
        return _new(ScannedBatch, (position, base, base + delta, after))

    def last_fitting(self, file: File, position: int, end: int, room: int, patient: bool = False) -> int:
        """The largest boundary of batches ≤ `position + room`; `position` itself when the first batch is larger."""
        bound = position + room
        while position + ENTRY_MIN <= end:
            self._fill_buffer(file, position, end, patient)
            _, length, magic, _, _ = _FRAME(self._view, 0)
            if length < _BATCH_LENGTH_MIN if magic == MAGIC_V2 else not _is_old(magic, length):
                raise damaged_log_error(position)
            if position + length + LOG_OVERHEAD > bound:
                break
            position += length + LOG_OVERHEAD
        return position

    def _fill_buffer(self, file: File, position: int, end: int, patient: bool) -> int:
        """Read headers from `position` on into the buffer; at least one."""
        got = self._read_into(file, position, end, self._view[: min(CHUNK, end - position)], patient)
        if got < HEADER_SIZE and got < end - position:
            raise damaged_log_error(position)
        return got

    def _read_into(self, file: File, position: int, end: int, into: memoryview, patient: bool) -> int:
        got = file.try_read(position, into)
        if got < HEADER_SIZE and got < end - position:
            if not patient:
                size = min(WARM_BYTES, end - position)
                raise Cold((Region(file, position, size, file.generation),))
            got = file.read_now(position, into)
        return got


def _is_old(magic: int, length: int) -> bool:
    """Whether a message of format v0 or v1 can have this length field."""
    return 0 <= magic < MAGIC_V2 and length >= OLD_SIZES[magic]


def damaged_log_error(position: int) -> ApiError:
    """The error for a client when no batch begins in a log file where one should."""
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"the log is damaged at position {position}")


def read_file(disk: Disk, path: str) -> bytes:
    """A whole small file, blocking. Raises Failure, NOT_DONE when it is missing."""
    return disk.read_small(path)


def magic_at(file: File, position: int) -> int:
    """The format of the entry at `position`, by a blocking read; that of batches where none begins."""
    head = bytearray(MAGIC_POS + 1)
    got = file.read_now(position, memoryview(head))
    return head[MAGIC_POS] if got > MAGIC_POS else MAGIC_V2


WALK_CHUNK: Final = 1024 * 1024


def walk_headers(file: File, position: int, end: int) -> Iterator[tuple[int, HeaderTuple]]:
    """Position and header of every entry in [position, end), by blocking reads. For start-up and truncation.

    Ends quietly where no whole batch or message begins.
    """
    view = memoryview(bytearray(max(HEADER_SIZE, min(WALK_CHUNK, end - position))))
    while position + ENTRY_MIN <= end:
        got = file.read_now(position, view[: min(len(view), end - position)])
        at, stop = 0, got - (HEADER_SIZE if position + got < end else ENTRY_MIN)
        while at <= stop:
            header = entry_at(view, at, got)
            if header is None or position + at + header[BATCH_LENGTH] + LOG_OVERHEAD > end:
                return
            yield position + at, header
            at += header[BATCH_LENGTH] + LOG_OVERHEAD
        if not at:
            return
        position += at
