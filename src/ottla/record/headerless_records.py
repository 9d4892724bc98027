"""Reads the records of a batch without their headers, for checks, conversions and look-ups that do not need them.

Zone: pure. A record may have as many headers as half its bytes, and a few hundred compressed bytes expand to millions
of them: unpacking those takes time and a hundred times their memory. So only their number is read, and their bytes are
skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import BatchHeader, Headers, check_header, open_batch, read_record
from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord
from ottla.record.varint import read_varint

LIMIT_MAX: Final = 2**31 - 9
"""The default of max.decompressed.message.bytes: no limit."""
_INT64_MAX: Final = 2**63 - 1

LeanFields = tuple[int, int, bytes | None, bytes | None]
"""(offset, timestamp in ms, key, value) of a record."""


class RecordTooLarge(ApiError):
    """A compressed batch holds a record above max.decompressed.message.bytes: INVALID_RECORD, as in Apache Kafka."""

    def __init__(self, size: int, limit: int) -> None:
        text = f"a compressed batch has a record of {size} bytes, max.decompressed.message.bytes is {limit}"
        super().__init__(ErrorCode.INVALID_RECORD, text)


def skip_headers(_data: bytes, pos: int, end: int, count: int) -> tuple[Headers, int]:
    """No headers, and the position after them. Raises CorruptRecord for more of them than the bytes can hold."""
    if not 0 <= count * 2 <= end - pos:
        raise CorruptRecord(f"{count} record headers in {end - pos} bytes")
    return (), end


def lean_records_of(view: Buffer, pos: int = 0, *, max_bytes: int, record_max: int = LIMIT_MAX) -> Iterator[LeanFields]:
    """The records of the batch at `pos`, decompressed to at most `max_bytes`. Errors as in `lean_records_in`."""
    return lean_records_in(*open_batch(view, pos, max_bytes=max_bytes), record_max)


def lean_records_in(data: bytes, header: BatchHeader, record_max: int = LIMIT_MAX) -> Iterator[LeanFields]:
    """The records in `data`, the decompressed records of a batch with this header.

    Raises CorruptRecord as `batch.fields_in` does, but does not parse headers. Raises RecordTooLarge where the
    batch is compressed and a record has more than `record_max` bytes.
    """
    check_header(data, header)
    base_offset, base_timestamp, largest = header.base_offset, header.base_timestamp, header.last_offset_delta
    append_time = header.max_timestamp if header.is_append_time else None
    bound = record_max if header.codec else LIMIT_MAX
    pos, last_delta = 0, -1
    for _ in range(header.record_count):
        start = pos
        delta, ts_delta, key, value, _, pos = read_record(data, start, skip_headers)
        if pos - start > bound:
            _check_size(data, start, bound)
        if not last_delta < delta <= largest:
            raise CorruptRecord(f"offset delta {delta} after {last_delta}, last is {largest}")
        last_delta = delta
        timestamp = base_timestamp + ts_delta if append_time is None else append_time
        if not -_INT64_MAX <= timestamp <= _INT64_MAX:
            raise CorruptRecord(f"timestamp {timestamp}")
        yield base_offset + delta, timestamp, key, value
    if pos != len(data):
        raise CorruptRecord(f"{len(data) - pos} bytes after the last record")


def _check_size(data: bytes, start: int, bound: int) -> None:
    # The limit is for a record without its length field, which is measured only near the limit.
    size, _ = read_varint(data, start)
    if size > bound:
        raise RecordTooLarge(size, bound)
