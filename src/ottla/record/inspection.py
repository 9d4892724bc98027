"""A produced batch, looked at record by record: for compacted topics, and where the broker recompresses.

Zone: pure. What a header cannot tell: whether the records are as many as it says, dense in their offsets, within the
times that the topic takes, and with keys. Small batches are looked at in the loop, others in a worker; a refusal is a
value, so that it comes through a worker's pipe. Which topics are looked at stands in docs/guarantees.md.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CODEC_MASK, HEADER_SIZE, LOG_OVERHEAD, BatchHeader, header_at
from ottla.record.compression import decompress
from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord
from ottla.record.headerless_records import LIMIT_MAX, RecordTooLarge, lean_records_in
from ottla.record.validation import EXPANDED_MAX, HeaderTuple, recoded

INLINE_BYTES: Final = 16 * 1024
"""A batch up to this size is looked at in the loop."""
INLINE_EXPANDED: Final = 64 * 1024
"""So much it may expand to there; what is more goes to a worker."""
INLINE_RECORDS: Final = 256
"""So many records take about a millisecond."""
TOLD_MAX: Final = 100
"""Records that an answer names at most."""


class RecordRules(NamedTuple):
    """What the records of a batch are held against."""

    need_keys: bool
    """Records without a key are refused: the topic is compacted."""
    now_ms: int
    """Wall time."""
    before_max_ms: int
    """message.timestamp.before.max.ms; for LogAppendTime no limit. Likewise the next."""
    after_max_ms: int
    record_max: int = LIMIT_MAX
    """max.decompressed.message.bytes: most bytes of a record in a compressed batch."""


class Recoding(NamedTuple):
    """The codec to which a batch is to be brought."""

    codec: int
    level: int | None


class Refusal(NamedTuple):
    """Why a batch is not taken."""

    code: int
    message: str
    records: tuple[tuple[int, str], ...] = ()
    """(index in the batch, what is wrong) of the first of the records that are at fault (KIP-467)."""


class RefusedRecords(ApiError):
    """Single records of a batch are not as the topic wants them: none of the batch is taken."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(ErrorCode(refusal.code), refusal.message)
        self.records = refusal.records


def is_small(header: HeaderTuple) -> bool:
    """Whether a batch can be looked at in the loop."""
    return header[1] + LOG_OVERHEAD <= INLINE_BYTES and header[12] <= INLINE_RECORDS


def inspect(batch: Buffer, rules: RecordRules, max_bytes: int = EXPANDED_MAX) -> Refusal | None:
    """Why the one batch in `batch`, whose header was validated, is refused; None when every record is fine.

    Headers of records are counted, not looked into.

    CORRUPT_MESSAGE    it cannot be decompressed, or expands to more than `max_bytes`
    INVALID_RECORD     records that are not as the header says, offsets with gaps, records without a key, or larger than
                       max.decompressed.message.bytes where the batch is compressed
    INVALID_TIMESTAMP  some timestamp lies outside of the topic's limits
    """
    found = _unpacked(batch, max_bytes)
    return found if isinstance(found, Refusal) else _judged(found, header_at(batch), rules)


def prepared(batch: bytes, rules: RecordRules, recoding: Recoding | None) -> bytes | Refusal | None:
    """The batch in another codec, a refusal as of `inspect`, or None: it is fine as it is. A job for workers."""
    data = _unpacked(batch, EXPANDED_MAX)
    if isinstance(data, Refusal):
        return data
    header = header_at(batch)
    refusal = _judged(data, header, rules)
    if refusal is not None or recoding is None:
        return refusal
    return bytes(recoded(data, header, *recoding))


def _unpacked(batch: Buffer, max_bytes: int) -> bytes | Refusal:
    header = header_at(batch)
    try:
        return decompress(header.attributes & CODEC_MASK, memoryview(batch)[HEADER_SIZE:], max_bytes)
    except CorruptRecord as error:
        return Refusal(error.code, error.message)


def _judged(data: bytes, header: BatchHeader, rules: RecordRules) -> Refusal | None:
    try:
        wrong = _wrong_records(data, header, rules)
    except (CorruptRecord, RecordTooLarge) as error:  # its checksum fits: it was sent like that, and will be again
        return Refusal(ErrorCode.INVALID_RECORD, error.message)
    if not wrong:
        return None
    late = any(code == ErrorCode.INVALID_TIMESTAMP for code, _, _ in wrong)
    code = ErrorCode.INVALID_TIMESTAMP if late else ErrorCode.INVALID_RECORD
    named = tuple((index, why) for _, index, why in wrong[:TOLD_MAX])
    text = f"{len(wrong)} of {header.record_count} records are refused, the first: record {named[0][0]} {named[0][1]}"
    return Refusal(code, text, named)


def _wrong_records(data: bytes, header: BatchHeader, rules: RecordRules) -> list[tuple[ErrorCode, int, str]]:
    """(code, index, what is wrong) of every record at fault. Raises CorruptRecord when they cannot be told apart."""
    need_keys, now_ms, before, after, record_max = rules
    wrong: list[tuple[ErrorCode, int, str]] = []
    earliest, latest = max(0, now_ms - before), now_ms + after
    base = header.base_offset
    for index, (offset, timestamp, key, _) in enumerate(lean_records_in(data, header, record_max)):
        if offset - base != index:
            raise CorruptRecord(f"record {index} has the offset delta {offset - base}")
        if key is None and need_keys:
            wrong.append((ErrorCode.INVALID_RECORD, index, "has no key, which a compacted topic needs"))
        if not earliest <= timestamp <= latest and timestamp != -1:
            why = f"has the timestamp {timestamp}, which is not within {before} ms before and {after} ms after {now_ms}"
            wrong.append((ErrorCode.INVALID_TIMESTAMP, index, why))
    return wrong
