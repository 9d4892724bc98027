"""Validation of produced batches: each rule, broken alone, has its own code."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import HEADER_SIZE, Record, encode_batch, header_at, put_header, seal_crc
from ottla.record.compression import compress, most_expanded
from ottla.record.errors import CorruptRecord
from ottla.record.validation import validate_produced

NOW = 1_700_000_000_000
RECORDS = [Record(i, NOW + i, b"k%d" % i, b"value " * i) for i in range(5)]


def batch_with(**changes: int) -> memoryview:
    """A good idempotent batch, some header fields changed, the checksum right for them."""
    batch = encode_batch(RECORDS, producer_id=7, producer_epoch=1, base_sequence=20)
    put_header(batch, header_at(batch)._replace(**changes))
    seal_crc(batch, 0, len(batch))
    return memoryview(batch)


def verdict(view: memoryview, **limits: int) -> ErrorCode:
    try:
        header = validate_produced(view, 0, len(view), NOW, **limits)
    except ApiError as error:
        return error.code if error.message else ErrorCode.UNKNOWN_SERVER_ERROR
    assert header == tuple(header_at(view))
    return ErrorCode.NONE


@given(st.integers(0, 4), st.booleans(), st.booleans())
def test_good_batches_pass(codec: int, idempotent: bool, transactional: bool) -> None:
    producer = (9, 0, 2**31 - 1) if idempotent or transactional else (-1, -1, -1)
    batch = encode_batch(
        RECORDS,
        codec=codec,
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=producer[2],
        transactional=transactional,
    )
    padded = memoryview(b"ab" + bytes(batch) + b"c")
    assert validate_produced(padded, 2, 2 + len(batch), NOW) == tuple(header_at(batch))


def test_batches_without_timestamps_and_odd_sequences_pass() -> None:
    assert verdict(batch_with(base_timestamp=-1, max_timestamp=-1)) == ErrorCode.NONE
    # Some clients leave sequence 0 in batches without a producer id.
    assert verdict(batch_with(producer_id=-1, producer_epoch=0, base_sequence=0)) == ErrorCode.NONE


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"batch_length": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 0}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 48}, ErrorCode.CORRUPT_MESSAGE),
        ({"batch_length": 2**31 - 1}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": -1}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": 3}, ErrorCode.CORRUPT_MESSAGE),
        ({"magic": 0}, ErrorCode.INVALID_RECORD),
        ({"magic": 1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 5}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 6}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 7}, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        ({"attributes": 0x08}, ErrorCode.INVALID_TIMESTAMP),
        ({"attributes": 0x20}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x40}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x80}, ErrorCode.INVALID_RECORD),
        ({"attributes": -0x8000}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 3}, ErrorCode.INVALID_RECORD),
        ({"last_offset_delta": 5}, ErrorCode.INVALID_RECORD),
        ({"record_count": 4}, ErrorCode.INVALID_RECORD),
        ({"record_count": -1, "last_offset_delta": -2}, ErrorCode.INVALID_RECORD),
        ({"record_count": 0, "last_offset_delta": -1}, ErrorCode.INVALID_RECORD),
        ({"record_count": 10**9, "last_offset_delta": 10**9 - 1}, ErrorCode.INVALID_RECORD),
        ({"producer_id": -2}, ErrorCode.INVALID_RECORD),
        ({"producer_epoch": -1}, ErrorCode.INVALID_RECORD),
        ({"base_sequence": -1}, ErrorCode.INVALID_RECORD),
        ({"attributes": 0x10, "producer_id": -1}, ErrorCode.INVALID_RECORD),
        ({"max_timestamp": NOW - 1}, ErrorCode.INVALID_TIMESTAMP),
        ({"base_timestamp": -2}, ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_one_rule_broken(changes: dict[str, int], code: ErrorCode) -> None:
    assert verdict(batch_with(**changes)) == code


def test_a_wrong_checksum_comes_before_what_it_covers() -> None:
    view = batch_with(attributes=0x20)
    view[17] ^= 1
    with pytest.raises(CorruptRecord, match=r"stored crc = \d+, computed crc = \d+"):
        validate_produced(view, 0, len(view), NOW)


def test_one_batch_and_nothing_else() -> None:
    view = batch_with()
    assert verdict(memoryview(bytes(view) * 2)) == ErrorCode.INVALID_RECORD
    assert verdict(memoryview(bytes(view) + b"x")) == ErrorCode.INVALID_RECORD
    for size in range(len(view)):
        assert verdict(view[:size]) == ErrorCode.CORRUPT_MESSAGE


def test_sizes_and_spans() -> None:
    view = batch_with()
    assert verdict(view, max_bytes=len(view)) == ErrorCode.NONE
    assert verdict(view, max_bytes=len(view) - 1) == ErrorCode.MESSAGE_TOO_LARGE
    assert verdict(view, after_max_ms=4) == ErrorCode.NONE
    assert verdict(view, after_max_ms=3) == ErrorCode.INVALID_TIMESTAMP
    old = batch_with(base_timestamp=NOW - 10)
    assert verdict(old, before_max_ms=10) == ErrorCode.NONE
    assert verdict(old, before_max_ms=9) == ErrorCode.INVALID_TIMESTAMP


@given(st.data())
def test_any_damage_is_a_code_never_a_traceback(data: st.DataObject) -> None:
    damaged = bytearray(batch_with())
    for _ in range(data.draw(st.integers(1, 5))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        seal_crc(damaged, 0, len(damaged))
    view = memoryview(damaged)[: data.draw(st.integers(0, len(damaged)))]
    verdict(view)


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize("count", [5_000, 1_000_000, 2**31 - 1])
def test_a_batch_claims_no_more_records_than_its_bytes_can_hold(codec: int, count: int) -> None:
    """Compressed or not: offsets would jump by the claimed count."""
    batch = bytearray(encode_batch([Record(0, 5, None, b"")], codec=codec))
    put_header(batch, header_at(batch)._replace(record_count=count, last_offset_delta=count - 1))
    seal_crc(batch, 0, len(batch))
    room = len(batch) - HEADER_SIZE
    if codec == 4 and count * 7 <= room << 15:
        validate_produced(memoryview(batch), 0, len(batch), 5)  # that many records are possible in these bytes
    else:
        assert verdict(memoryview(batch)) is ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("codec", range(1, 5))
def test_records_that_compress_well_are_not_refused(codec: int) -> None:
    batch = encode_batch([Record(at, 5, None, b"") for at in range(20_000)], codec=codec)
    validate_produced(memoryview(batch), 0, len(batch), 5)


@pytest.mark.parametrize("codec", range(1, 5))
@pytest.mark.parametrize("size", [7, 1000, 1 << 20])
def test_no_bytes_expand_further_than_their_codec_can(codec: int, size: int) -> None:
    assert most_expanded(codec, len(compress(codec, bytes(size)))) >= size
