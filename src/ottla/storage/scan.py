"""Finding batches in a log file by their headers.

Zone: deterministic. Walks over headers, with bytes that are in memory (`HeaderScan`) or by blocking reads
(`HeaderWalk`, for start-up); nothing here looks at records, and nothing at checksums.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, unpack_header
from ottla.record.validation import HeaderTuple
from ottla.seams import Disk, File, Region
from ottla.storage.errors import Cold

CHUNK: Final = 8192
WARM_BYTES: Final = 1024 * 1024
"""A cold place is warmed with what lies behind it: whoever searches there goes on reading there."""
_FRAME: Final = Struct(">qi4xb6xi").unpack_from
"""base offset, batch length, magic, last offset delta"""


class Found(NamedTuple):
    """A batch in a file."""

    position: int
    base_offset: int
    last_offset: int
    end: int
    """Position after its last byte."""


class HeaderScan:
    """Searches forward from a position, without blocking; one per broker, for its buffer."""

    __slots__ = ("_view",)

    def __init__(self) -> None:
        self._view = memoryview(bytearray(CHUNK))

    def first_reaching(self, file: File, position: int, end: int, offset: int, patient: bool = False) -> Found | None:
        """The first batch from `position` on whose last offset is ≥ `offset`; None when there is none before `end`.

        Raises Cold when headers are not in memory (or waits for them, when `patient`), ApiError CORRUPT_MESSAGE when
        what is there is no batch.
        """
        view = self._view
        while position + HEADER_SIZE <= end:
            got = self._fill(file, position, end, patient)
            at = 0
            while at + HEADER_SIZE <= got:
                base, length, magic, delta = _FRAME(view, at)
                size = length + LOG_OVERHEAD
                if size < HEADER_SIZE or magic != MAGIC_V2 or delta < 0 or position + at + size > end:
                    raise damaged(position + at)
                if base + delta >= offset:
                    return Found(position + at, base, base + delta, position + at + size)
                at += size
            position += at
        return None

    def batch_at(self, file: File, position: int, end: int, patient: bool = False) -> Found | None:
        """The batch that begins at `position`, if one does. Raises Cold."""
        view = self._view[:HEADER_SIZE]
        if position + HEADER_SIZE > end or self._read(file, position, end, view, patient) < HEADER_SIZE:
            return None
        base, length, magic, delta = _FRAME(view)
        size = length + LOG_OVERHEAD
        if size < HEADER_SIZE or magic != MAGIC_V2 or delta < 0 or position + size > end:
            return None
        return Found(position, base, base + delta, position + size)

    def last_fitting(self, file: File, position: int, end: int, room: int, patient: bool = False) -> int:
        """The largest boundary of batches ≤ `position + room`; `position` itself when the first batch is larger."""
        bound = position + room
        while position + HEADER_SIZE <= end:
            self._fill(file, position, end, patient)
            _, length, magic, _ = _FRAME(self._view, 0)
            size = length + LOG_OVERHEAD
            if size < HEADER_SIZE or magic != MAGIC_V2:
                raise damaged(position)
            if position + size > bound:
                break
            position += size
        return position

    def _fill(self, file: File, position: int, end: int, patient: bool) -> int:
        """Read headers from `position` on into the buffer; at least one."""
        got = self._read(file, position, end, self._view[: min(CHUNK, end - position)], patient)
        if got < HEADER_SIZE:
            raise damaged(position)
        return got

    def _read(self, file: File, position: int, end: int, into: memoryview, patient: bool) -> int:
        got = file.try_read(position, into)
        if got < HEADER_SIZE:
            if not patient:
                size = min(WARM_BYTES, end - position)
                raise Cold((Region(file, position, size, file.generation),))
            got = file.read_now(position, into)
        return got


def damaged(position: int) -> ApiError:
    """What a client is told when a log file holds no batch where one should begin."""
    return ApiError(ErrorCode.CORRUPT_MESSAGE, f"the log is damaged at position {position}")


def read_file(disk: Disk, path: str) -> bytes:
    """A whole small file, blocking. Raises Failure, NOT_DONE when it is missing."""
    file = disk.open(path, create=False)
    try:
        content = bytearray(file.size)
        got = file.read_now(0, memoryview(content)) if content else 0
        return bytes(content[:got])
    finally:
        file.close()


WALK_CHUNK: Final = 1024 * 1024


def walk_headers(file: File, position: int, end: int) -> Iterator[tuple[int, HeaderTuple]]:
    """Position and header of every batch in [position, end), by blocking reads. For start-up and truncation.

    Ends quietly where no whole batch of format v2 begins.
    """
    view = memoryview(bytearray(max(HEADER_SIZE, min(WALK_CHUNK, end - position))))
    while position + HEADER_SIZE <= end:
        got = file.read_now(position, view[: min(len(view), end - position)])
        at = 0
        while at + HEADER_SIZE <= got:
            header: HeaderTuple = unpack_header(view, at)
            size = header[1] + LOG_OVERHEAD
            if size < HEADER_SIZE or header[3] != MAGIC_V2 or header[6] < 0 or position + at + size > end:
                return
            yield position + at, header
            at += size
        if not at:
            return
        position += at
