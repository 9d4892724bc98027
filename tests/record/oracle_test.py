"""Differential tests: batches against aiokafka's record module, in both directions, for every codec."""

from __future__ import annotations

import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.record import legacy
from ottla.record.batch import Record, crc_ok, encode_batch, header_at, records_of
from ottla.record.validation import validate_produced

CODECS = st.integers(0, 4)
NULLABLE = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(max_size=8), NULLABLE), max_size=3).map(tuple)
RECORDS = st.lists(st.tuples(st.integers(1, 1 << 41), NULLABLE, NULLABLE, HEADERS), min_size=1, max_size=8).map(
    lambda rows: [Record(i, *row) for i, row in enumerate(rows)]
)


@pytest.mark.slow
@settings(max_examples=60)
@given(RECORDS, CODECS, st.booleans(), st.integers(0, 2**31 - 100))
def test_aiokafkas_batches_are_read_and_equal_ours(
    records: list[Record], codec: int, transactional: bool, sequence: int
) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, int(transactional), 77, 3, sequence, 1 << 20)
    for record in records:
        builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    theirs = bytes(builder.build())
    assert crc_ok(memoryview(theirs), 0, len(theirs))
    assert list(records_of(theirs, 0, max_bytes=1 << 20)) == records
    validate_produced(memoryview(theirs), 0, len(theirs), records[-1].timestamp)
    ours = encode_batch(
        records,
        codec=header_at(theirs).codec,
        producer_id=77,
        producer_epoch=3,
        base_sequence=sequence,
        transactional=transactional,
        leader_epoch=header_at(theirs).leader_epoch,
    )
    if header_at(theirs).codec == 0:
        assert ours == theirs
    else:
        assert list(records_of(ours, 0, max_bytes=1 << 20)) == records


@settings(max_examples=60)
@given(RECORDS, CODECS, st.integers(0, 1 << 40))
def test_aiokafka_reads_our_batches(records: list[Record], codec: int, base_offset: int) -> None:
    moved = [record._replace(offset=record.offset + base_offset) for record in records]
    ours = encode_batch(moved, base_offset=base_offset, codec=codec, producer_id=5, producer_epoch=1, base_sequence=0)
    batch = DefaultRecordBatch(bytes(ours))
    assert batch.validate_crc()
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (5, 1, 0)
    assert (batch.base_offset, batch.last_offset_delta) == (base_offset, len(records) - 1)
    seen = [Record(r.offset, r.timestamp, r.key, r.value, tuple(r.headers)) for r in batch]
    assert seen == moved


@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (1, 3)])
def test_old_message_sets_of_aiokafka_are_read(magic: int, codec: int) -> None:
    rows = [(0, 1000, b"k", b"v"), (1, 1005, None, b"w" * 300), (2, 1010, b"l", None)]
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for offset, timestamp, key, value in rows:
        builder.append(offset, timestamp, key, value)
    theirs = bytes(builder.build())
    seen, pos = [], 0
    while pos < len(theirs):
        message = legacy.message_at(theirs, pos)
        assert message.valid
        assert message.codec == codec
        pos += message.size
        seen += list(legacy.messages_in(message, 1 << 20))
    if magic and codec:
        # A producer's wrapper has offset 0 until the broker assigns the last one.
        seen = [message._replace(offset=message.offset + 2) for message in seen]
    assert [(m.offset, m.timestamp if magic else 1000 + 5 * m.offset, m.key, m.value) for m in seen] == rows
