"""Produced batches, record by record: what each rule refuses, at which record, and that it refuses nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch, header_at, put_header, records_of, seal_crc
from ottla.record.inspection import (
    INLINE_BYTES,
    INLINE_RECORDS,
    TOLD_MAX,
    Recoding,
    RecordRules,
    Refusal,
    inspect_batch,
    is_small,
    prepare_batch,
)
from ottla.record.validation import EXPANDED_MAX, validate_produced

NOW = 1_700_000_000_000
FOREVER = 2**63 - 1
RECORDS = [Record(i, NOW + i, b"k%d" % i, b"value " * i) for i in range(5)]
LAX, KEYED = RecordRules(False, NOW, FOREVER, FOREVER), RecordRules(True, NOW, FOREVER, FOREVER)


def lying(records: list[Record], codec: int = 0, **changes: int) -> bytes:
    """A batch whose header contradicts its records, with a matching checksum."""
    batch = encode_batch(records, codec=codec)
    put_header(batch, header_at(batch)._replace(**changes))
    seal_crc(batch, 0, len(batch))
    return bytes(batch)


@given(st.integers(0, 4), st.integers(0, 4))
def test_recompression_changes_the_codec_and_nothing_else(source: int, target: int) -> None:
    batch = encode_batch(
        RECORDS, codec=source, producer_id=3, producer_epoch=1, base_sequence=2, transactional=True, leader_epoch=4
    )
    again = prepare_batch(bytes(batch), LAX, Recoding(target, None))
    assert isinstance(again, bytes)
    validate_produced(memoryview(again), 0, len(again), NOW)
    before, after = header_at(batch), header_at(again)
    assert after.codec == target
    same = {"attributes": 0, "crc": 0, "batch_length": 0}
    assert after._replace(**same) == before._replace(**same)
    assert list(records_of(again, 0, max_bytes=1000)) == RECORDS


@pytest.mark.parametrize("codec", range(5))
def test_a_valid_batch_passes_unchanged(codec: int) -> None:
    good = bytes(encode_batch(RECORDS, codec=codec))
    assert inspect_batch(good, KEYED) is None
    assert prepare_batch(good, KEYED, None) is None


@pytest.mark.parametrize("codec", range(5))
def test_records_without_keys_are_named_where_keys_are_needed(codec: int) -> None:
    keyless = [each._replace(key=None) if each.offset in (1, 3) else each for each in RECORDS]
    batch = bytes(encode_batch(keyless, codec=codec))
    assert inspect_batch(batch, LAX) is None
    found = inspect_batch(batch, KEYED)
    assert found is not None
    assert found == prepare_batch(batch, KEYED, Recoding(1, None))
    assert found.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in found.records] == [1, 3]
    assert found.message.startswith("2 of 5 records are refused, the first: record 1 has no key")
    assert inspect_batch(bytes(encode_batch([Record(0, NOW, b"", None)], codec=codec)), KEYED) is None  # empty is a key


def test_of_a_million_wrong_records_some_are_named() -> None:
    batch = bytes(encode_batch([Record(at, NOW, None, b"") for at in range(3 * TOLD_MAX)]))
    found = inspect_batch(batch, KEYED)
    assert found is not None
    assert len(found.records) == TOLD_MAX
    assert found.message.startswith(f"{3 * TOLD_MAX} of {3 * TOLD_MAX}")


@pytest.mark.parametrize("codec", range(5))
@pytest.mark.parametrize(
    ("records", "changes"),
    [
        (RECORDS, {"record_count": 4, "last_offset_delta": 3}),
        (RECORDS, {"record_count": 6, "last_offset_delta": 5}),
        (RECORDS, {"record_count": 2**31 - 1, "last_offset_delta": 2**31 - 2}),
        ([RECORDS[0], RECORDS[2]], {"last_offset_delta": 1}),
        ([RECORDS[1], RECORDS[2]], {"base_offset": 0, "last_offset_delta": 1}),
    ],
)
def test_a_header_that_contradicts_its_records_is_refused(
    records: list[Record], changes: dict[str, int], codec: int
) -> None:
    found = inspect_batch(lying(records, codec, **changes), LAX)
    assert found is not None
    assert found.code == ErrorCode.INVALID_RECORD
    assert found.message


def test_a_batch_that_expands_too_far_or_not_at_all_is_corrupt() -> None:
    bomb = bytes(encode_batch([Record(0, NOW, b"k", bytes(100_000))], codec=1))
    assert len(bomb) < 1000
    found = inspect_batch(bomb, KEYED, 50_000)
    assert found == Refusal(ErrorCode.CORRUPT_MESSAGE, "the records expand to more than 50000 bytes")
    assert inspect_batch(bomb, KEYED, 101_000) is None
    broken = bytearray(bomb)
    broken[-6] ^= 0xFF  # the checksum that gzip keeps
    found = prepare_batch(bytes(broken), KEYED, Recoding(4, None))
    assert isinstance(found, Refusal)
    assert found.code == ErrorCode.CORRUPT_MESSAGE


def test_a_worker_expands_no_more_than_the_cleaner_can_take() -> None:
    """A gigabyte of zeros in a megabyte: refused before it is expanded."""
    bomb = bytes(encode_batch([Record(0, NOW, b"k", bytes(EXPANDED_MAX))], codec=4))
    found = prepare_batch(bomb, KEYED, None)
    assert isinstance(found, Refusal)
    assert found.code == ErrorCode.CORRUPT_MESSAGE


def test_every_timestamp_counts_not_only_the_first_and_the_largest() -> None:
    times = [NOW, NOW - 5000, NOW + 10, -1, NOW]
    batch = bytes(encode_batch([Record(at, time, b"k", b"") for at, time in enumerate(times)]))
    validate_produced(memoryview(batch), 0, len(batch), NOW, 2**20, 1000, 1000)
    found = inspect_batch(batch, RecordRules(False, NOW, 1000, 1000))
    assert found is not None
    assert (found.code, [index for index, _ in found.records]) == (ErrorCode.INVALID_TIMESTAMP, [1])
    assert inspect_batch(batch, RecordRules(False, NOW, 5000, 1000)) is None


def test_a_batch_is_small_by_its_bytes_and_by_its_records() -> None:
    assert is_small(header_at(encode_batch([Record(0, NOW, b"k", bytes(INLINE_BYTES - 100))])))
    assert not is_small(header_at(encode_batch([Record(0, NOW, b"k", bytes(INLINE_BYTES))])))
    many = [Record(at, NOW, b"k", b"") for at in range(INLINE_RECORDS + 1)]
    assert is_small(header_at(encode_batch(many[:-1], codec=4)))
    assert not is_small(header_at(encode_batch(many, codec=4)))


timestamps = st.one_of(st.just(-1), st.integers(NOW - 3000, NOW + 3000))


@given(
    st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=3)), timestamps), min_size=1, max_size=20),
    st.integers(0, 4),
    st.booleans(),
)
def test_exactly_the_records_at_fault_are_refused(
    rows: list[tuple[bytes | None, int]], codec: int, need_keys: bool
) -> None:
    batch = bytes(encode_batch([Record(at, time, key, b"v") for at, (key, time) in enumerate(rows)], codec=codec))
    keyless = {at for at, (key, _) in enumerate(rows) if key is None and need_keys}
    untimely = {at for at, (_, time) in enumerate(rows) if time != -1 and abs(time - NOW) > 1000}
    found = inspect_batch(batch, RecordRules(need_keys, NOW, 1000, 1000))
    if not keyless | untimely:
        assert found is None
        return
    assert found is not None
    assert {index for index, _ in found.records} == keyless | untimely
    assert found.code == (ErrorCode.INVALID_TIMESTAMP if untimely else ErrorCode.INVALID_RECORD)


@given(st.data())
def test_any_damage_under_a_good_checksum_is_a_refusal_never_a_traceback(data: st.DataObject) -> None:
    batch = encode_batch(RECORDS, codec=data.draw(st.integers(0, 4)))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(23, len(batch) - 1))] = data.draw(st.integers(0, 255))
    seal_crc(batch, 0, len(batch))
    found = prepare_batch(bytes(batch), KEYED, Recoding(data.draw(st.integers(0, 4)), None))
    if isinstance(found, Refusal):
        assert found.code in (ErrorCode.INVALID_RECORD, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_TIMESTAMP)
        assert found.message
