"""One batch of a producer: its encoded records, its header and its outcome.

Zone: pure. `partition_queue` and `accumulator` decide when a batch is sent. Records are copied into the batch at once,
so the caller may reuse its buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from ottla.client.errors import ClientError, UsageError
from ottla.record.batch import (
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC_V2,
    TRANSACTIONAL,
    BatchHeader,
    Headers,
    Record,
    put_header,
    records_in,
    seal_crc,
)
from ottla.record.compression import compress, decompress
from ottla.record.varint import encode_varint
from ottla.types import NO_OFFSET, NO_TIMESTAMP, TopicPartition
from ottla.utf8 import encode_text

NO_SEQUENCE: Final = -1
_SHORT: Final = tuple(encode_varint(number) for number in range(512))
"""The varints of 0 … 511, which cover most lengths and deltas."""
# Lengths in the format are int32: no batch of ours was larger before its compression.
_UNPACKED_MAX: Final = 2**31 - 1

Callback = Callable[[int, Any], None]


class ProducerBatch:
    """Records for one partition. Its states in order: growing, sealed, done.

    A batch that was split is decided when all its parts are.
    """

    __slots__ = (
        "_packing",
        "adrift",
        "attempts",
        "base_offset",
        "base_sequence",
        "base_timestamp",
        "buffer",
        "callbacks",
        "callbacks_done",
        "codec",
        "count",
        "created",
        "done",
        "error",
        "expires",
        "log_append_time",
        "max_timestamp",
        "on_wire",
        "ordinal",
        "parts",
        "producer_epoch",
        "producer_id",
        "reserved",
        "retry_at",
        "room",
        "sealed",
        "tp",
        "uncertain",
    )

    def __init__(self, tp: TopicPartition, room: int, timestamp: int, now: float, expires: float) -> None:
        """room: the size, including the header, up to which more records may be added; the first one always fits.

        now, expires: seconds of the clock of the core.
        """
        self.tp = tp
        self.room = room
        self.created = now
        self.expires = expires
        self.buffer: bytearray | memoryview = bytearray(HEADER_SIZE)
        """Room for the header, then the records, which are compressed before the first attempt."""
        self.count = 0
        self.base_timestamp = timestamp
        self.max_timestamp = timestamp
        self.callbacks: list[tuple[int, int, Any]] | None = None
        """(index, timestamp, callback) of the records with a callback."""
        self.reserved = 0
        """Bytes of buffer.memory that this batch uses."""
        self.sealed = False
        self.codec = 0
        """The codec of the buffer at present."""
        self._packing: tuple[int, int | None] | None = None
        """Codec and level to compress with before it is sent: that takes time, so it is done without a lock."""
        self.producer_id = -1
        self.producer_epoch = -1
        self.base_sequence = NO_SEQUENCE
        self.ordinal = 0
        """Its number among the batches of its partition, in the order of sequence numbers."""
        self.attempts = 0
        """How often it was sent so far."""
        self.retry_at = 0.0
        self.on_wire = False
        self.uncertain = False
        """An attempt had no answer, or an error after which the batch may be in the log."""
        self.adrift = False
        """An attempt had no answer: the broker may still receive it, after later attempts were answered."""
        self.done = False
        self.base_offset = NO_OFFSET
        self.log_append_time = NO_TIMESTAMP
        self.error: ClientError | None = None
        self.parts: list[ProducerBatch] = []
        self.callbacks_done = False
        """Whether the callbacks of its records were called."""

    @classmethod
    def from_encoded(
        cls, tp: TopicPartition, buffer: memoryview, count: int, base_timestamp: int, max_timestamp: int
    ) -> ProducerBatch:
        """A batch of encoded records, with room for the header in front; takes over the buffer."""
        batch = cls(tp, 0, base_timestamp, 0.0, 0.0)
        batch.buffer = buffer
        batch.count = count
        batch.max_timestamp = max_timestamp
        return batch

    @property
    def is_decided(self) -> bool:
        """Whether the outcome of every record is known."""
        return all(part.is_decided for part in self.parts) if self.parts else self.done

    @property
    def all_callbacks_done(self) -> bool:
        """Whether the callbacks of every record have returned."""
        return all(part.all_callbacks_done for part in self.parts) if self.parts else self.callbacks_done

    @property
    def size(self) -> int:
        """The size at present."""
        return len(self.buffer)

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, or NO_SEQUENCE."""
        # Sequence numbers are int32: 0 follows 2**31 - 1, as in Kafka's DefaultRecordBatch.
        return NO_SEQUENCE if self.base_sequence < 0 else (self.base_sequence + self.count - 1) & 0x7FFF_FFFF

    def append(self, timestamp: int, key: bytes | None, value: bytes | None, headers: Headers) -> bool:
        """Add a record; False, without a change, if it does not fit or the batch is sealed."""
        if self.sealed:
            return False
        # The first record always fits: one that is larger than batch.size gets a batch of its own, as in Java.
        body = record_body(self.count, timestamp - self.base_timestamp, key, value, headers)
        size = len(body)
        buffer: Any = self.buffer  # a bytearray until it is sealed
        prefix = _SHORT[size] if size < 512 else encode_varint(size)
        if self.count and len(buffer) + len(prefix) + size > self.room:
            return False
        buffer += prefix
        buffer += body
        self.count += 1
        if timestamp > self.max_timestamp:  # noqa: PLR1730  max() costs more than the rest of the line
            self.max_timestamp = timestamp
        return True

    def seal_batch(self, codec: int, level: int | None) -> None:
        """Accept no more records; `encode_batch` will compress them with `codec`. Idempotent."""
        if not self.sealed:
            self.sealed = True
            self._packing = (codec, level) if codec else None

    def put_identity(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        """Set producer id, epoch and first sequence number, which all attempts use."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.base_sequence = base_sequence

    def encode_batch(self, *, transactional: bool = False) -> bytearray | memoryview:
        """The complete batch, after writing its header and checksum; this is the batch's own buffer."""
        assert self.sealed
        assert self.count
        # The order matters: compression decides the size and the codec in the header, and the CRC covers the header
        # from its attributes on.
        if self._packing is not None:
            self._compress_records(*self._packing)
            self._packing = None
        put_header(self.buffer, self._batch_header(transactional=transactional))
        seal_crc(self.buffer, 0, len(self.buffer))
        return self.buffer

    def _compress_records(self, codec: int, level: int | None) -> None:
        packed = compress(codec, memoryview(self.buffer)[HEADER_SIZE:], level)
        self.buffer = bytearray(HEADER_SIZE) + packed
        self.codec = codec

    def _batch_header(self, *, transactional: bool = False) -> BatchHeader:
        # Base offset 0 and leader epoch -1: the leader writes both. They lie before the bytes that the CRC covers, so
        # that it need not compute the CRC again.
        attributes = self.codec | (TRANSACTIONAL if transactional else 0)
        return BatchHeader(
            0, len(self.buffer) - LOG_OVERHEAD, -1, MAGIC_V2, 0, attributes, self.count - 1, self.base_timestamp,
            self.max_timestamp, self.producer_id, self.producer_epoch, self.base_sequence, self.count,
        )  # fmt: skip

    def decode_records(self) -> Iterator[Record]:
        """The decoded records; their `offset` is the index in the batch."""
        data = decompress(self.codec, memoryview(self.buffer)[HEADER_SIZE:], _UNPACKED_MAX)
        return records_in(data, self._batch_header())

    def split_batch(self) -> list[ProducerBatch]:
        """Split a batch that is too large for a broker into two halves by number of records.

        It has at least two records. The halves keep the sequence numbers of the whole, and are not compressed.
        """
        assert self.count > 1
        records = list(self.decode_records())
        middle = len(records) // 2
        halves = [self._make_part(records[:middle], 0), self._make_part(records[middle:], middle)]
        self.parts = halves
        return halves

    def _make_part(self, records: list[Record], first: int) -> ProducerBatch:
        part = ProducerBatch(self.tp, _UNPACKED_MAX, records[0].timestamp, self.created, self.expires)
        for record in records:
            part.append(record.timestamp, record.key, record.value, record.headers)
        # The second half continues the sequence numbers after the first, as if it had always been a batch.
        if self.base_sequence >= 0:
            part.put_identity(self.producer_id, self.producer_epoch, (self.base_sequence + first) & 0x7FFF_FFFF)
        part.attempts = self.attempts
        part.ordinal = self.ordinal
        chosen = [one for one in self.callbacks or () if first <= one[0] < first + len(records)]
        part.callbacks = [(index - first, stamp, whom) for index, stamp, whom in chosen] or None
        return part

    def leaf_batches(self) -> Iterator[ProducerBatch]:
        """The batches that contain its records now (itself, or its parts), in order."""
        for part in self.parts:
            yield from part.leaf_batches()
        if not self.parts:
            yield self

    def leaf_of(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that contains record `index` now, and its index there."""
        batch = self
        while batch.parts:
            for part in batch.parts:
                if index < part.count:
                    batch = part
                    break
                index -= part.count
        return batch, index


def record_body(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: Headers
) -> bytes:
    """A record of format v2 without its length.

    Raises UsageError for a key, value or header that is not bytes. Hot: short records without key take a fast path.
    """
    # attributes (one byte, 0) · timestamp delta · offset delta · key's length · key · value's length · value · number
    # of headers · headers. Lengths and deltas are zigzag varints: the byte 1 is -1, the length of null.
    if key is None and type(value) is bytes and not headers and offset_delta < 512 and 0 <= timestamp_delta < 512:
        size = len(value)
        length = _SHORT[size] if size < 512 else encode_varint(size)
        return b"\0%b%b\1%b%b\0" % (_SHORT[timestamp_delta], _SHORT[offset_delta], length, value)
    parts = [b"\0", encode_varint(timestamp_delta), encode_varint(offset_delta), _encode_field("key", key)]
    parts += [_encode_field("value", value), encode_varint(len(headers))]
    for name, content in headers:
        if not isinstance(name, str):
            raise UsageError(f"a header's name is {type(name).__name__}, not str")
        try:
            raw = name.encode()
        except UnicodeEncodeError:
            raw = _odd_name(name)
        parts += [_encode_field("header's name", raw), _encode_field("header", content)]
    return b"".join(parts)


def _odd_name(name: str) -> bytes:
    try:
        return encode_text(name)
    except UnicodeEncodeError:
        raise UsageError(f"a header's name, {name!r}, has half of a surrogate pair", "Give valid text") from None


def _encode_field(what: str, content: bytes | None) -> bytes:
    if content is None:
        return b"\1"
    if not isinstance(content, bytes | bytearray | memoryview):
        raise UsageError(
            f"a {what} is {type(content).__name__}, not bytes", "Encode it, or give the producer a serializer"
        )
    raw = bytes(content)
    return encode_varint(len(raw)) + raw
