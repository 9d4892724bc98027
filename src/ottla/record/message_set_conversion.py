"""Converts message sets of formats v0 and v1, which old clients produce, to one batch of format v2.

Zone: pure. Checks and converts as Apache Kafka's broker does (KIP-31, KIP-32, KIP-98); `legacy` has the layout. Offsets
that producers set are ignored: only the order of messages counts.

A set that ends in the middle of a message is refused: Kafka drops the cut message and acknowledges the set.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_POS,
    MAGIC_V2,
    BatchHeader,
    encode_record_body,
    put_header,
    seal_crc,
)
from ottla.record.compression import Codec, compress
from ottla.record.crc import Buffer
from ottla.record.errors import CorruptRecord
from ottla.record.legacy import OVERHEAD, TIMESTAMP_TYPE, Message, inner_messages, message_at
from ottla.record.validation import EXPANDED_MAX
from ottla.record.varint import encode_varint
from ottla.types import NO_TIMESTAMP

KEEP_CODEC: Final = -1
"""Keep the codec that the producer chose (compression.type=producer)."""
RECORDS_MAX: Final = 500_000
"""The most messages of one set: small wrappers can expand to more than fit a request, and converting them takes time.
100 times as many as producers of that age send."""
_SIZE: Final = Struct(">i")
_SIZE_POS: Final = 8
TIMESTAMP_MAX: Final = 2**63 - 2
"""The largest timestamp whose distance from a missing one (-1) fits an int64."""


class TopicRules(NamedTuple):
    """The settings of the topic."""

    codec: int = KEEP_CODEC
    level: int | None = None
    max_bytes: int = 2**31 - 1
    """max.message.bytes: of each message as it arrives, and of the batch that is made of them."""
    earliest_ms: int = NO_TIMESTAMP
    """Timestamps outside `earliest_ms` … `latest_ms` are refused; missing ones (-1) never."""
    latest_ms: int = TIMESTAMP_MAX
    need_keys: bool = False
    """Whether the topic is compacted."""


def is_message_set(records: memoryview) -> bool:
    """Whether `records` are of format v0 or v1, or too short for any format."""
    return len(records) <= MAGIC_POS or records[MAGIC_POS] < MAGIC_V2


def convert_message_set(view: Buffer, rules: TopicRules, expanded_max: int = EXPANDED_MAX) -> bytearray:
    """The batch of all messages in a set, in their order. Raises ApiError:

    CORRUPT_MESSAGE               invalid lengths, formats or checksums, also of messages in wrappers; no message
    MESSAGE_TOO_LARGE             a message, or the batch, of more than max_bytes; more than RECORDS_MAX messages
    UNSUPPORTED_COMPRESSION_TYPE  a codec that these formats do not have
    INVALID_TIMESTAMP             outside the rules, below -1, or claimed to be LogAppendTime
    INVALID_RECORD                a null key where keys are needed
    ExpandsTooFar                 (CORRUPT_MESSAGE) wrappers of more than `expanded_max` bytes in all
    """
    batch = bytearray(HEADER_SIZE)
    count, base, largest, codec = 0, NO_TIMESTAMP, NO_TIMESTAMP, 0
    for codec, message in _set_messages(view, rules, expanded_max):
        timestamp = message.timestamp
        _check_message(message, count, rules)
        if not count:
            base = timestamp
        largest = max(largest, timestamp)
        body = encode_record_body(count, timestamp - base, message.key, message.value)
        batch += encode_varint(len(body))
        batch += body
        count += 1
        # An uncompressed batch only grows: refuse it as soon as it is too large, before all of it is built.
        if not codec and len(batch) > rules.max_bytes:
            raise _too_large(len(batch), rules.max_bytes)
        if count > RECORDS_MAX:
            raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"more than {RECORDS_MAX} messages in a set")
    if codec:
        packed = compress(codec, memoryview(batch)[HEADER_SIZE:], rules.level)
        batch = bytearray(HEADER_SIZE) + packed
    if len(batch) > rules.max_bytes:
        raise _too_large(len(batch), rules.max_bytes)
    return _seal_batch(batch, codec, count, base, largest)


def _seal_batch(batch: bytearray, codec: int, count: int, base: int, largest: int) -> bytearray:
    length = len(batch) - LOG_OVERHEAD
    put_header(batch, BatchHeader(0, length, -1, MAGIC_V2, 0, codec, count - 1, base, largest, -1, -1, -1, count))
    seal_crc(batch, 0, len(batch))
    return batch


def convert_job(records: bytes, rules: tuple[int, int | None, int, int, int, bool]) -> bytes | tuple[int, str]:
    """`convert_message_set` as a job for workers: the batch, or the error's code and text."""
    try:
        return bytes(convert_message_set(memoryview(records), TopicRules(*rules)))
    except ApiError as error:
        return int(error.code), error.message


def _too_large(size: int, max_bytes: int) -> ApiError:
    return ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes and more, max.message.bytes is {max_bytes}")


def _set_entries(view: Buffer, max_bytes: int) -> Iterator[Message]:
    """The set's own entries, wrappers as they are."""
    pos = 0
    # `message_at` refuses an empty set; without the second condition it would become a batch without records.
    while pos < len(view) or not pos:
        if len(view) - pos >= OVERHEAD:
            size = _SIZE.unpack_from(view, pos + _SIZE_POS)[0] + OVERHEAD
            if size > max_bytes:
                raise ApiError(ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes, max.message.bytes is {max_bytes}")
        entry = message_at(view, pos)
        if not entry.valid:
            raise CorruptRecord(f"message {entry.offset} of the set does not match its checksum")
        if entry.codec > Codec.LZ4:
            raise ApiError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"codec {entry.codec} in format v{entry.magic}")
        if entry.attributes & TIMESTAMP_TYPE and entry.magic:
            raise ApiError(ErrorCode.INVALID_TIMESTAMP, "producers do not set the timestamp type LogAppendTime")
        yield entry
        pos += entry.size


def _set_messages(view: Buffer, rules: TopicRules, expanded_max: int) -> Iterator[tuple[int, Message]]:
    """The messages that hold records, plain or in wrappers; with each, the batch's codec as known so far.

    That is the codec of the rules, or that of the last wrapper.
    """
    codec = max(rules.codec, 0)
    left = expanded_max
    for entry in _set_entries(view, rules.max_bytes):
        if not entry.codec:
            yield codec, entry
            continue
        codec = entry.codec if rules.codec == KEEP_CODEC else rules.codec
        before = left
        for message in inner_messages(entry, left):
            if not message.valid:
                raise CorruptRecord(f"a message in the wrapper {entry.offset} does not match its checksum")
            left -= message.size
            yield codec, message
        if left == before:
            raise CorruptRecord("a wrapper without messages")


def _check_message(message: Message, number: int, rules: TopicRules) -> None:
    if rules.need_keys and message.key is None:
        raise ApiError(ErrorCode.INVALID_RECORD, f"message {number} has no key, a compacted topic needs one")
    stamp = message.timestamp
    if stamp != NO_TIMESTAMP and not max(0, rules.earliest_ms) <= stamp <= rules.latest_ms:
        raise ApiError(
            ErrorCode.INVALID_TIMESTAMP,
            f"timestamp {stamp} of message {number} is not within {rules.earliest_ms} and {rules.latest_ms}",
        )
