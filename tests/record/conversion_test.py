"""Batches to message sets and back: as Apache Kafka converts them, and for arbitrary input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.messagesets import entries
from tests.peak import peak_of

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import Record, encode_batch, records_of
from ottla.record.conversion import for_old_reader, for_old_reader_job
from ottla.record.errors import CorruptRecord, ExpandsTooFar
from ottla.record.legacy import messages_in
from ottla.record.message_set_conversion import TopicRules, convert_message_set

LIMIT = 1 << 20


def log_of(golden, name: str) -> bytes:
    (path,) = golden(name).directory.rglob("00000000000000000000.log")
    return path.read_bytes()


def flat(message_set: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (one.offset, one.timestamp, one.key, one.value)
        for entry in entries(message_set)
        for one in messages_in(entry, LIMIT)
    ]


def down(content: bytes, magic: int, first_offset: int = 0) -> bytes:
    return for_old_reader(memoryview(content), magic, first_offset, LIMIT).content


def up(message_set: bytes, codec: int) -> bytearray:
    return convert_message_set(memoryview(message_set), TopicRules(codec), LIMIT)


@pytest.mark.parametrize(("name", "magic"), [("format-0.9.0", 0), ("format-0.10.0", 1)])
def test_batches_are_converted_down_as_kafka_does(golden, name: str, magic: int) -> None:
    """The same records, plain messages to the byte; how many a wrapper holds was its client's choice."""
    theirs, ours = log_of(golden, name), down(log_of(golden, "format-2.8"), magic)
    assert flat(ours) == flat(theirs)
    found, expected = ({m.offset: m for m in entries(one) if not m.codec} for one in (ours, theirs))
    both = found.keys() & expected.keys()
    assert len(both) > 5
    assert [found[offset] for offset in both] == [expected[offset] for offset in both]


@pytest.mark.parametrize("name", ["format-0.9.0", "format-0.10.0"])
def test_logs_of_old_brokers_are_converted_up_with_the_same_records(golden, name: str) -> None:
    found = list(records_of(up(log_of(golden, name), 4), max_bytes=LIMIT))
    expected = list(golden(name).records())
    assert [(r.key, r.value) for r in found] == [(r.key, r.value) for r in expected]
    assert [r.timestamp for r in found] == [r.timestamp if r.timestamp_type else -1 for r in expected]
    assert [r.offset for r in found] == list(range(len(expected)))


@pytest.mark.parametrize("name", ["format-0.9.0", "format-0.10.0"])
def test_entries_of_the_same_format_stay_and_v1_becomes_v0(golden, name: str) -> None:
    content = log_of(golden, name)
    assert down(content, 1) == content
    assert flat(down(content, 0)) == [(offset, -1, key, value) for offset, _, key, value in flat(content)]
    assert {entry.magic for entry in entries(down(content, 0))} == {0}


RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=300), st.integers(0, 2**40)),
    min_size=1,
    max_size=20,
)


@given(RECORDS, st.sampled_from([0, 1, 2, 3]), st.sampled_from([0, 1]), st.booleans(), st.integers(0, 2**50))
def test_converting_down_and_up_keeps_the_records(rows, codec: int, magic: int, append_time: bool, base: int) -> None:
    records = [Record(base + 2 * n, stamp, key, value, (("h", b"x"),)) for n, (key, value, stamp) in enumerate(rows)]
    batch = encode_batch(records, base_offset=base, codec=codec, timestamp_type=int(append_time))
    stamps = [record.timestamp for record in records_of(batch, max_bytes=LIMIT)]
    message_set = down(batch, magic)
    expected = [
        (record.offset, stamp if magic else -1, record.key, record.value)
        for record, stamp in zip(records, stamps, strict=True)
    ]
    assert flat(message_set) == expected
    if append_time and magic:
        return  # producers must not send that
    again = records_of(up(message_set, codec), max_bytes=LIMIT)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in again] == [(n, *row[1:]) for n, row in enumerate(expected)]


@given(st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.sampled_from([0, 1, 2, 3]), RECORDS), max_size=5), st.data())
def test_a_log_of_several_formats_goes_down_as_one(pieces, data) -> None:
    content, expected, offset, magic = b"", [], 0, data.draw(st.sampled_from([0, 1]))
    for one, codec, rows in pieces:
        records = [Record(offset + n, stamp, key, value) for n, (key, value, stamp) in enumerate(rows)]
        batch = bytes(encode_batch(records, base_offset=offset, codec=codec))
        content += down(batch, one) if one < 2 else batch
        kept = min(magic, one)
        expected += [(r.offset, r.timestamp if kept else -1, r.key, r.value) for r in records]
        offset += len(rows)
    first = data.draw(st.integers(0, offset))
    found = for_old_reader(memoryview(content), magic, first, LIMIT)
    assert [row for row in flat(found.content) if row[0] >= first] == [row for row in expected if row[0] >= first]
    assert {entry.magic for entry in entries(found.content)} <= {0, magic}
    assert not pieces or found.next_offset == offset
    cut = data.draw(st.integers(0, len(content)))
    seen = flat(for_old_reader(memoryview(content[:cut]), magic, 0, LIMIT).content)
    assert seen == expected[: len(seen)]


def test_plain_messages_below_the_requested_offset_are_left_out() -> None:
    batch = encode_batch([Record(n, 5, None, b"v") for n in range(5)])
    assert [m.offset for m in entries(down(batch, 1, 3))] == [3, 4]
    packed = encode_batch([Record(n, 5, None, b"v") for n in range(5)], codec=1)
    assert len(flat(down(packed, 1, 3))) == 5, "a wrapper is returned whole"


def test_records_of_another_format_are_counted() -> None:
    records = [Record(n, 5, None, b"v") for n in range(5)]
    for codec in (0, 1):
        batch = bytes(encode_batch(records, codec=codec))
        content = batch + down(batch, 1) + down(batch, 0)
        assert for_old_reader(memoryview(content), 1, 0, LIMIT).converted == 5
        assert for_old_reader(memoryview(content), 0, 0, LIMIT).converted == 10


def test_old_formats_have_no_control_records_or_empty_batches() -> None:
    control = encode_batch([Record(7, 5, b"\0\0\0\1", b"")], base_offset=7, control=True, producer_id=1)
    assert for_old_reader(memoryview(control), 1, 7, LIMIT) == (b"", 8, 0)
    empty = encode_batch([], base_offset=3, last_offset_delta=4)
    assert for_old_reader(memoryview(empty), 0, 3, LIMIT) == (b"", 8, 0)


def test_zstd_is_not_converted_down_and_ends_the_set() -> None:
    packed = bytes(encode_batch([Record(1, 5, None, b"v")], base_offset=1, codec=4))
    with pytest.raises(ApiError, match="zstd") as caught:
        down(packed, 1)
    assert caught.value.code == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    assert for_old_reader_job(packed, 1, 0)[0] == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    before = bytes(encode_batch([Record(0, 5, None, b"v")]))
    assert len(flat(down(before + packed, 1))) == 1
    assert for_old_reader_job(before + packed, 1, 0) == (down(before, 1), 1, 1)


@pytest.mark.parametrize("magic", [0, 1])
def test_damage_gets_no_new_checksum(magic: int) -> None:
    batch = encode_batch([Record(0, 5, b"k", b"value")])
    old = bytearray(down(batch, 1))
    for content in (batch, old):
        content[-3] ^= 1
        with pytest.raises(CorruptRecord, match="checksum"):
            down(content, magic)
    with pytest.raises(CorruptRecord, match="no message begins"):
        down(bytes(16) + b"\3" + bytes(50), magic)
    with pytest.raises(CorruptRecord, match="no message begins"):
        down(bytes(8) + (-12).to_bytes(4, "big", signed=True) + bytes(50), magic)


def test_expanded_bytes_are_bounded() -> None:
    bomb = encode_batch([Record(0, 5, None, bytes(30_000_000))], codec=1)
    with pytest.raises(ExpandsTooFar):
        down(bomb, 1)
    assert peak_of(lambda: for_old_reader_job(bytes(bomb[:-1]), 1, 0)) < LIMIT
    many = encode_batch([Record(n, 5, None, None) for n in range(100_000)], codec=1)
    with pytest.raises(ExpandsTooFar):
        down(many, 1)


def test_the_number_of_records_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.record.conversion.RECORDS_MAX", 4)
    with pytest.raises(ExpandsTooFar, match="5 records"):
        down(encode_batch([Record(n, 5, None, None) for n in range(5)]), 1)


@given(st.binary(max_size=200), st.sampled_from([0, 1]))
def test_arbitrary_bytes_are_a_set_or_a_typed_error(data: bytes, magic: int) -> None:
    try:
        found = down(data, magic)
    except ApiError:
        return
    assert {entry.magic for entry in entries(found)} <= {0, 1}
