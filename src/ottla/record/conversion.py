"""Converts record batches to message sets of formats v0 and v1, and messages of v1 to v0, for old consumers.

Zone: pure. A fetch below version 4 gets v1 (from version 2 on) or v0; `message_set_conversion` converts the other way.
Headers, sequence numbers and transactions do not exist there and are lost; control records are left out
(KIP-31, KIP-32). Checksums are verified: damaged bytes must not get a new one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from struct import Struct
from typing import Final, NamedTuple

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import (
    MAGIC_V2,
    BatchHeader,
    crc_ok,
    header_at,
)
from ottla.record.compression import Codec, compress
from ottla.record.errors import CorruptRecord, ExpandsTooFar
from ottla.record.header_fields import MAGIC
from ottla.record.headerless_records import lean_records_of
from ottla.record.legacy import TIMESTAMP_TYPE, Message, message_at, messages_in
from ottla.record.log_entries import entries_of
from ottla.record.lz4_header import with_wrong_checksum
from ottla.record.validation import EXPANDED_MAX
from ottla.types import NO_TIMESTAMP

RECORDS_MAX: Final = 1_000_000
"""A batch of more records is not converted: it would delay all other jobs of the same worker."""
_HEAD: Final = Struct(">qi")
_CRC: Final = Struct(">I")
_ATTRIBUTES: Final = Struct(">bb")
_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")

Plain = tuple[int, int, bytes | None, bytes | None]
"""(offset, timestamp, key, value) of a record."""


class ForOldReader(NamedTuple):
    """A piece of a log in an older format."""

    content: bytes
    """A message set; empty when nothing in the piece exists in this format."""
    next_offset: int
    """The offset after the last entry of the piece."""
    converted: int
    """Number of records that were in another format."""


def for_old_reader(view: memoryview, magic: int, first_offset: int, max_bytes: int) -> ForOldReader:
    """The entries of a log in `view`, of any format, converted to format `magic` (0 or 1) at most, each in its codec.

    Uncompressed records below `first_offset` are left out: old clients take the first message that they get for the
    one that they asked for. An entry that is cut short at the end is left out. Raises ApiError for the first
    entry (a later one ends the set): CORRUPT_MESSAGE, UNSUPPORTED_COMPRESSION_TYPE (zstd, which clients of that age do
    not know), ExpandsTooFar for one that expands, or grows, beyond `max_bytes`.
    """
    assert magic in (0, 1)
    content, next_offset, count = bytearray(), first_offset, 0
    try:
        for pos, fields in entries_of(view):
            if fields[MAGIC] == MAGIC_V2:
                header = BatchHeader._make(fields)
                content += _convert_batch(view, pos, header, magic, first_offset, max_bytes)
                next_offset = header.last_offset + 1
                count += 0 if header.is_control else header.record_count
            else:
                entry = message_at(view, pos)
                content += _convert_old_entry(view[pos : pos + entry.size], entry, magic, first_offset, max_bytes)
                next_offset = entry.offset + 1
                count += 0 if entry.magic <= magic else sum(1 for _ in messages_in(entry, max_bytes))
    except ApiError:
        # Otherwise the entries before the damaged one are sent; the next fetch begins at that one and gets its error.
        if not content:
            raise
    return ForOldReader(bytes(content), next_offset, count)


def for_old_reader_job(view: bytes, magic: int, first_offset: int) -> tuple[bytes, int, int] | tuple[int, str]:
    """`for_old_reader` as a job for workers: its values, or the error's code and text."""
    try:
        found = for_old_reader(memoryview(view), magic, first_offset, EXPANDED_MAX)
    except ApiError as error:
        return int(error.code), error.message
    return found.content, found.next_offset, found.converted


def convert_batch_down(view: memoryview, magic: int, *, max_bytes: int) -> bytes:
    """The v2 batch that fills `view` in format `magic` (0 or 1), with its offsets. Raises ApiError, as above."""
    return bytes(_convert_batch(view, 0, header_at(view), magic, 0, max_bytes))


def _convert_batch(
    view: memoryview, pos: int, header: BatchHeader, magic: int, first_offset: int, max_bytes: int
) -> bytes | bytearray:
    """The messages of a v2 batch."""
    if header.is_control or not header.record_count:
        return b""
    if header.codec == Codec.ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd does not exist in message format v{magic}")
    if not crc_ok(view, pos, pos + header.size):
        raise CorruptRecord(f"the batch at offset {header.base_offset} does not match its checksum")
    if header.record_count > RECORDS_MAX:
        raise ExpandsTooFar(f"{header.record_count} records in a batch, {RECORDS_MAX} are converted")
    records = lean_records_of(view, pos, max_bytes=max_bytes)
    kind = TIMESTAMP_TYPE if header.is_append_time and magic else 0
    if header.codec:
        return _wrapper_message(records, magic, kind, header.codec, max_bytes)
    return _plain_messages(records, magic, kind, first_offset, max_bytes)


def _convert_old_entry(
    view: memoryview, entry: Message, magic: int, first_offset: int, max_bytes: int
) -> memoryview | bytearray:
    """An entry of format v0 or v1: as it is, or from v1 to v0."""
    if not entry.valid:
        raise CorruptRecord(f"the message at offset {entry.offset} does not match its checksum")
    if entry.magic <= magic:
        return view
    records = ((m.offset, m.timestamp, m.key, m.value) for m in messages_in(entry, max_bytes))
    if entry.codec:
        return _wrapper_message(records, magic, 0, entry.codec, max_bytes)
    return _plain_messages(records, magic, 0, first_offset, max_bytes)


def _plain_messages(records: Iterable[Plain], magic: int, kind: int, first_offset: int, max_bytes: int) -> bytearray:
    """Records as messages, one after the other."""
    content = bytearray()
    for offset, timestamp, key, value in records:
        if offset >= first_offset:
            content += _encode_message(offset, timestamp, key, value, magic, kind)
        if len(content) > max_bytes:
            raise ExpandsTooFar(f"the messages have more than {max_bytes} bytes")
    return content


def _wrapper_message(records: Iterable[Plain], magic: int, kind: int, codec: int, max_bytes: int) -> bytearray:
    """Records in a wrapper message: in v1 their offsets count from its first one, in v0 they are as they are."""
    inner, base, offset, latest = bytearray(), -1, 0, NO_TIMESTAMP
    for offset, timestamp, key, value in records:
        if base < 0:
            base = offset if magic else 0
        latest = max(latest, timestamp)
        inner += _encode_message(offset - base, timestamp, key, value, magic, kind)
        if len(inner) > max_bytes:
            raise ExpandsTooFar(f"the messages have more than {max_bytes} bytes")
    if not inner:
        return inner
    packed = compress(codec, inner)
    if codec == Codec.LZ4 and magic == 0:
        # Clients of v0 expect the checksum that they themselves compute (see `lz4_header`).
        packed = with_wrong_checksum(packed)
    return bytearray(_encode_message(offset, latest, None, packed, magic, kind | codec))


def _encode_message(
    offset: int, timestamp: int, key: bytes | None, value: bytes | None, magic: int, attributes: int
) -> bytes:
    stamp = _INT64.pack(timestamp) if magic else b""
    body = b"".join((_ATTRIBUTES.pack(magic, attributes), stamp, *_encode_field(key), *_encode_field(value)))
    return b"".join((_HEAD.pack(offset, len(body) + 4), _CRC.pack(zlib.crc32(body)), body))


def _encode_field(content: bytes | None) -> tuple[bytes, ...]:
    return (b"\xff\xff\xff\xff",) if content is None else (_INT32.pack(len(content)), content)
