"""One entry of a log, of any format: a batch of v2, or a message of v0 or v1.

Zone: pure. The shallow view that storage needs: an old message is described by the fields of a batch's header, so that
walks, indexes and checks know one shape. Only `records_at` and the functions after it unpack an entry.

Without unpacking, only the last offset of a wrapper message (v0, v1) is known: its header has it as the first offset
also, and a count of one record. Timestamp (-1 in v0) and checksum are the message's own; leader epoch and producer
fields are -1.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final

from ottla.record.batch import (
    ATTRIBUTES_POS,
    CODEC_MASK,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_POS,
    MAGIC_V2,
    Record,
    records_of,
    unpack_header,
)
from ottla.record.crc import Buffer, crc32c
from ottla.record.errors import CorruptRecord
from ottla.record.header_fields import ATTRIBUTES, BASE_OFFSET, BATCH_LENGTH, LAST_OFFSET_DELTA, MAGIC
from ottla.record.headerless_records import lean_records_of
from ottla.record.legacy import OVERHEAD, SIZE_MIN, TIMESTAMP_TYPE, message_at, messages_in
from ottla.record.validation import HeaderTuple

ENTRY_MIN: Final = OVERHEAD + SIZE_MIN
"""No entry of any format is smaller; this many bytes hold the whole header of an old message."""
OLD_SIZES: Final = (SIZE_MIN, SIZE_MIN + 8)
"""The smallest `size` field of formats v0 and v1."""
_OLD: Final = Struct(">qiIbbq").unpack_from
_OLD_CRC_POS: Final = 12
_OLD_COVERED: Final = 16
"""Where the part begins that the checksum of an old message covers."""


def entry_at(view: Buffer, pos: int, end: int) -> HeaderTuple | None:
    """The header of the entry at `pos`; None when no entry begins with the bytes there, which reach up to `end`.

    The entry need not be whole: its size is BATCH_LENGTH plus LOG_OVERHEAD. Checksums are not verified.
    """
    left = end - pos
    if left < ENTRY_MIN:
        return None
    magic = view[pos + MAGIC_POS]
    if magic == MAGIC_V2:
        if left < HEADER_SIZE:
            return None
        header: HeaderTuple = unpack_header(view, pos)
        return header if header[BATCH_LENGTH] + LOG_OVERHEAD >= HEADER_SIZE and header[LAST_OFFSET_DELTA] >= 0 else None
    return _old_header(view, pos) if magic < MAGIC_V2 else None


def _old_header(view: Buffer, pos: int) -> HeaderTuple | None:
    offset, size, crc, magic, attributes, timestamp = _OLD(view, pos)
    if size < OLD_SIZES[magic]:
        return None
    # A bit that these formats do not define must not be taken for a flag of v2, such as CONTROL.
    attributes &= CODEC_MASK | TIMESTAMP_TYPE if magic else CODEC_MASK
    # Format v0 has no timestamp: there these eight bytes are of key and value.
    timestamp = timestamp if magic else -1
    return offset, size, -1, magic, crc, attributes, 0, timestamp, timestamp, -1, -1, -1, 1


def is_wrapper(header: HeaderTuple) -> bool:
    """Whether an entry is a wrapper message, whose first offset its header does not have."""
    return header[MAGIC] != MAGIC_V2 and bool(header[ATTRIBUTES] & CODEC_MASK)


def covered_from(header: HeaderTuple) -> int:
    """Where in an entry the part begins that its checksum covers."""
    return ATTRIBUTES_POS if header[MAGIC] == MAGIC_V2 else _OLD_COVERED


def entry_checksum(header: HeaderTuple, content: Buffer, seed: int = 0) -> int:
    """The checksum of an entry's covered part: CRC-32C, or CRC-32 for old messages. `seed`: that of the part before."""
    return crc32c(content, seed) if header[MAGIC] == MAGIC_V2 else zlib.crc32(content, seed)


def entries_of(view: Buffer) -> Iterator[tuple[int, HeaderTuple]]:
    """Position and header of every whole entry; a cut one at the end is left out.

    Headers only: checksums are the caller's choice. Raises CorruptRecord where no entry can begin.
    """
    pos, whole = 0, len(view)
    while whole - pos >= ENTRY_MIN:
        header = entry_at(view, pos, whole)
        if header is None:
            # A v2 header that is cut short is the end of the view, not an error.
            if view[pos + MAGIC_POS] == MAGIC_V2 and whole - pos < HEADER_SIZE:
                return
            raise CorruptRecord(f"no batch and no message begins at position {pos}")
        size = header[BATCH_LENGTH] + LOG_OVERHEAD
        if pos + size > whole:
            return
        yield pos, header
        pos += size


def records_at(view: Buffer, pos: int, *, max_bytes: int) -> Iterator[Record]:
    """The records of the whole entry at `pos`, unpacked to at most `max_bytes`. Raises CorruptRecord.

    Checksums are not verified. Records of v0 have the timestamp -1.
    """
    if view[pos + MAGIC_POS] == MAGIC_V2:
        yield from records_of(view, pos, max_bytes=max_bytes)
        return
    for message in messages_in(message_at(view, pos), max_bytes):
        yield Record(message.offset, message.timestamp, message.key, message.value)


def first_from(entry: Buffer, timestamp: int, start_offset: int, max_bytes: int) -> tuple[int, int] | None:
    """(timestamp, offset) of the first record in a whole entry that is at or above both. A job for workers.

    Raises CorruptRecord.
    """
    is_v2 = entry[MAGIC_POS] == MAGIC_V2
    records = lean_records_of(entry, max_bytes=max_bytes) if is_v2 else records_at(entry, 0, max_bytes=max_bytes)
    return next(((one[1], one[0]) for one in records if one[1] >= timestamp and one[0] >= start_offset), None)


def first_offset_at(view: Buffer, pos: int, *, max_bytes: int) -> int:
    """The first offset of the whole entry at `pos`; a wrapper is unpacked for it. Raises CorruptRecord."""
    header = entry_at(view, pos, len(view))
    if header is None:
        raise CorruptRecord(f"no batch and no message begins at position {pos}")
    if not is_wrapper(header):
        return header[BASE_OFFSET]
    return next((record.offset for record in records_at(view, pos, max_bytes=max_bytes)), header[BASE_OFFSET])
