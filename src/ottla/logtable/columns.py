"""Converts batches of a segment to rows of the table.

Zone: pure. Fields of a batch header are laid out once per batch and repeated by index; the records are
decoded in `ottla.client.columns.columnar`. Only messages of formats v0 and v1 are converted one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ottla.client.columns.columnar import HEADER_TYPE, Columns, decode_batches
from ottla.record import legacy
from ottla.record.batch import BatchHeader
from ottla.record.errors import CorruptRecord
from ottla.types import TopicPartition

SCHEMA: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, timestampType int, key binary, value binary, "
    "headers array<struct<key: string, value: binary>>, leaderEpoch int, producerId bigint, producerEpoch int, "
    "sequence int, transaction string, control string, compression string, batchBaseOffset bigint, "
    "batchLastOffset bigint, magic int, segment string, position bigint, belowLogStart boolean"
)
_RECORD_FIELDS: Final = [
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", tz="UTC")),
    ("timestampType", pa.int32()),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.field("element", HEADER_TYPE))),
    ("sequence", pa.int32()),
    ("belowLogStart", pa.bool_()),
]
_BATCH_FIELDS: Final = [
    ("topic", pa.string()),
    ("partition", pa.int32()),
    ("leaderEpoch", pa.int32()),
    ("producerId", pa.int64()),
    ("producerEpoch", pa.int32()),
    ("transaction", pa.string()),
    ("control", pa.string()),
    ("compression", pa.string()),
    ("batchBaseOffset", pa.int64()),
    ("batchLastOffset", pa.int64()),
    ("magic", pa.int32()),
    ("segment", pa.string()),
    ("position", pa.int64()),
]
_BATCH_SCHEMA: Final = pa.schema(_BATCH_FIELDS)
_TYPES: Final = dict(_RECORD_FIELDS + _BATCH_FIELDS)
_NAMES: Final = [each.split()[0] for each in SCHEMA.replace("key: string, value: binary", "").split(", ")]
ARROW_SCHEMA: Final = pa.schema([(name, _TYPES[name]) for name in _NAMES])
_CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
_LAST_MS: Final = (2**63 - 1) // 1000
"""Spark counts microseconds: a timestamp beyond (the year 294247) is shown as this one."""
_LAST_OFFSET: Final = 2**63 - 1
_NO_TIMESTAMP_TYPE: Final = -1


class BatchPlace(NamedTuple):
    """Where batches were found."""

    tp: TopicPartition
    segment: str
    log_start: int


class FoundBatch(NamedTuple):
    """A batch whose records the table shows."""

    at: int
    """Its position in the bytes that it was read with."""
    position: int
    """Its position in the segment."""
    header: BatchHeader
    transaction: str | None
    control: str | None


def rows_of(data: memoryview, batches: Sequence[FoundBatch], place: BatchPlace) -> pa.RecordBatch:
    """The records of some batches. Raises CorruptRecord."""
    # The cleaner leaves batches without records, for the sequence numbers of their producers.
    batches = [each for each in batches if each.header.record_count]
    columns = decode_batches(data, [each.at for each in batches], headers=True)
    counts = np.array([each.header.record_count for each in batches], np.int64)
    numbers = np.repeat(np.arange(len(batches)), counts)
    about = _batch_columns(batches, place).take(_number_array(pa.int64(), numbers))
    fields = {
        **_record_columns(columns, batches, numbers, place),
        **{name: about.column(name) for name, _ in _BATCH_FIELDS},
    }
    return pa.RecordBatch.from_arrays([fields[name] for name in _NAMES], schema=ARROW_SCHEMA)


def _record_columns(
    columns: Columns, batches: Sequence[FoundBatch], numbers: npt.NDArray[np.int64], place: BatchPlace
) -> dict[str, pa.Array]:
    micros = np.clip(columns.timestamps, -_LAST_MS, _LAST_MS) * 1000
    bases = np.array([each.header.base_offset for each in batches], np.int64)[numbers]
    firsts = np.array([each.header.base_sequence for each in batches], np.int64)[numbers]
    # A sequence number follows the offset also where compaction has removed records; it wraps from 2^31-1 to 0.
    sequences = ((firsts + columns.offsets - bases) & 0x7FFFFFFF).astype(np.int32)
    below = np.packbits(columns.offsets < place.log_start, bitorder="little")
    return {
        "offset": _number_array(pa.int64(), columns.offsets),
        "timestamp": _number_array(_TYPES["timestamp"], micros, columns.timestamps != -1),
        "timestampType": _number_array(pa.int32(), columns.timestamp_types),
        "key": columns.keys,
        "value": columns.values,
        "headers": columns.headers,
        "sequence": _number_array(pa.int32(), sequences, firsts >= 0),
        "belowLogStart": pa.Array.from_buffers(pa.bool_(), len(numbers), [None, pa.py_buffer(below)]),
    }


def _batch_columns(batches: Iterable[FoundBatch], place: BatchPlace) -> pa.RecordBatch:
    """One row per batch."""
    rows = [
        {
            "topic": place.tp.topic,
            "partition": place.tp.partition,
            "leaderEpoch": _known_or_none(header.leader_epoch),
            "producerId": _known_or_none(header.producer_id),
            "producerEpoch": _known_or_none(header.producer_epoch),
            "transaction": transaction,
            "control": control,
            "compression": _codec_name(header.codec),
            "batchBaseOffset": header.base_offset,
            "batchLastOffset": header.last_offset,
            "magic": header.magic,
            "segment": place.segment,
            "position": position,
        }
        for _, position, header, transaction, control in batches
    ]
    return pa.RecordBatch.from_pylist(rows, schema=_BATCH_SCHEMA)


def old_rows(data: bytes, position: int, place: BatchPlace, max_bytes: int) -> pa.RecordBatch:
    """The messages of an entry of format v0 or v1. Raises CorruptRecord."""
    entry = legacy.message_at(data, 0)
    if not entry.valid:
        raise CorruptRecord(f"the message at offset {entry.offset} does not match its checksum")
    codec = _codec_name(entry.codec)
    rows = [_old_row(message, entry, codec, position, place) for message in legacy.messages_in(entry, max_bytes)]
    if any(not 0 <= row["offset"] <= _LAST_OFFSET for row in rows):
        raise CorruptRecord("a message has an offset that is negative or beyond 2**63-1")
    for row in rows:
        row["batchBaseOffset"] = rows[0]["offset"]
    return pa.RecordBatch.from_pylist(rows, schema=ARROW_SCHEMA)


def _old_row(
    message: legacy.Message, entry: legacy.Message, codec: str, position: int, place: BatchPlace
) -> dict[str, Any]:
    stamp = int(bool(entry.attributes & legacy.TIMESTAMP_TYPE)) if message.magic else _NO_TIMESTAMP_TYPE
    return {
        "topic": place.tp.topic,
        "partition": place.tp.partition,
        "offset": message.offset,
        "timestamp": None if message.timestamp == -1 else max(-_LAST_MS, min(message.timestamp, _LAST_MS)) * 1000,
        "timestampType": stamp,
        "key": message.key,
        "value": message.value,
        "compression": codec,
        "batchLastOffset": entry.offset,
        "magic": message.magic,
        "segment": place.segment,
        "position": position,
        "belowLogStart": message.offset < place.log_start,
    }


def rows_from_offset(rows: pa.RecordBatch, start: int) -> pa.RecordBatch:
    """The rows from offset `start` on."""
    # DeleteRecords may end within a batch, of which consumers see the rest only.
    offsets = rows.column(_NAMES.index("offset")).to_numpy()
    return rows.slice(int(np.searchsorted(offsets, start)))


def group_batches(batches: Iterable[FoundBatch], packed_bytes: int) -> Iterator[list[FoundBatch]]:
    """Batches to decode together: a group ends when its compressed batches reach `packed_bytes`, so that the
    decompressed records of a group stay small."""
    group: list[FoundBatch] = []
    packed = 0
    for each in batches:
        group.append(each)
        packed += each.header.size if each.header.codec else 0
        if packed >= packed_bytes:
            yield group
            group, packed = [], 0
    if group:
        yield group


def _known_or_none(number: int) -> int | None:
    return None if number < 0 else number


def _codec_name(number: int) -> str:
    return _CODECS[number] if number < len(_CODECS) else f"unknown({number})"


def _number_array(kind: pa.DataType, numbers: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    bits = None
    if valid is not None and not valid.all():
        bits = pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(kind, len(numbers), [bits, pa.py_buffer(np.ascontiguousarray(numbers))])
