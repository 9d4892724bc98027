"""Message sets of formats v0 and v1, which Kafka wrote before 0.11: reading only.

Zone: pure. Layout and wrapper messages; other modules write them (`conversion`) and check produced ones.

    offset i64 · size i32 (bytes after this field) · crc u32 (CRC-32 of everything after it) · magic i8 · attributes i8
    v1 only: timestamp i64 · key (i32 length, -1 null) · value (the same)

attributes: bits 0 to 2 codec, bit 3 timestamp type (v1). A compressed set is one wrapper message whose value holds the
inner messages. In v0, inner offsets are absolute; in v1 they count from 0 and the wrapper has the last absolute one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ottla.record.compression import Codec, decompress
from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord
from ottla.record.lz4_header import with_right_checksum

OVERHEAD: Final = 12
"""Bytes before the part that `size` counts."""
SIZE_MIN: Final = 14
"""The smallest `size`: crc, magic, attributes, two lengths."""
TIMESTAMP_TYPE: Final = 0x08

_HEAD = Struct(">qiIbb")
_INT64 = Struct(">q")
_INT32 = Struct(">i")


class Message(NamedTuple):
    """One entry of a message set, wrapper or not."""

    offset: int
    size: int
    """All its bytes, with offset and size."""
    crc: int
    magic: int
    attributes: int
    timestamp: int
    """-1 in v0."""
    key: bytes | None
    value: bytes | None
    valid: bool
    """Whether the checksum matches."""

    @property
    def codec(self) -> int:
        """Codec number; not 0 in a wrapper."""
        return self.attributes & 7


def message_at(view: Buffer, pos: int) -> Message:
    """The entry at `pos`. Raises CorruptRecord when it is cut short or its lengths contradict each other."""
    if len(view) - pos < OVERHEAD + SIZE_MIN:
        raise CorruptRecord(f"a message has at least {OVERHEAD + SIZE_MIN} bytes, {len(view) - pos} are left")
    offset, size, crc, magic, attributes = _HEAD.unpack_from(view, pos)
    end = pos + OVERHEAD + size
    if magic not in (0, 1) or size < SIZE_MIN + 8 * magic or end > len(view):
        raise CorruptRecord(f"a message of size {size} and magic {magic} where {len(view) - pos} bytes are left")
    timestamp = _INT64.unpack_from(view, pos + _HEAD.size)[0] if magic else -1
    at = pos + _HEAD.size + 8 * magic
    key, at = _read_field(view, at, end)
    value, at = _read_field(view, at, end)
    if at != end:
        raise CorruptRecord(f"a message's fields end {end - at} bytes before the end that its size gives")
    valid = zlib.crc32(view[pos + 16 : end]) == crc
    return Message(offset, OVERHEAD + size, crc, magic, attributes, timestamp, key, value, valid)


def _read_field(view: Buffer, pos: int, end: int) -> tuple[bytes | None, int]:
    if end - pos < 4:
        raise CorruptRecord("a message's length field is cut short")
    size = _INT32.unpack_from(view, pos)[0]
    pos += 4
    if size == -1:
        return None, pos
    if not 0 <= size <= end - pos:
        raise CorruptRecord(f"a field of {size} bytes where {end - pos} are left")
    return bytes(view[pos : pos + size]), pos + size


def messages_in(message: Message, max_bytes: int) -> Iterator[Message]:
    """The message itself, or the inner messages of a wrapper, with absolute offsets and their effective timestamps.

    Raises CorruptRecord for inner bytes that break the format, expand beyond `max_bytes` or are wrappers again.
    """
    if message.codec == 0:
        yield message
        return
    inner = list(inner_messages(message, max_bytes))
    # v1: inner offsets are relative, and the wrapper has the absolute offset of the last one. LogAppendTime is set
    # in the wrapper only and holds for all inner messages.
    shift = message.offset - inner[-1].offset if message.magic and inner else 0
    append_time = message.timestamp if message.attributes & TIMESTAMP_TYPE else None
    for each in inner:
        timestamp = each.timestamp if append_time is None else append_time
        yield each._replace(offset=each.offset + shift, timestamp=timestamp)


def inner_messages(wrapper: Message, max_bytes: int) -> Iterator[Message]:
    """The messages in a wrapper, as they are stored. Raises CorruptRecord as `messages_in` does."""
    packed = wrapper.value or b""
    if wrapper.codec == Codec.LZ4 and wrapper.magic == 0:
        packed = with_right_checksum(packed)
    data = decompress(wrapper.codec, packed, max_bytes)
    pos = 0
    while pos < len(data):
        inner = message_at(data, pos)
        if inner.codec or inner.magic != wrapper.magic:
            raise CorruptRecord("a wrapper message holds a wrapper, or a message of another format")
        yield inner
        pos += inner.size
