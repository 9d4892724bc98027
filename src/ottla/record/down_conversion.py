"""Converts a produced batch for a topic in message format v0 or v1 (message.format.version below 0.11).

Zone: pure. Refuses what Apache Kafka 3.x refused there, and limits the work that is done between two turns of the loop;
`conversion` converts.
"""

from __future__ import annotations

from typing import Final, NamedTuple, NoReturn

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import (
    CODEC_MASK,
    BatchHeader,
    check_header,
    header_at,
    open_batch,
    patch_offset_and_epoch,
    read_record,
    set_append_time,
)
from ottla.record.compression import Codec
from ottla.record.conversion import convert_batch_down
from ottla.record.errors import ExpandsTooFar
from ottla.record.header_fields import ATTRIBUTES, PRODUCER_ID, RECORD_COUNT
from ottla.record.inspection import INLINE_EXPANDED, is_small
from ottla.record.validation import HeaderTuple
from ottla.types import NO_EPOCH, NO_TIMESTAMP

EXPANDED_MAX: Final = 16 * 1024 * 1024
"""A batch that expands beyond this is refused."""
RECORDS_MAX: Final = 100_000
"""A batch of more records is refused as well."""


class ConvertedBatch(NamedTuple):
    """A batch that was converted to messages of an older format."""

    view: memoryview
    """The batch; compared by identity."""
    base: int
    """The offset of its first record, if it is appended there."""
    magic: int
    content: bytes
    stamp_ms: int = NO_TIMESTAMP
    """The LogAppendTime in the messages; -1: they have their producer's times."""


def convert_for_old_topic(view: memoryview, header: HeaderTuple, magic: int) -> bytes:
    """The batch that fills `view`, whose header was validated, as messages of format `magic`, at the batch's offsets.

    A compressed one becomes a wrapper in its codec. Fields without a place in the format are refused, not lost; only
    timestamps are dropped for v0, which has none. Raises ApiError:

    UNSUPPORTED_FOR_MESSAGE_FORMAT  of an idempotent or transactional producer; with record headers
    UNSUPPORTED_COMPRESSION_TYPE    zstd
    MESSAGE_TOO_LARGE               more than RECORDS_MAX records
    CORRUPT_MESSAGE                 records that break the format, or expand beyond EXPANDED_MAX bytes
    """
    if header[PRODUCER_ID] >= 0:
        raise _unsupported_for_format("idempotent and transactional producers", magic)
    if header[ATTRIBUTES] & CODEC_MASK == Codec.ZSTD:
        raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd does not exist in message format v{magic}")
    if header[RECORD_COUNT] > RECORDS_MAX:
        text = f"{header[RECORD_COUNT]} records in a batch for a topic of format v{magic}, {RECORDS_MAX} are allowed"
        raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, text)
    _refuse_headers(view, BatchHeader._make(header), magic)
    return convert_batch_down(view, magic, max_bytes=EXPANDED_MAX)


def _refuse_headers(view: memoryview, header: BatchHeader, magic: int) -> None:
    def refuse(_data: bytes, _pos: int, _end: int, _count: int) -> NoReturn:
        raise _unsupported_for_format("record headers", magic)

    data, _ = open_batch(view, max_bytes=EXPANDED_MAX)
    check_header(data, header)
    pos = 0
    for _ in range(header.record_count):
        pos = read_record(data, pos, refuse)[5]


def is_quick(view: memoryview) -> bool:
    """Whether a v2 batch, also decompressed, is small enough to be converted between two turns of the loop."""
    header = header_at(view)
    if not is_small(header):
        return False
    try:
        open_batch(view, max_bytes=INLINE_EXPANDED)
    except ExpandsTooFar:
        return False
    except ApiError:
        pass  # its append reports the error
    return True


def lower_job(batch: bytes, magic: int, base_offset: int, stamp_ms: int = NO_TIMESTAMP) -> bytes | tuple[int, str]:
    """`convert_for_old_topic` as a job for workers, of a batch that will have this offset: the messages, or error code
    and text.

    `stamp_ms`: the LogAppendTime that it gets; -1: none.
    """
    view = memoryview(bytearray(batch))
    if stamp_ms != NO_TIMESTAMP:
        set_append_time(view, 0, stamp_ms)
    patch_offset_and_epoch(view, 0, base_offset, NO_EPOCH)
    try:
        return convert_for_old_topic(view, header_at(view), magic)
    except ApiError as error:
        return int(error.code), error.message


def _unsupported_for_format(what: str, magic: int) -> ApiError:
    text = f"the topic is written in message format v{magic}, which has no place for {what}"
    return ApiError(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, text)
