"""Message sets of formats v0 and v1 as an old client writes them: the test's own encoder, not the product's.

Zone: pure.
"""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Iterator, Sequence

import cramjam
import lz4.frame

from ottla.record.batch import Record
from ottla.record.legacy import Message, message_at
from ottla.record.lz4_header import with_wrong_checksum

GZIP, SNAPPY, LZ4 = 1, 2, 3


def message(
    magic: int, key: bytes | None, value: bytes | None, *, offset: int = 0, timestamp: int = -1, attributes: int = 0
) -> bytes:
    """One entry."""
    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"")
    for content in (key, value):
        body += struct.pack(">i", -1 if content is None else len(content)) + (content or b"")
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def wrapper(
    magic: int, codec: int, inner: bytes, *, offset: int = 0, timestamp: int = -1, broken: bool = True
) -> bytes:
    """A compressed set. `broken`: lz4 in v0 with the wrong header checksum of old clients (KAFKA-3160)."""
    if codec == GZIP:
        packed = gzip.compress(inner, mtime=0)
    elif codec == SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(inner))
        packed = b"\x82SNAPPY\0" + struct.pack(">iii", 1, 1, len(block)) + block
    else:
        packed = lz4.frame.compress(inner, block_linked=False, store_size=False)
        if magic == 0 and broken:
            packed = with_wrong_checksum(packed)
    return message(magic, None, packed, offset=offset, timestamp=timestamp, attributes=codec)


Row = tuple[bytes | None, bytes | None, int]
"""(key, value, timestamp)"""


def message_set(magic: int, codec: int, rows: list[Row], relative: bool = True) -> bytes:
    """A set as a producer sends it. `relative`: inner offsets as in KIP-31, else all 0, as some clients wrote them."""
    inner = b"".join(
        message(magic, key, value, offset=at if relative else 0, timestamp=timestamp)
        for at, (key, value, timestamp) in enumerate(rows)
    )
    if not codec:
        return inner
    return wrapper(magic, codec, inner, offset=len(rows) - 1, timestamp=max(row[2] for row in rows))


def kept_set(magic: int, codec: int, records: Sequence[Record]) -> bytes:
    """A set as a broker stores it: with real offsets; inside a wrapper of v1 they count from 0."""
    base = records[0].offset if magic and codec else 0
    inner = b"".join(
        message(magic, each.key, each.value, offset=each.offset - base, timestamp=each.timestamp) for each in records
    )
    if not codec:
        return inner
    latest = max(each.timestamp for each in records)
    return wrapper(magic, codec, inner, offset=records[-1].offset, timestamp=latest)


def entries(content: bytes) -> Iterator[Message]:
    """The entries of a set, wrappers undecoded. Checks that each is whole and has a valid checksum."""
    pos = 0
    while pos < len(content):
        entry = message_at(content, pos)
        assert entry.valid
        yield entry
        pos += entry.size
