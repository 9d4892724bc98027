"""The records that an application gets, and the decoder that makes them of fetched batches.

Zone: pure.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import dropwhile, repeat
from typing import Any, Final, NamedTuple

from ottla.client.consumer.settings import Deserializer
from ottla.client.errors import CorruptBatchError, DeserializationError
from ottla.client.fetching.batches import Fetched, visible_batches
from ottla.client.records import MAX_BATCH_BYTES
from ottla.client.schemas.contexts import MessageField, RecordDeserializer, SerializationContext
from ottla.record.batch import BatchHeader, Headers, fields_in, open_batch
from ottla.record.errors import CorruptRecord
from ottla.types import TopicPartition

Columns = tuple[Iterator[int], Iterator[int], Iterator[bytes | None], Iterator[bytes | None], Iterator[Headers]]
DecodedColumns = Callable[[bytes, BatchHeader], Columns | None]


class ConsumerRecord(NamedTuple):
    """One record."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    """Milliseconds since 1970; -1: unknown."""
    timestamp_type: int
    """0: set by the producer (CreateTime), 1: set by the broker (LogAppendTime)."""
    key: Any
    """The result of `key.deserializer`, or bytes without one; None for a null key."""
    value: Any
    headers: tuple[tuple[str, bytes | None], ...]
    leader_epoch: int
    """Epoch of the leader that appended the record; -1: unknown."""


_new: Callable[[tuple[Any, ...]], ConsumerRecord] = partial(tuple.__new__, ConsumerRecord)
"""Four times as fast as the constructor of the class."""
WARM_UP: Final = 500_000
"""Number of records to decode the plain way before numba is imported: importing it takes as long as numba saves on
these. If the program has imported numba already, it is used at once."""


class Decoder:
    """Decodes fetched batches to records."""

    __slots__ = ("_at_once", "_check_crcs", "_key", "_left", "_value")

    def __init__(
        self, check_crcs: bool, key: Deserializer | None, value: Deserializer | None, warm_up: int | None = WARM_UP
    ) -> None:
        """warm_up: number of records to decode the plain way before numba is imported; None: all of them."""
        self._check_crcs = check_crcs
        self._key = _of_record(key, MessageField.KEY)
        self._value = _of_record(value, MessageField.VALUE)
        self._left = warm_up
        self._at_once: DecodedColumns | None = None

    def decode_records(self, fetched: Fetched) -> Iterator[ConsumerRecord]:
        """The application's records from `fetch_offset` on. Raises CorruptBatchError, DeserializationError."""
        view, tp = fetched.records, fetched.tp
        for pos, header in visible_batches(view, tp, fetched.aborted, check_crcs=self._check_crcs):
            try:
                yield from self._decode_batch(fetched, pos, header)
            except CorruptRecord as error:
                cause = f"{tp}: the batch at offset {header.base_offset}: {error.message}"
                raise CorruptBatchError(cause) from error

    def _decode_batch(self, fetched: Fetched, pos: int, header: BatchHeader) -> Iterator[ConsumerRecord]:
        data, _ = open_batch(fetched.records, pos, max_bytes=MAX_BATCH_BYTES)
        (topic, partition), start = fetched.tp, fetched.fetch_offset
        kind, epoch = int(header.is_append_time), header.leader_epoch
        every: Iterator[ConsumerRecord]
        if (columns := self._decode_columns(data, header)) is not None:
            offsets, *rest = (*columns[:2], repeat(kind), *columns[2:], repeat(epoch))
            every = map(_new, zip(repeat(topic), repeat(partition), offsets, *rest, strict=False))
        else:
            every = (
                _new((topic, partition, offset, timestamp, kind, key, value, headers, epoch))
                for offset, timestamp, key, value, headers in fields_in(data, header)
            )
        # Brokers return whole batches, so the first one may begin before the requested offset.
        if header.base_offset < start:
            every = dropwhile(lambda record: record.offset < start, every)
        return every if self._key is None and self._value is None else map(self._deserialize_record, every)

    def _decode_columns(self, data: bytes, header: BatchHeader) -> Columns | None:
        """The columns of a batch, decoded at once; None: decode it the plain way."""
        if self._left is not None and self._left > 0:
            self._left -= header.record_count
            if self._left <= 0 or sys.modules.get("numba") is not None:
                self._left = 0
                self._at_once = load_numba_decoder()
        return None if self._at_once is None else self._at_once(data, header)

    def _deserialize_record(self, record: ConsumerRecord) -> ConsumerRecord:
        key, value = record.key, record.value
        try:
            if self._key is not None and key is not None:
                key = self._key(record, key)
            if self._value is not None and value is not None:
                value = self._value(record, value)
        except Exception as error:
            raise DeserializationError(TopicPartition(record.topic, record.partition), record.offset, error) from error
        return record._replace(key=key, value=value)


def _of_record(deserializer: Deserializer | None, field: str) -> Callable[[ConsumerRecord, bytes], Any] | None:
    """The deserializer as a function of the record and the bytes."""
    if deserializer is None:
        return None
    if isinstance(deserializer, RecordDeserializer):
        in_context = deserializer
        return lambda record, data: in_context(data, SerializationContext(record.topic, field, record.headers))
    plain = deserializer
    return lambda record, data: plain(record.topic, data)


@cache
def load_numba_decoder() -> DecodedColumns | None:
    """The decoder of the extra `fast`, if that is installed."""
    try:
        from ottla.client.consumer.numba_decoder import columns_at_once  # noqa: PLC0415 - numba is optional and slow to import
    except (ImportError, RuntimeError):  # no numba, or no writable directory for its compiled code
        return None
    return columns_at_once
