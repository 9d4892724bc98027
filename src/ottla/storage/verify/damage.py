"""Finds whether a log file has readable batches after a damaged place.

Zone: deterministic. A search for the next whole batch, in bounded memory.
"""

from __future__ import annotations

import re
from typing import Final

from ottla.record.batch import ATTRIBUTES_POS, HEADER_SIZE, LOG_OVERHEAD, MAGIC_V2, unpack_header
from ottla.record.crc import crc32c
from ottla.record.header_fields import BASE_OFFSET, BATCH_LENGTH, CRC, MAGIC
from ottla.storage.segments.scan import Readable

_CHUNK: Final = 4 << 20
_SEARCHED_MAX: Final = 256 << 20
"""Bytes after a damage in which a batch is searched for."""


def next_batch(file: Readable, position: int, offset: int) -> int | None:
    """The base offset of the first whole v2 batch after `position`, at or above `offset`; None when there is none."""
    # Candidates: 8 bytes whose upper half is that of `offset`, and magic 2 in byte 16; the checksum decides.
    pattern = re.compile(b"(?=" + re.escape(offset.to_bytes(8, "big")[:4]) + b".{12}\\x02)", re.DOTALL)
    stop = min(file.size, position + _SEARCHED_MAX)
    view = memoryview(bytearray(_CHUNK))
    while position + HEADER_SIZE <= stop:
        got = file.read_now(position, view[: min(_CHUNK, file.size - position)])
        for match in pattern.finditer(view[:got]):
            found = _batch_at(file, position + match.start(), offset)
            if found is not None:
                return found
        if got < _CHUNK:
            return None
        position += got - HEADER_SIZE
    return None


def _batch_at(file: Readable, position: int, offset: int) -> int | None:
    head = bytearray(HEADER_SIZE)
    if file.read_now(position, memoryview(head)) < HEADER_SIZE:
        return None
    header = unpack_header(head, 0)
    end = position + header[BATCH_LENGTH] + LOG_OVERHEAD
    if (
        header[MAGIC] != MAGIC_V2
        or header[BATCH_LENGTH] + LOG_OVERHEAD < HEADER_SIZE
        or end > file.size
        or header[BASE_OFFSET] < offset
    ):
        return None
    crc, at = 0, position + ATTRIBUTES_POS
    piece = memoryview(bytearray(min(_CHUNK, end - at)))
    while at < end:
        got = file.read_now(at, piece[: min(len(piece), end - at)])
        if not got:
            return None
        crc = crc32c(piece[:got], crc)
        at += got
    return header[BASE_OFFSET] if crc == header[CRC] else None
