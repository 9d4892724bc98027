"""Checks by its header whether a broker accepts a batch from a producer.

Zone: pure. Checks and rebuilds one batch; the log decides about offsets, producer state and position of the batch.

`validate_produced` is hot: one unpack, one checksum, one line of comparisons, and never a record. Only when that line
fails does it find out which rule was broken, so valid batches do not pay for the reasons. `inspection` checks records.
"""

from __future__ import annotations

from typing import Final, NoReturn

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import (
    ATTRIBUTES_POS,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_POS,
    MAGIC_V2,
    RESERVED,
    TIMESTAMP_TYPE,
    TRANSACTIONAL,
    BatchHeader,
    header_at,
    put_header,
    seal_crc,
    unpack_header,
)
from ottla.record.compression import CODEC_NAMES, compress, most_expanded
from ottla.record.crc import crc32c
from ottla.record.errors import CorruptRecord

HeaderTuple = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]
"""The fields of `BatchHeader` as a plain tuple; `ottla.record.header_fields` has the names of their positions."""

_REFUSED_BITS: Final = RESERVED | DELETE_HORIZON | CONTROL | TIMESTAMP_TYPE
_LAST_CODEC: Final = 4
_RECORD_SIZE_MIN: Final = 7
_INT64_MAX: Final = 2**63 - 1
EXPANDED_MAX: Final = 100 * 1024 * 1024
"""The most bytes that the records of a batch may expand to where the broker reads them."""


def validate_produced(
    view: memoryview,
    pos: int,
    end: int,
    now_ms: int,
    max_bytes: int = 2**31 - 1,
    before_max_ms: int = _INT64_MAX,
    after_max_ms: int = _INT64_MAX,
) -> HeaderTuple:
    """The header of the one batch that fills view[pos:end], when a client may append it.

    max_bytes is `max.message.bytes`; the two spans are `message.timestamp.before.max.ms` and `….after.max.ms` against
    the wall time `now_ms` (for a topic with LogAppendTime pass neither). Only the header is read, so of the
    timestamps the first record's and the largest are checked. Raises ApiError:

    CORRUPT_MESSAGE               lengths, magic or checksum wrong
    MESSAGE_TOO_LARGE             more than max_bytes
    UNSUPPORTED_COMPRESSION_TYPE  codec 5, 6 or 7
    INVALID_TIMESTAMP             outside the spans, reversed, below -1, or claimed to be LogAppendTime
    INVALID_RECORD                magic 0 or 1, second batch, counts, control or reserved bits, producer fields
    """
    size = end - pos
    if size < HEADER_SIZE or view[pos + MAGIC_POS] != MAGIC_V2:
        _refuse_framing(view, pos, size)
    header: HeaderTuple = unpack_header(view, pos)
    _, batch_length, _, _, crc, attributes, last_delta, base_ts, max_ts, pid, epoch, sequence, count = header
    if batch_length + LOG_OVERHEAD != size or size > max_bytes or crc32c(view[pos + ATTRIBUTES_POS : end]) != crc:
        _refuse_bytes(view, pos, end, max_bytes)
    # One expression, because it runs for every batch. Its rules, in order:
    #  1. no attribute bits that only a broker sets; 2. a codec that exists; 3. one record per offset, and at least one;
    #  4. no more records than the bytes can expand to: a count that is a lie would make readers reserve memory;
    #  5. an idempotent producer sends id, epoch and sequence; 6. a transaction has a producer id;
    #  7. the largest timestamp is not below the first; 8. none is below -1; 9. both are within the topic's limits.
    if (
        attributes & _REFUSED_BITS
        or attributes & CODEC_MASK > _LAST_CODEC
        or count != last_delta + 1
        or count <= 0
        or (
            count * _RECORD_SIZE_MIN > size - HEADER_SIZE
            and count * _RECORD_SIZE_MIN > most_expanded(attributes & CODEC_MASK, size - HEADER_SIZE)
        )
        or (pid != -1 and (pid < 0 or epoch < 0 or sequence < 0))
        or (pid == -1 and attributes & TRANSACTIONAL)
        or max_ts < base_ts
        or base_ts < -1
        or (max_ts >= 0 and max_ts - now_ms > after_max_ms)
        or (base_ts >= 0 and now_ms - base_ts > before_max_ms)
    ):
        _refuse_header(BatchHeader._make(header), now_ms, before_max_ms, after_max_ms)
    return header


def _refuse_framing(view: memoryview, pos: int, size: int) -> NoReturn:
    if size > MAGIC_POS and view[pos + MAGIC_POS] in (0, 1):
        raise ApiError(
            ErrorCode.INVALID_RECORD,
            f"message format v{view[pos + MAGIC_POS]}: from version 3 on a Produce has record batches of v2 only",
        )
    if size < HEADER_SIZE:
        raise CorruptRecord(f"a record batch has at least {HEADER_SIZE} bytes, this one {size}")
    raise CorruptRecord(f"magic {view[pos + MAGIC_POS]} is unknown")


def _refuse_bytes(view: memoryview, pos: int, end: int, max_bytes: int) -> NoReturn:
    header = header_at(view, pos)
    # A producer sends one batch per partition: bytes after a whole one are taken for a second one.
    if HEADER_SIZE <= header.size < end - pos:
        raise ApiError(ErrorCode.INVALID_RECORD, "more than one record batch for a partition")
    if header.size != end - pos:
        raise CorruptRecord(f"batchLength {header.batch_length} in a batch of {end - pos} bytes")
    if header.size > max_bytes:
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {header.size} bytes, max.message.bytes is {max_bytes}")
    computed = crc32c(view[pos + ATTRIBUTES_POS : end])
    raise CorruptRecord(f"stored crc = {header.crc}, computed crc = {computed}")


def _refuse_header(header: BatchHeader, now_ms: int, before_max_ms: int, after_max_ms: int) -> NoReturn:
    if header.codec > _LAST_CODEC:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {header.codec} does not exist")
    why = _invalid_record(header)
    if why is not None:
        raise ApiError(ErrorCode.INVALID_RECORD, why)
    raise ApiError(ErrorCode.INVALID_TIMESTAMP, _invalid_timestamp(header, now_ms, before_max_ms, after_max_ms))


def _invalid_record(header: BatchHeader) -> str | None:
    """Why the header is INVALID_RECORD, None when it is not."""
    if header.is_control:
        return "clients do not write control records"
    if header.attributes & (RESERVED | DELETE_HORIZON):
        return f"attributes {header.attributes:#06x} use bits that producers may not set"
    if header.record_count <= 0 or header.record_count != header.last_offset_delta + 1:
        return f"{header.record_count} records, but the last offset delta is {header.last_offset_delta}"
    room = header.size - HEADER_SIZE
    if header.record_count * _RECORD_SIZE_MIN > most_expanded(header.codec, room):
        return f"{header.record_count} records are more than {room} bytes of {CODEC_NAMES[header.codec]} can hold"
    return _invalid_producer(header)


def _invalid_producer(header: BatchHeader) -> str | None:
    if header.producer_id == -1:
        return "a transactional batch without a producer id" if header.is_transactional else None
    if header.producer_id < 0 or header.producer_epoch < 0 or header.base_sequence < 0:
        return (
            f"producer id {header.producer_id} with epoch {header.producer_epoch} and sequence {header.base_sequence}"
        )
    return None


def _invalid_timestamp(header: BatchHeader, now_ms: int, before_max_ms: int, after_max_ms: int) -> str:
    if header.is_append_time:
        return "producers do not set the timestamp type LogAppendTime"
    if header.base_timestamp < -1 or header.max_timestamp < header.base_timestamp:
        return f"timestamps from {header.base_timestamp} to {header.max_timestamp}"
    return (
        f"timestamps from {header.base_timestamp} to {header.max_timestamp} are not within "
        f"{before_max_ms} ms before and {after_max_ms} ms after {now_ms}"
    )


def recompress_batch(data: bytes, header: BatchHeader, codec: int, level: int | None = None) -> bytearray:
    """A batch of the records in `data`, compressed with a codec; all else is as in its header.

    ValueError for an unknown codec or level.
    """
    batch = bytearray(HEADER_SIZE)
    batch += compress(codec, data, level)
    attributes = header.attributes & ~CODEC_MASK | codec
    put_header(batch, header._replace(batch_length=len(batch) - LOG_OVERHEAD, attributes=attributes, crc=0))
    seal_crc(batch, 0, len(batch))
    return batch
