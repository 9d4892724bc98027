"""Batches of a file, one at a time.

Zone: real. Reads at positions, so that files of any size pass through bounded memory; never writes.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from struct import Struct
from types import TracebackType
from typing import Final, NamedTuple, Self

from ottla.record import legacy
from ottla.record.batch import ATTRIBUTES_POS, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, BatchHeader, header_at
from ottla.record.crc import crc32c
from ottla.record.errors import CorruptRecord

BATCH_MAX: Final = 1 << 28
"""A larger batch is reported and not opened: far above what Kafka accepts by default."""
_CHUNK: Final = 1 << 20
_HEAD = Struct(">qiib")
_HEAD_SIZE: Final = 17
_ATTRIBUTES_SIZE: Final = 1


class TooSmallBatch(CorruptRecord):
    """A batch whose size is less than its header has."""

    def __init__(self, path: str, position: int, size: int, least: int) -> None:
        super().__init__(f"batch of size {size} at position {position}, the least is {least}")
        self.path = path
        self.size = size


class Frame(NamedTuple):
    """The place of a batch: all that is needed to continue with the next one."""

    position: int
    size: int
    magic: int
    last_offset: int


class BatchFile:
    """A log file, read from its start or from any batch on."""

    def __init__(self, path: str, limit: int | None = None) -> None:
        """Open for reading the first `limit` bytes. Raises OSError."""
        self.path = path
        self._file = os.open(path, os.O_RDONLY)
        found = os.fstat(self._file)
        # A directory opens like a file, and has a size.
        if stat.S_ISDIR(found.st_mode):
            os.close(self._file)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.size = found.st_size if limit is None else min(found.st_size, limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def read(self, pos: int, size: int) -> bytes:
        """Up to `size` bytes; fewer at the end."""
        parts = []
        while size > 0 and (part := os.pread(self._file, min(size, _CHUNK), pos)):
            parts.append(part)
            pos += len(part)
            size -= len(part)
        return b"".join(parts)

    def iter_frames(self, pos: int = 0) -> Iterator[Frame]:
        """Batches from `pos` on, until one is cut short. Raises CorruptRecord where none can begin."""
        while (frame := self.frame_at(pos)) is not None:
            yield frame
            pos += frame.size

    def frame_at(self, pos: int) -> Frame | None:
        """The batch at `pos`, None when it is not whole. Raises CorruptRecord for an impossible size."""
        if pos + _HEAD_SIZE > self.size:
            return None
        head = os.pread(self._file, HEADER_SIZE, pos)
        if len(head) < _HEAD_SIZE:
            return None
        offset, length, _, magic = _HEAD.unpack_from(head)
        least = HEADER_SIZE - LOG_OVERHEAD if magic >= MAGIC_V2 else legacy.SIZE_MIN
        if length < least:
            raise TooSmallBatch(self.path, pos, length, least)
        if pos + LOG_OVERHEAD + length > self.size:
            return None
        last_offset = header_at(head).last_offset if magic >= MAGIC_V2 else offset
        return Frame(pos, LOG_OVERHEAD + length, magic, last_offset)

    def read_header(self, frame: Frame) -> BatchHeader:
        """The header of a v2 batch."""
        return header_at(self.read(frame.position, HEADER_SIZE))

    def compute_checksum(self, frame: Frame) -> int:
        """The CRC-32C that a v2 batch ought to have."""
        crc, pos, end = 0, frame.position + ATTRIBUTES_POS, frame.position + frame.size
        while pos < end and (part := self.read(pos, min(_CHUNK, end - pos))):
            crc = crc32c(part, crc)
            pos += len(part)
        return crc

    def read_batch(self, frame: Frame) -> bytes:
        """All bytes of a batch. Raises CorruptRecord for one that is too large to open."""
        if frame.size > BATCH_MAX:
            raise CorruptRecord(f"a batch of {frame.size} bytes is not opened, the limit is {BATCH_MAX}")
        return self.read(frame.position, frame.size)
