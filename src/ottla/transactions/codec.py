"""Entries of the state machine ↔ records of `__transaction_state`.

Zone: pure. The bytes are Kafka's. Values are written in version 1, which has tagged fields, or in version 0 while the
cluster has transaction version 0. They are packed here by hand, and read with the declared messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final, NamedTuple

from ottla.record.errors import CorruptRecord
from ottla.record.internal.parsing import UnknownType, parse_record
from ottla.record.internal.transactions import TRANSACTION_RECORDS, TransactionLogKey, TransactionLogValue
from ottla.transactions.state import FLEXIBLE, Transaction, TransactionStatus, TransactionVersion, VersionOfCluster
from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.wire.codec import encode_bytes
from ottla.wire.primitives import uvarint

# The key:   version i16 = 0 | length i16 | transactional id
# The value: version i16 = 1 | producer id i64 | epoch i16 | time-out i32 | status i8 | partitions, compact
#            | last update i64 | start i64 | number of tagged fields, each: tag u8, length u8, value
_KEY_TYPE: Final = 0
_VALUE_VERSION: Final = 1
_OLD_VALUE_VERSION: Final = 0
"""As version 1, without tagged fields, and with fixed sizes of arrays and strings."""
_KEY: Final = Struct(">hh")
_HEAD: Final = Struct(">hqhib")
"""Version, producer id, epoch, timeout, status."""
_TAIL: Final = Struct(">qqB")
"""Last update, start, number of tagged fields."""
# A tagged field: its number, the size of its value, the value. Numbers and sizes are below 128, so that each varint is
# one byte.
_LONG_TAG: Final = Struct(">BBq")
_SHORT_TAG: Final = Struct(">BBh")
_INDEX: Final = Struct(">i")
_REMEMBERED: Final = 2000
_REMEMBERED_BYTES: Final = 200
"""Encoded sets of partitions are cached: at most `_REMEMBERED`, of at most `_REMEMBERED_BYTES` each."""


class Entry(NamedTuple):
    """The new state of a transactional id; None: it is removed."""

    transactional_id: str
    transaction: Transaction | None


class TransactionCodec:
    """Implements `Codec`."""

    newest_only = True

    def __init__(self, version: VersionOfCluster | None = None) -> None:
        """version: of the cluster; the newest one by default."""
        self._version = version or TransactionVersion()
        self._known: dict[frozenset[TopicPartition], bytes] = {}
        """Encoded sets of partitions. Producers use the same sets again, and each transaction writes its set twice."""

    def encode(self, entry: object) -> tuple[bytes, bytes | None]:
        """Key and value; no value removes the transactional id."""
        assert isinstance(entry, Entry)
        name = entry.transactional_id.encode("utf-8", "surrogateescape")
        key = _KEY.pack(_KEY_TYPE, len(name)) + name
        if entry.transaction is None:
            return key, None
        txn = entry.transaction
        # Asked for each record, because the level may change while a transaction is open.
        if self._version.level < FLEXIBLE and _fits_old_value(txn):
            return key, _pack_old_value(txn)
        if txn.status is TransactionStatus.EMPTY:
            return key, _pack_value(txn, b"\0")  # null for a producer that has no transaction yet
        return key, _pack_value(txn, self._known.get(txn.partitions) or self._cache_partitions(txn.partitions))

    def _cache_partitions(self, partitions: frozenset[TopicPartition]) -> bytes:
        packed = _packed_partitions(partitions)
        if len(packed) <= _REMEMBERED_BYTES:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[partitions] = packed
        return packed

    def decode(self, key: bytes | None, value: bytes | None) -> Entry | None:
        """The entry; None for a record of an unknown type. Raises CorruptRecord."""
        try:
            record = parse_record(TRANSACTION_RECORDS, key, value)
        except UnknownType:
            return None
        assert isinstance(record.key, TransactionLogKey)
        if record.value is None:
            return Entry(record.key.transactional_id, None)
        assert isinstance(record.value, TransactionLogValue)
        return Entry(record.key.transactional_id, _load_transaction(record.value))


def _pack_value(txn: Transaction, partitions: bytes) -> bytes:
    """The same bytes as an encoded TransactionLogValue. Hot: each transaction writes four."""
    # Tagged fields are written in ascending order, and only with values other than their defaults.
    tags: list[bytes] = []
    if txn.previous_producer_id != NO_PRODUCER_ID:
        tags.append(_LONG_TAG.pack(0, 8, txn.previous_producer_id))
    if txn.next_producer_id != NO_PRODUCER_ID:
        tags.append(_LONG_TAG.pack(1, 8, txn.next_producer_id))
    if txn.version:
        tags.append(_SHORT_TAG.pack(2, 2, txn.version))
    if txn.last_epoch != NO_PRODUCER_EPOCH:
        tags.append(_SHORT_TAG.pack(4, 2, txn.last_epoch))
    head = _HEAD.pack(_VALUE_VERSION, txn.producer_id, txn.epoch, txn.timeout_ms, txn.status)
    tail = _TAIL.pack(txn.update_ms, txn.start_ms, len(tags))
    return b"".join((head, partitions, tail, *tags))


def _fits_old_value(txn: Transaction) -> bool:
    """Whether version 0 has the fields that decide about the transaction: it began under version 0 or 1.

    Version 0 also lacks the identity before the last InitProducerId. So a producer that repeats it after a failover is
    fenced, as in Kafka.
    """
    return txn.next_producer_id == NO_PRODUCER_ID and not txn.version


def _pack_old_value(txn: Transaction) -> bytes:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(txn.partitions):
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=txn.producer_id,
        producer_epoch=txn.epoch,
        transaction_timeout_ms=txn.timeout_ms,
        transaction_status=txn.status,
        transaction_partitions=None if txn.status is TransactionStatus.EMPTY else _old_partitions(topics),
        transaction_last_update_timestamp_ms=txn.update_ms,
        transaction_start_timestamp_ms=txn.start_ms,
    )
    return _OLD_VALUE_VERSION.to_bytes(2) + encode_bytes(value, _OLD_VALUE_VERSION)


def _old_partitions(topics: Mapping[str, list[int]]) -> list[TransactionLogValue.PartitionsSchema]:
    schema = TransactionLogValue.PartitionsSchema
    return [schema(topic=topic, partition_ids=partitions) for topic, partitions in topics.items()]


def _packed_partitions(partitions: Iterable[TopicPartition]) -> bytes:
    """The encoded partitions, grouped by topic."""
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        topics.setdefault(topic, []).append(partition)
    pieces = [uvarint(len(topics) + 1)]
    for topic, indexes in topics.items():
        name = topic.encode("utf-8", "surrogateescape")
        pieces += (uvarint(len(name) + 1), name, uvarint(len(indexes) + 1))
        pieces += [_INDEX.pack(index) for index in indexes]
        # The topic's own tagged fields: none.
        pieces.append(b"\0")
    return b"".join(pieces)


def _load_transaction(value: TransactionLogValue) -> Transaction:
    return Transaction(
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        status=_parse_status(value.transaction_status),
        partitions=frozenset(
            TopicPartition(part.topic, partition)
            for part in value.transaction_partitions or ()
            for partition in part.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        last_epoch=value.last_producer_epoch,
        version=value.client_transaction_version,
    )


def _parse_status(number: int) -> TransactionStatus:
    try:
        return TransactionStatus(number)
    except ValueError:
        raise CorruptRecord(f"a transaction of status {number}") from None
