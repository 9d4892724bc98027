"""Old messages converted to batches of v2, against the records that they were made from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messagesets import GZIP, LZ4, SNAPPY, kept_set, message

from ottla.record.batch import Record, batches_of, crc_ok, encode_batch, records_of
from ottla.record.errors import CorruptRecord
from ottla.record.up_conversion import TOGETHER, convert_to_v2

LIMIT = 1 << 20
SETS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0, GZIP, SNAPPY, LZ4]),
        st.integers(0, 5),
        st.lists(st.tuples(st.integers(0, 2**40), st.integers(0, 3), st.integers(-1, 9000)), min_size=1, max_size=6),
    ),
    max_size=6,
)


def made(offset: int, rows, magic: int) -> list[Record]:
    records = []
    for stamp, gap, size in rows:
        offset += gap
        value = None if size < 0 else b"v" * size
        records.append(Record(offset, stamp if magic else -1, b"k%d" % gap if gap else None, value))
        offset += 1
    return records


@given(SETS)
def test_the_records_are_the_same(sets) -> None:
    chunk, expected, offset = b"", [], 0
    for magic, codec, gap, rows in sets:
        records = made(offset + gap, rows, magic)
        offset = records[-1].offset + 1
        expected += records
        if magic == 2:
            chunk += bytes(encode_batch(records, base_offset=records[0].offset, codec=codec))
        else:
            chunk += kept_set(magic, codec, records)
    found = convert_to_v2(chunk, LIMIT)
    headers = list(batches_of(found))
    assert [record for at, _ in headers for record in records_of(found, at, max_bytes=LIMIT)] == expected
    assert all(crc_ok(memoryview(found), at, at + header.size) for at, header in headers)
    assert sum(header.size for _, header in headers) == len(found)
    assert all(header.magic == 2 for _, header in headers)


def test_plain_messages_become_few_batches() -> None:
    records = [Record(at, at, b"k", b"v" * 10) for at in range(4 * TOGETHER // 45)]
    chunk = kept_set(1, 0, records)
    found = convert_to_v2(chunk, LIMIT)
    assert len(list(batches_of(found))) <= 6
    assert len(found) < len(chunk)


def test_the_leaders_time_stays_the_leaders() -> None:
    chunk = b"".join(
        message(1, None, b"v", offset=at, timestamp=stamp, attributes=8) for at, stamp in enumerate([5, 5, 9])
    )
    found = convert_to_v2(chunk, LIMIT)
    headers = [header for _, header in batches_of(found)]
    assert [(h.is_append_time, h.max_timestamp, h.record_count) for h in headers] == [(True, 5, 2), (True, 9, 1)]


def test_damage_is_not_given_a_checksum_that_fits() -> None:
    chunk = bytearray(kept_set(1, 0, [Record(0, 5, b"k", b"v")]))
    chunk[-1] ^= 1
    with pytest.raises(CorruptRecord, match="checksum"):
        convert_to_v2(bytes(chunk), LIMIT)
