"""Records without their headers: the same records, in bounded memory, and with a bound for each."""

from __future__ import annotations

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.peak import peak_of

from ottla.errors import ErrorCode
from ottla.record.batch import HEADER_SIZE, Record, encode_batch, header_at, put_header, records_of, seal_crc
from ottla.record.conversion import for_old_reader
from ottla.record.errors import CorruptRecord
from ottla.record.headerless_records import RecordTooLarge, lean_records_of
from ottla.record.inspection import RecordRules, inspect_batch
from ottla.record.log_entries import first_from
from ottla.record.varint import encode_varint

NOW = 1_700_000_000_000
HEADERS = 200_000
FOREVER = 2**63 - 1
KEYED = RecordRules(True, NOW, FOREVER, FOREVER)
RECORDS = st.lists(
    st.builds(
        Record, st.just(0), st.integers(0, 2**40),
        st.none() | st.binary(max_size=90), st.none() | st.binary(max_size=90),
        st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple),
    ),
    min_size=1, max_size=8,
)  # fmt: skip


def with_headers(count: int, claimed: int | None = None) -> bytes:
    """A gzip batch of one record with `count` empty headers, whose header count is `claimed`."""
    body = b"\0\0\0\2k\1" + encode_varint(count if claimed is None else claimed) + b"\0\1" * count
    batch = bytearray(encode_batch([Record(0, NOW, b"k", b"v")])[:HEADER_SIZE])
    batch += gzip.compress(encode_varint(len(body)) + body)
    put_header(batch, header_at(batch)._replace(batch_length=len(batch) - 12, attributes=1))
    seal_crc(batch, 0, len(batch))
    return bytes(batch)


@given(RECORDS, st.integers(0, 4), st.integers(0, 1))
def test_headerless_records_equal_the_records(found: list[Record], codec: int, kind: int) -> None:
    found = [each._replace(offset=at) for at, each in enumerate(found)]
    batch = bytes(encode_batch(found, codec=codec, timestamp_type=kind))
    lean = list(lean_records_of(batch, max_bytes=1 << 20))
    assert lean == [each[:4] for each in records_of(batch, max_bytes=1 << 20)]


def test_headers_take_no_memory_where_no_caller_asks_for_them() -> None:
    batch, expanded = with_headers(HEADERS), 2 * HEADERS
    assert len(batch) < 1000
    for call in (
        lambda: inspect_batch(batch, KEYED),
        lambda: first_from(batch, 0, 0, 1 << 20),
        lambda: for_old_reader(memoryview(batch), 1, 0, 1 << 20),
    ):
        assert peak_of(call) < 8 * expanded
    assert peak_of(lambda: list(records_of(batch, max_bytes=1 << 20))) > 20 * expanded


@pytest.mark.parametrize("claimed", [-1, HEADERS + 10, 2**31 - 1])
def test_more_headers_than_the_bytes_can_hold_are_refused(claimed: int) -> None:
    batch = with_headers(HEADERS, claimed)
    with pytest.raises(CorruptRecord, match="record headers in"):
        list(lean_records_of(batch, max_bytes=1 << 20))
    found = inspect_batch(batch, KEYED)
    assert found is not None
    assert found.code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", range(5))
def test_a_record_of_a_compressed_batch_may_be_as_large_as_the_topic_says(codec: int) -> None:
    record = Record(0, NOW, b"k", b"v" * 200)
    batch = bytes(encode_batch([record], codec=codec))
    size = 200 + 8  # length of value: 2 bytes; attributes, two deltas, key with its length, headers
    assert inspect_batch(batch, KEYED._replace(record_max=size)) is None
    found = inspect_batch(batch, KEYED._replace(record_max=size - 1))
    if codec:
        assert found is not None
        assert (found.code, f"{size} bytes" in found.message) == (ErrorCode.INVALID_RECORD, True)
        with pytest.raises(RecordTooLarge):
            list(lean_records_of(batch, max_bytes=1 << 20, record_max=size - 1))
    else:
        assert found is None, "the limit holds for compressed batches only"
