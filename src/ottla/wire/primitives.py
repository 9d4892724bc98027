"""Varints, lengths and tag sections, for generated and hand-written codecs.

Zone: pure. Functions on bytes and positions. A read past the end raises IndexError (a single byte), or the caller
notices it by comparing its final position with the end, because positions only grow.
"""

from __future__ import annotations

from typing import Final

from ottla.wire.errors import MalformedMessage, fail, refuse_length
from ottla.wire.limits import MAX_LENGTH, MAX_STRING, MAX_TAGS

Buffer = bytes | bytearray | memoryview
"""The types of input buffers."""

UVARINT: Final = tuple(bytes((n,)) for n in range(128))
"""The one-byte varints, by value. Values that may be negative need `uvarint`: an index below 0 counts from the end."""


def read_uvarint(buffer: Buffer, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 5 bytes and at most 2^31-1 (KIP-482): (value, position after it).

    Raises MalformedMessage when it is longer or larger, IndexError when the buffer ends within it.
    """
    value = buffer[pos]
    if value < 128:
        return value, pos + 1
    value &= 127
    for shift in (7, 14, 21, 28):
        pos += 1
        byte = buffer[pos]
        value |= (byte & 127) << shift
        if byte < 128:
            if value > MAX_LENGTH:
                fail("varint", f"value {value} exceeds an int32")
            return value, pos + 1
    raise MalformedMessage("varint: longer than 5 bytes")


def read_string_length(buffer: Buffer, pos: int) -> tuple[int, int]:
    """Read a compact string's length field (length + 1, 0 = null), which is limited to Kafka's longest string."""
    length, pos = read_uvarint(buffer, pos)
    if length > MAX_STRING + 1:
        fail("string", f"{length - 1} bytes exceed {MAX_STRING}")
    return length, pos


def uvarint(value: int) -> bytes:
    """The unsigned varint encoding of 0 ≤ value ≤ 2^31-1: 1 to 5 bytes, 7 bits each, lowest first.

    Raises ImpossibleLength for one below 0.
    """
    if -1 < value < 128:
        return UVARINT[value]
    if value < 16384:
        if value < 0:
            refuse_length(value)
        return bytes((value & 127 | 128, value >> 7))
    if value < 2097152:
        return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def read_tag_count(buffer: Buffer, pos: int, end: int) -> tuple[int, int]:
    """Read the count of a tag section, and check that the tags fit into the input: each takes at least 2 bytes."""
    count, pos = read_uvarint(buffer, pos)
    if count > MAX_TAGS or count * 2 > end - pos:
        fail("tagged fields", f"{count} of them in {end - pos} bytes")
    return count, pos


def read_tag(buffer: Buffer, pos: int, end: int, last: int) -> tuple[int, int, int]:
    """Read the head of one tagged field: (tag, position of its value, end of its value).

    Tags ascend strictly (KIP-482), so `last` is the tag before, -1 for the first.
    """
    tag, pos = read_uvarint(buffer, pos)
    size, pos = read_uvarint(buffer, pos)
    if tag <= last:
        fail("tagged fields", f"tag {tag} after {last}")
    if size > end - pos:
        fail("tagged fields", f"tag {tag} claims {size} of {end - pos} bytes")
    return tag, pos, pos + size


def skip_tags(buffer: Buffer, pos: int, end: int) -> int:
    """Skip a tag section without known tags. Returns the position after it."""
    count, pos = read_tag_count(buffer, pos, end)
    tag = -1
    for _ in range(count):
        tag, _, pos = read_tag(buffer, pos, end, tag)
    return pos


def write_tags(tags: list[tuple[int, bytes]]) -> bytes:
    """A tag section of (tag, encoded value) in ascending order of tags: count, then tag, size, value each."""
    out = [uvarint(len(tags))]
    for tag, value in tags:
        out += (uvarint(tag), uvarint(len(value)), value)
    return b"".join(out)
