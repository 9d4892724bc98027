"""Message sets of formats v0 and v1, made here and not by the code under test.

Zone: pure.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Sequence

import cramjam
import lz4.frame

from ottla.record.batch import Record

NONE, GZIP, SNAPPY, LZ4 = range(4)


def message(magic: int, record: Record, attributes: int = 0) -> bytes:
    """One message; of a v0 message the timestamp is left out."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", record.timestamp) if magic else b"")
    for field in (record.key, record.value):
        body += struct.pack(">i", -1) if field is None else struct.pack(">i", len(field)) + field
    return struct.pack(">qiI", record.offset, len(body) + 4, zlib.crc32(body)) + body


def message_set(magic: int, records: Sequence[Record], codec: int = NONE, append_time: int | None = None) -> bytes:
    """Messages, or one wrapper of them: with absolute inner offsets in v0, in v1 counted from 0."""
    kind = 8 if append_time is not None else 0
    if not codec:
        return b"".join(
            message(magic, record._replace(timestamp=record.timestamp if append_time is None else append_time), kind)
            for record in records
        )
    base = records[0].offset if magic else 0
    inner = b"".join(message(magic, record._replace(offset=record.offset - base)) for record in records)
    latest = max(record.timestamp for record in records) if append_time is None else append_time
    return message(magic, Record(records[-1].offset, latest, None, packed(magic, codec, inner)), kind | codec)


def packed(magic: int, codec: int, data: bytes) -> bytes:
    """Compressed as clients of that age did it. Those of v0 computed the checksum of LZ4's header over too much."""
    if codec == GZIP:
        return gzip.compress(data, 1)
    if codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(data))
        return b"\x82SNAPPY\x00" + struct.pack(">iii", 1, 1, len(block)) + block
    frame = lz4.frame.compress(data, block_linked=False, store_size=False)
    if magic:
        return frame
    return frame[:6] + bytes([_xxh32(frame[:6]) >> 8 & 0xFF]) + frame[7:]


def _xxh32(data: bytes) -> int:
    """XXH32 with seed 0 of 6 bytes: one word and two bytes."""
    (word,) = struct.unpack_from("<I", data)
    value = _rotated(374761393 + 6 + word * 3266489917, 17) * 668265263
    for byte in data[4:]:
        value = _rotated(value + byte * 374761393, 11) * 2654435761
    value &= 0xFFFFFFFF
    value = (value ^ value >> 15) * 2246822519 & 0xFFFFFFFF
    value = (value ^ value >> 13) * 3266489917 & 0xFFFFFFFF
    return value ^ value >> 16


def _rotated(value: int, bits: int) -> int:
    value &= 0xFFFFFFFF
    return (value << bits | value >> 32 - bits) & 0xFFFFFFFF
