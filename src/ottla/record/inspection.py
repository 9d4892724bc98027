"""Inspects a produced batch record by record: for compacted topics, and where the broker recompresses.

Zone: pure. Checks what a header cannot show: that the records match its count, have dense offsets, lie within the
topic's time limits, and have keys. Small batches are inspected in the loop, others in a worker; a refusal is a
value, so that it passes through a worker's pipe. docs/guarantees.md lists the topics that are inspected.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CODEC_MASK, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, header_at
from ottla.record.compression import decompress
from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord
from ottla.record.header_fields import BATCH_LENGTH, RECORD_COUNT
from ottla.record.headerless_records import LIMIT_MAX, RecordTooLarge, lean_records_in
from ottla.record.validation import EXPANDED_MAX, HeaderTuple, recompress_batch

INLINE_BYTES: Final = 16 * 1024
"""A batch up to this size is inspected in the loop."""
INLINE_EXPANDED: Final = 64 * 1024
"""The most bytes that it may expand to in the loop; a larger one is inspected in a worker."""
INLINE_RECORDS: Final = 256
"""The most records that are inspected in the loop; they take about a millisecond."""
TOLD_MAX: Final = 100
"""The most records that one answer names."""


class RecordRules(NamedTuple):
    """The rules for the records of a batch."""

    need_keys: bool
    """Records without a key are refused: the topic is compacted."""
    now_ms: int
    """Wall time."""
    before_max_ms: int
    """message.timestamp.before.max.ms; no limit for LogAppendTime."""
    after_max_ms: int
    """message.timestamp.after.max.ms; no limit for LogAppendTime."""
    record_max: int = LIMIT_MAX
    """max.decompressed.message.bytes: most bytes of a record in a compressed batch."""


class Recoding(NamedTuple):
    """The codec and level with which a batch is compressed again."""

    codec: int
    level: int | None


class Refusal(NamedTuple):
    """Why a batch is refused."""

    code: int
    message: str
    records: tuple[tuple[int, str], ...] = ()
    """(index in the batch, reason) of the first records that are at fault (KIP-467)."""


class RefusedRecords(ApiError):
    """Single records of a batch break the rules of the topic: the whole batch is refused."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(ErrorCode(refusal.code), refusal.message)
        self.records = refusal.records


def is_small(header: HeaderTuple) -> bool:
    """Whether a batch can be inspected in the loop."""
    return header[BATCH_LENGTH] + LOG_OVERHEAD <= INLINE_BYTES and header[RECORD_COUNT] <= INLINE_RECORDS


def inspect_batch(batch: Buffer, rules: RecordRules, max_bytes: int = EXPANDED_MAX) -> Refusal | None:
    """Why the one batch in `batch`, whose header was validated, is refused; None when every record is fine.

    Headers of records are counted, not parsed.

    CORRUPT_MESSAGE    it cannot be decompressed, or expands to more than `max_bytes`
    INVALID_RECORD     records that contradict the batch header, offsets with gaps, records without a key, or, in a
                       compressed batch, records larger than max.decompressed.message.bytes
    INVALID_TIMESTAMP  some timestamp lies outside of the topic's limits
    """
    found = _decompress_records(batch, max_bytes)
    return found if isinstance(found, Refusal) else _inspect_records(found, header_at(batch), rules)


def prepare_batch(batch: bytes, rules: RecordRules, recoding: Recoding | None) -> bytes | Refusal | None:
    """The batch in another codec, a refusal as of `inspect_batch`, or None to keep it as it is. A job for workers."""
    data = _decompress_records(batch, EXPANDED_MAX)
    if isinstance(data, Refusal):
        return data
    header = header_at(batch)
    refusal = _inspect_records(data, header, rules)
    if refusal is not None or recoding is None:
        return refusal
    return bytes(recompress_batch(data, header, *recoding))


def _decompress_records(batch: Buffer, max_bytes: int) -> bytes | Refusal:
    header = header_at(batch)
    try:
        return decompress(header.attributes & CODEC_MASK, memoryview(batch)[HEADER_SIZE:], max_bytes)
    except CorruptRecord as error:
        return Refusal(error.code, error.message)


def _inspect_records(data: bytes, header: BatchHeader, rules: RecordRules) -> Refusal | None:
    try:
        wrong = _wrong_records(data, header, rules)
    except (CorruptRecord, RecordTooLarge) as error:
        # The checksum matches, so the producer made these bytes and would only send them again:
        # CORRUPT_MESSAGE, which producers retry, would be the wrong answer.
        return Refusal(ErrorCode.INVALID_RECORD, error.message)
    if not wrong:
        return None
    late = any(code == ErrorCode.INVALID_TIMESTAMP for code, _, _ in wrong)
    code = ErrorCode.INVALID_TIMESTAMP if late else ErrorCode.INVALID_RECORD
    named = tuple((index, why) for _, index, why in wrong[:TOLD_MAX])
    text = f"{len(wrong)} of {header.record_count} records are refused, the first: record {named[0][0]} {named[0][1]}"
    return Refusal(code, text, named)


def _wrong_records(data: bytes, header: BatchHeader, rules: RecordRules) -> list[tuple[ErrorCode, int, str]]:
    """(code, index, reason) of every record at fault. Raises CorruptRecord when the records cannot be parsed."""
    need_keys, now_ms, before, after, record_max = rules
    wrong: list[tuple[ErrorCode, int, str]] = []
    earliest, latest = max(0, now_ms - before), now_ms + after
    base = header.base_offset
    for index, (offset, timestamp, key, _) in enumerate(lean_records_in(data, header, record_max)):
        # Only compaction leaves gaps; a producer has given each record the next offset.
        if offset - base != index:
            raise CorruptRecord(f"record {index} has the offset delta {offset - base}")
        if key is None and need_keys:
            wrong.append((ErrorCode.INVALID_RECORD, index, "has no key, which a compacted topic needs"))
        if not earliest <= timestamp <= latest and timestamp != -1:
            why = f"has the timestamp {timestamp}, which is not within {before} ms before and {after} ms after {now_ms}"
            wrong.append((ErrorCode.INVALID_TIMESTAMP, index, why))
    return wrong
