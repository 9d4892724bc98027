"""Record batches to message sets of formats v0 and v1, and back.

Zone: pure. What old clients read and write: a fetch below version 4 gets v1 (from version 2 on) or v0, a produce below
version 3 brings them. Headers, sequence numbers and transactions do not exist there and are lost on the way down;
control records are left out (SEMANTICS "Log"; KIP-31, KIP-32).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import Final

from ottla.record.batch import Record, batches_of, encode_batch, header_at, records_of
from ottla.record.compression import Codec, compress
from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord
from ottla.record.legacy import TIMESTAMP_TYPE, Message, message_at, messages_in
from ottla.record.lz4_header import with_wrong_checksum
from ottla.types import NO_TIMESTAMP

_HEAD: Final = Struct(">qi")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">bb")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")


def downgraded(view: Buffer, magic: int, *, max_bytes: int, first_offset: int = 0) -> bytes:
    """The v2 batches in `view` as a message set of format `magic` (0 or 1), each in its codec.

    Records below `first_offset` are left out where they stand by themselves: old clients take the first message they
    get for the one they asked for. Raises CorruptRecord, also for records that expand beyond `max_bytes`, and
    ValueError for zstd, which clients of that age do not know.
    """
    assert magic in (0, 1)
    return b"".join(
        _downgraded(view, pos, magic, max_bytes, first_offset)
        for pos, header in batches_of(view)
        if not header.is_control and header.record_count
    )


def _downgraded(view: Buffer, pos: int, magic: int, max_bytes: int, first_offset: int) -> bytes:
    header = header_at(view, pos)
    if header.codec == Codec.ZSTD:
        raise ValueError("zstd does not exist in message formats v0 and v1")
    records = list(records_of(view, pos, max_bytes=max_bytes))
    kind = TIMESTAMP_TYPE if header.is_append_time and magic else 0
    if not header.codec:
        return b"".join(_message(r, r.offset, magic, kind) for r in records if r.offset >= first_offset)
    base = records[0].offset if magic else 0
    inner = b"".join(_message(record, record.offset - base, magic, kind) for record in records)
    packed = compress(header.codec, inner)
    if header.codec == Codec.LZ4 and magic == 0:
        packed = with_wrong_checksum(packed)
    latest = max(record.timestamp for record in records)
    wrapper = Record(records[-1].offset, latest, None, packed)
    return _message(wrapper, wrapper.offset, magic, kind | header.codec)


def _message(record: Record, offset: int, magic: int, attributes: int) -> bytes:
    stamp = _INT64.pack(record.timestamp) if magic else b""
    body = b"".join((_ATTRIBUTES.pack(magic, attributes), stamp, *_field(record.key), *_field(record.value)))
    return b"".join((_HEAD.pack(offset, len(body) + 4), _CRC.pack(zlib.crc32(body)), body))


def _field(content: bytes | None) -> tuple[bytes, ...]:
    return (b"\xff\xff\xff\xff",) if content is None else (_INT32.pack(len(content)), content)


def messages_of(view: Buffer) -> Iterator[Message]:
    """The entries of a message set, wrappers as they are; one that is cut short at the end is left out.

    Raises CorruptRecord for damage: a length, a format or a checksum that cannot be.
    """
    pos = 0
    while len(view) - pos >= _HEAD.size:
        (_, size) = _HEAD.unpack_from(view, pos)
        if size >= 0 and pos + _HEAD.size + size > len(view):
            return
        message = message_at(view, pos)
        if not message.valid:
            raise CorruptRecord(f"the message at offset {message.offset} does not match its checksum")
        yield message
        pos += message.size


def upgraded(view: Buffer, codec: int, level: int | None = None, *, max_bytes: int) -> bytearray:
    """One v2 batch of all records of a message set, numbered from 0, compressed with `codec`.

    Records of format v0 have no timestamp (-1). Raises CorruptRecord, also for an empty set and for records that expand
    beyond `max_bytes` in all; ValueError for an unknown codec or level.
    """
    records = list(_numbered(_inner(view, max_bytes)))
    if not records:
        raise CorruptRecord("a message set without messages")
    return encode_batch(records, codec=codec, level=level)


def _inner(view: Buffer, max_bytes: int) -> Iterator[Message]:
    for entry in messages_of(view):
        for message in messages_in(entry, max_bytes):
            if not message.valid:
                raise CorruptRecord(f"a message in the wrapper at offset {entry.offset} does not match its checksum")
            max_bytes -= message.size
            if max_bytes < 0:
                raise CorruptRecord("a message set expands beyond what is allowed")
            yield message


def _numbered(messages: Iterable[Message]) -> Iterator[Record]:
    for number, message in enumerate(messages):
        timestamp = message.timestamp if message.magic else NO_TIMESTAMP
        yield Record(number, timestamp, message.key, message.value)
