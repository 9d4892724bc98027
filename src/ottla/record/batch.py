"""Record batches, format v2: reads and patches headers in place, decodes and encodes records.

Zone: pure. Layout only; `validation` refuses what a broker does not accept, `legacy` reads older formats.

    baseOffset i64 · batchLength i32 (bytes after this field) · partitionLeaderEpoch i32 · magic i8 = 2 · crc u32
    attributes i16 · lastOffsetDelta i32 · baseTimestamp i64 · maxTimestamp i64 · producerId i64 · producerEpoch i16
    baseSequence i32 · recordCount i32 · records (compressed as one block)

The CRC-32C covers everything from attributes on: base offset and leader epoch lie outside it, so a broker patches
them in place and never encodes a batch again. Produce and fetch use the header only and never read a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from struct import Struct
from typing import Final, NamedTuple

from ottla.record.compression import compress, decompress
from ottla.record.crc import Buffer, crc32c
from ottla.record.errors import CorruptRecord
from ottla.record.varint import LENGTHS, LENGTHS_END, encode_varint, read_varint, read_varlong
from ottla.utf8 import decode_text, encode_text

HEADER_SIZE: Final = 61
"""Bytes of a batch before its records."""
LOG_OVERHEAD: Final = 12
"""Bytes before the part that batchLength counts: a batch has batchLength + 12 bytes."""
MAGIC_POS: Final = 16
CRC_POS: Final = 17
ATTRIBUTES_POS: Final = 21
"""Where the checksummed part begins."""
MAGIC_V2: Final = 2

CODEC_MASK: Final = 0x07
TIMESTAMP_TYPE: Final = 0x08
"""Set: LogAppendTime, every record has the batch's maxTimestamp. Clear: CreateTime."""
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40
"""Set by the cleaner: baseTimestamp is the time from which tombstones may be removed."""
RESERVED: Final = 0xFF80

_HEADER = Struct(">qiibIhiqqqhii")
_UNCOVERED = Struct(">qiibI")
_COVERED = Struct(">hiqqqhii")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_put_offset = _OFFSET.pack_into
_put_epoch = _EPOCH.pack_into
_put_attributes = Struct(">h").pack_into
_MAX_TIMESTAMP_POS = 35
_INT64_MAX = 2**63 - 1
_RECORD_SIZE_MIN = 7
"""A length, attributes, two deltas, null key, null value, no headers: one byte each."""

unpack_header: Final = _HEADER.unpack_from
"""`unpack_header(view, pos)`: the 13 fields of `BatchHeader` as a plain tuple. Hot: bound, without a wrapper."""


class BatchHeader(NamedTuple):
    """The fields of a batch's header, in the order of the bytes."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """All bytes of the batch."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record, or of the one that was last before compaction."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """Codec number, 0…7 (5…7 do not exist)."""
        return self.attributes & CODEC_MASK

    @property
    def is_transactional(self) -> bool:
        """Whether it is part of a transaction, or its marker."""
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it holds control records, which no application sees."""
        return bool(self.attributes & CONTROL)

    @property
    def is_append_time(self) -> bool:
        """Whether the broker set the timestamp (LogAppendTime)."""
        return bool(self.attributes & TIMESTAMP_TYPE)

    @property
    def delete_horizon_ms(self) -> int | None:
        """The time from which the batch's tombstones and markers may be removed, when the cleaner set one."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, -1 without one; sequences wrap from 2³¹-1 to 0."""
        if self.base_sequence < 0:
            return -1
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF


_new_header = tuple.__new__  # half the time of BatchHeader._make, and small batches are many


class Record(NamedTuple):
    """One record. Timestamps in ms since 1970, -1 unknown. Header keys may repeat."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()


_new_record = tuple.__new__  # a third of the time of Record(…), and this runs for every record


def header_at(view: Buffer, pos: int = 0) -> BatchHeader:
    """The header by name. Raises CorruptRecord when fewer than 61 bytes are left."""
    if len(view) - pos < HEADER_SIZE:
        raise CorruptRecord(f"a batch header has {HEADER_SIZE} bytes, {len(view) - pos} are left")
    return BatchHeader._make(unpack_header(view, pos))


def put_header(view: bytearray | memoryview, header: BatchHeader, pos: int = 0) -> None:
    """Write all 61 bytes; the caller has to provide the checksum."""
    _HEADER.pack_into(view, pos, *header)


def patch_offset_and_epoch(view: bytearray | memoryview, pos: int, base_offset: int, leader_epoch: int) -> None:
    """Write the two fields that the leader assigns; the checksum does not cover them."""
    _put_offset(view, pos, base_offset)
    _put_epoch(view, pos + LOG_OVERHEAD, leader_epoch)


put_assigned: Final = Struct(">qii").pack_into
"""`patch_offset_and_epoch` without a call, with the length of the batch's header between them:
(view, position, base offset, length, leader epoch)."""


def crc_ok(view: memoryview, pos: int, end: int) -> bool:
    """Whether the checksum of the batch in view[pos:end] matches; the range holds at least a whole header."""
    stored: int = _CRC.unpack_from(view, pos + CRC_POS)[0]
    return crc32c(view[pos + ATTRIBUTES_POS : end]) == stored


def seal_crc(view: bytearray | memoryview, pos: int, end: int) -> None:
    """Compute and store the checksum of the batch in view[pos:end]."""
    with memoryview(view) as whole, whole[pos + ATTRIBUTES_POS : end] as covered:
        _CRC.pack_into(view, pos + CRC_POS, crc32c(covered))


def set_append_time(view: bytearray | memoryview, pos: int, wall_ms: int) -> None:
    """Stamp a whole batch with LogAppendTime `wall_ms`: timestamp type, maxTimestamp, and the checksum over both."""
    header = header_at(view, pos)
    _put_attributes(view, pos + ATTRIBUTES_POS, header.attributes | TIMESTAMP_TYPE)
    _put_offset(view, pos + _MAX_TIMESTAMP_POS, wall_ms)
    seal_crc(view, pos, pos + header.size)


def batches_of(view: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Position and header of every whole batch; a cut one at the end is left out.

    Headers only: checksums are the caller's choice. Raises CorruptRecord when a length or magic cannot be a v2 batch.
    """
    pos, whole = 0, len(view)
    while whole - pos >= HEADER_SIZE:
        header = _new_header(BatchHeader, unpack_header(view, pos))
        size = header.batch_length + LOG_OVERHEAD
        if header.magic != MAGIC_V2:
            raise CorruptRecord(f"magic {header.magic} at position {pos}")
        if size < HEADER_SIZE:
            raise CorruptRecord(f"batchLength {header.batch_length} at position {pos}")
        if pos + size > whole:
            return
        yield pos, header
        pos += size


def records_of(view: Buffer, pos: int = 0, *, max_bytes: int) -> Iterator[Record]:
    """The records of the batch at `pos`, decompressed to at most `max_bytes`.

    The checksum is not verified. Raises CorruptRecord for records that break the format: a length past the end,
    a count that does not match, offsets that do not rise or leave the batch.
    """
    return records_in(*open_batch(view, pos, max_bytes=max_bytes))


def open_batch(view: Buffer, pos: int = 0, *, max_bytes: int) -> tuple[bytes, BatchHeader]:
    """(records, decompressed to at most `max_bytes`; header) of the batch at `pos`. Raises CorruptRecord."""
    header = header_at(view, pos)
    if header.magic != MAGIC_V2 or not HEADER_SIZE <= header.size <= len(view) - pos:
        raise CorruptRecord(f"no whole v2 batch at position {pos}")
    packed = view[pos + HEADER_SIZE : pos + header.size]
    return bytes(packed) if header.codec == 0 else decompress(header.codec, packed, max_bytes), header


def records_in(data: bytes, header: BatchHeader) -> Iterator[Record]:
    """The records in `data`, the decompressed records of a batch with this header; errors as in `records_of`."""
    for fields in fields_in(data, header):
        yield _new_record(Record, fields)


Headers = tuple[tuple[str, bytes | None], ...]
Fields = tuple[int, int, bytes | None, bytes | None, Headers]
"""The fields of a `Record`: offset, timestamp, key, value, headers."""
HeaderReader = Callable[[bytes, int, int, int], tuple[Headers, int]]
"""A function with the signature of `read_headers`."""


def fields_in(data: bytes, header: BatchHeader) -> Iterator[Fields]:
    """As `records_in`, but plain tuples. Hot: every record of a consumer passes here."""
    check_header(data, header)
    base_offset, base_timestamp, largest = header.base_offset, header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.is_append_time else None
    pos, last_delta = 0, -1
    for _ in range(header.record_count):
        delta, ts_delta, key, value, headers, pos = read_record(data, pos)
        if not last_delta < delta <= largest:
            raise CorruptRecord(f"offset delta {delta} after {last_delta}, last is {largest}")
        last_delta = delta
        timestamp = base_timestamp + ts_delta if append_time is None else append_time
        if not -_INT64_MAX <= timestamp <= _INT64_MAX:
            raise CorruptRecord(f"timestamp {timestamp}")
        yield base_offset + delta, timestamp, key, value, headers
    if pos != len(data):
        raise CorruptRecord(f"{len(data) - pos} bytes after the last record")


def check_header(data: bytes, header: BatchHeader) -> None:
    """Check before records are read that the bytes can hold their count and that offsets are in range.

    Raises CorruptRecord.
    """
    # The count is a claim of four bytes, and callers reserve memory by it.
    if not 0 <= header.record_count * _RECORD_SIZE_MIN <= len(data):
        raise CorruptRecord(f"{header.record_count} records in {len(data)} bytes")
    if header.base_offset < 0 or header.last_offset > _INT64_MAX:
        raise CorruptRecord(f"offsets {header.base_offset} to {header.last_offset}")


def read_record(
    data: bytes, pos: int, headers_at: HeaderReader | None = None
) -> tuple[int, int, bytes | None, bytes | None, Headers, int]:
    """(offset delta, timestamp delta, key, value, headers, end) of the record at `pos`.

    `headers_at` reads the headers, where there are any; `read_headers` by default. Raises CorruptRecord.
    Hot: numbers of one byte or two that are not negative, as nearly all are, are read here rather than by a call.
    """
    try:
        # The length stays zigzag-encoded (doubled) up to here, so that an odd number is a negative one.
        size, pos = data[pos], pos + 1
        if size > 0x7F and data[pos] < 0x80:
            size, pos = size & 0x7F | data[pos] << 7, pos + 1
        elif size > 0x7F:
            size, pos = _read_zigzag(data, pos - 1)
        end = pos + (size >> 1)
        if size & 1 or size < 2 * _RECORD_SIZE_MIN - 2 or end > len(data):
            raise CorruptRecord(f"a record of {(size >> 1) ^ -(size & 1)} bytes where {len(data) - pos} are left")
        # One byte of attributes is skipped: no bit of it is in use. In a first byte, 0x80 means that more bytes
        # follow and 0x01 that the number is negative; both are left to `read_varlong`.
        ts_delta = data[pos + 1]
        if ts_delta & 0x81:
            ts_delta, pos = read_varlong(data, pos + 1)
        else:
            ts_delta, pos = ts_delta >> 1, pos + 2
        delta, pos = data[pos], pos + 1
        if delta > 0x7F and data[pos] < 0x80:
            delta, pos = delta & 0x7F | data[pos] << 7, pos + 1
        elif delta > 0x7F:
            delta, pos = _read_zigzag(data, pos - 1)
        key = None
        if data[pos] == _NULL:
            pos += 1
        else:
            key, pos = _read_bytes(data, pos, end)
        size, at = data[pos], pos + 1
        if size > 0x7F:
            size, at = (size & 0x7F | data[at] << 7, at + 1) if data[at] < 0x80 else (_NULL, at)
        value: bytes | None
        if size & 1 or at + (size >> 1) > end:  # null, longer, or wrong
            value, pos = _read_bytes(data, pos, end)
        else:
            pos = at + (size >> 1)
            value = data[at:pos]
        headers: Headers = ()
        if data[pos]:
            count, pos = read_varint(data, pos)
            headers, pos = (headers_at or read_headers)(data, pos, end, count)
        else:
            pos += 1
    except IndexError:
        raise CorruptRecord("a record is cut short") from None
    if pos != end:
        raise CorruptRecord(f"a record's fields end {pos - end} bytes off its length")
    return (delta >> 1) ^ -(delta & 1), ts_delta, key, value, headers, pos


_NULL = 1
"""The length -1, encoded."""


def _read_zigzag(data: bytes, pos: int) -> tuple[int, int]:
    """(number, position after it) as `read_varint`, but the number stays encoded: 0, 1, 2 … for 0, -1, 1 …"""
    value, pos = read_varint(data, pos)
    return (value << 1) ^ (value >> 63), pos


def _read_bytes(data: bytes, pos: int, end: int) -> tuple[bytes | None, int]:
    """Nullable bytes with their length before them, inside data[:end]."""
    size = data[pos] >> 1
    if data[pos] & 0x81:
        size, pos = read_varint(data, pos)
    else:
        pos += 1
    if size == -1:
        return None, pos
    after = pos + size
    if size < 0 or after > end:
        raise CorruptRecord(f"a field of {size} bytes where {end - pos} are left")
    return data[pos:after], after


def read_headers(data: bytes, pos: int, end: int, count: int) -> tuple[Headers, int]:
    """(`count` headers of a record in data[pos:end], position after them). Raises CorruptRecord."""
    # A header has two bytes at least: the lengths of its key and its value.
    if not 0 <= count * 2 <= end - pos:
        raise CorruptRecord(f"{count} record headers in {end - pos} bytes")
    headers = []
    for _ in range(count):
        key, pos = _read_bytes(data, pos, end)
        value, pos = _read_bytes(data, pos, end)
        if key is None:
            raise CorruptRecord("a record header without a key")
        headers.append((decode_text(key), value))
    return tuple(headers), pos


def encode_batch(
    records: Iterable[Record],
    *,
    base_offset: int = 0,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    leader_epoch: int = -1,
    timestamp_type: int = 0,
    level: int | None = None,
    last_offset_delta: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """A batch of `records`, whose offsets rise from `base_offset` on (gaps are allowed).

    timestamp_type 0 CreateTime, 1 LogAppendTime (of the largest timestamp among the records). The last two arguments
    are for a cleaner: a batch keeps its last offset when its last records are removed, and gets a delete horizon.
    Raises ValueError for an unknown codec or level; offsets that do not rise are a programmer error.
    """
    attributes = (
        codec
        | (TIMESTAMP_TYPE if timestamp_type else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
        | (DELETE_HORIZON if delete_horizon_ms is not None else 0)
    )
    parts, count, last_delta, base_timestamp, max_timestamp = _encode_records(records, base_offset, delete_horizon_ms)
    last_offset_delta = last_delta if last_offset_delta is None else last_offset_delta
    assert last_offset_delta >= last_delta, "the last offset lies before the last record"
    packed = compress(codec, b"".join(parts), level) if codec else b"".join(parts)
    batch = bytearray(HEADER_SIZE)
    _HEADER.pack_into(
        batch, 0, base_offset, len(packed) + HEADER_SIZE - LOG_OVERHEAD, leader_epoch, MAGIC_V2, 0, attributes,
        last_offset_delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count,
    )  # fmt: skip
    batch += packed
    _CRC.pack_into(batch, CRC_POS, crc32c(memoryview(batch)[ATTRIBUTES_POS:]))
    return batch


def encode_one(
    attributes: int,
    timestamp: int,
    key: bytes,
    value: bytes | None,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytearray:
    """As `encode_batch` for one record with a key and no headers, uncompressed, with these attributes.

    Hot: coordinators write five such batches, and two markers, for each transaction.
    """
    # The body: attributes, timestamp delta and offset delta, all 0, then key, value and the number of headers, 0.
    size = len(key)
    key_size = LENGTHS[size] if size < LENGTHS_END else encode_varint(size)
    if value is None:
        body = b"".join((b"\0\0\0", key_size, key, b"\x01\0"))
    else:
        size = len(value)
        value_size = LENGTHS[size] if size < LENGTHS_END else encode_varint(size)
        body = b"".join((b"\0\0\0", key_size, key, value_size, value, b"\0"))
    head = _COVERED.pack(attributes, 0, timestamp, timestamp, producer_id, producer_epoch, base_sequence, 1)
    size = len(body)
    covered = b"".join((head, LENGTHS[size] if size < LENGTHS_END else encode_varint(size), body))
    length = len(covered) + ATTRIBUTES_POS - LOG_OVERHEAD
    return bytearray(_UNCOVERED.pack(0, length, -1, MAGIC_V2, crc32c(covered)) + covered)


def _encode_records(
    records: Iterable[Record], base_offset: int, base_timestamp: int | None
) -> tuple[list[bytes], int, int, int, int]:
    """(encoded parts, count, last offset delta, base timestamp, max timestamp)."""
    parts: list[bytes] = []
    count, last_delta, max_timestamp = 0, -1, -1
    for offset, timestamp, key, value, headers in records:
        if base_timestamp is None:
            base_timestamp = timestamp
        delta = offset - base_offset
        assert delta > last_delta, f"offset {offset} does not rise"
        last_delta = delta
        max_timestamp = max(max_timestamp, timestamp)
        body = encode_record_body(delta, timestamp - base_timestamp, key, value, headers)
        parts += (encode_varint(len(body)), body)
        count += 1
    return parts, count, last_delta, -1 if base_timestamp is None else base_timestamp, max_timestamp


def encode_record_body(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers = ()
) -> bytes:
    """A record without the length before it: producers that fill batches up to a size measure records with it."""
    times = encode_varint(timestamp_delta), encode_varint(offset_delta)
    if key is not None and value is not None and not headers:
        return b"".join((b"\0", *times, encode_varint(len(key)), key, encode_varint(len(value)), value, b"\0"))
    parts = [b"\0", *times]
    _put_bytes(parts, key)
    _put_bytes(parts, value)
    parts.append(encode_varint(len(headers)))
    for name, content in headers:
        _put_bytes(parts, encode_text(name))
        _put_bytes(parts, content)
    return b"".join(parts)


def _put_bytes(parts: list[bytes], content: bytes | None) -> None:
    if content is None:
        parts.append(b"\x01")
    else:
        parts += (encode_varint(len(content)), content)
