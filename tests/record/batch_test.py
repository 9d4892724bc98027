"""Batches v2: bytes against an independent reading of the layout, and every inconsistency of a record."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record import header_fields
from ottla.record.batch import (
    ATTRIBUTES_POS,
    CONTROL,
    TRANSACTIONAL,
    BatchHeader,
    Record,
    batches_of,
    crc_ok,
    encode_batch,
    encode_one,
    encode_record_body,
    header_at,
    patch_offset_and_epoch,
    put_header,
    records_of,
    seal_crc,
    set_append_time,
)
from ottla.record.errors import CorruptRecord
from ottla.record.varint import read_varlong

CODECS = st.integers(0, 4)
NULLABLE = st.none() | st.binary(max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=10), NULLABLE), max_size=4).map(tuple)


@st.composite
def record_lists(draw: st.DrawFn, base_offset: int = 0) -> list[Record]:
    gaps = draw(st.lists(st.integers(1, 1 << 20), min_size=1, max_size=20))
    offset = base_offset + gaps[0] - 1
    records = []
    for gap in [*gaps[1:], 1]:
        timestamp = draw(st.integers(-1, 1 << 62))
        records.append(Record(offset, timestamp, draw(NULLABLE), draw(NULLABLE), draw(HEADERS)))
        offset += gap
    return records


def read_back(batch: bytearray) -> list[Record]:
    return list(records_of(batch, 0, max_bytes=1 << 24))


class Slow:
    """Reads the format byte by byte, written from the specification and not from the code."""

    def __init__(self, data: bytes) -> None:
        self.data, self.pos = data, 0

    def take(self, n: int) -> bytes:
        assert self.pos + n <= len(self.data)
        self.pos += n
        return self.data[self.pos - n : self.pos]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value += (byte & 127) * 2**shift
            shift += 7
            if byte < 128:
                return value // 2 if value % 2 == 0 else -(value // 2) - 1

    def nullable(self) -> bytes | None:
        size = self.varint()
        return None if size == -1 else self.take(size)

    def record(self, base_offset: int, base_timestamp: int) -> Record:
        size = self.varint()
        end = self.pos + size
        assert self.take(1) == b"\0"
        timestamp, offset = base_timestamp + self.varint(), base_offset + self.varint()
        key, value = self.nullable(), self.nullable()
        headers = tuple((self.nullable().decode(), self.nullable()) for _ in range(self.varint()))
        assert self.pos == end
        return Record(offset, timestamp, key, value, headers)


@pytest.mark.slow
@given(record_lists(base_offset=7), st.integers(-1, 1 << 40))
def test_batches_are_encoded_as_specified(records: list[Record], producer_id: int) -> None:
    batch = bytes(encode_batch(records, base_offset=7, producer_id=producer_id, producer_epoch=3, base_sequence=9))
    fields = struct.unpack(">qiibIhiqqqhii", batch[:61])
    assert fields[0] == 7
    assert fields[1] == len(batch) - 12
    assert fields[2:4] == (-1, 2)
    assert fields[5:7] == (0, records[-1].offset - 7)
    assert fields[7:9] == (records[0].timestamp, max(record.timestamp for record in records))
    assert fields[9:] == (producer_id, 3, 9, len(records))
    slow = Slow(batch[61:])
    assert [slow.record(7, fields[7]) for _ in records] == records
    assert slow.pos == len(batch) - 61


@pytest.mark.slow
@given(
    st.binary(max_size=300), NULLABLE, st.integers(-1, 1 << 62), st.integers(-1, 1 << 62), st.booleans(), st.booleans()
)
def test_encode_one_equals_encode_batch(
    key: bytes, value: bytes | None, timestamp: int, producer_id: int, transactional: bool, control: bool
) -> None:
    identity = {"producer_id": producer_id, "producer_epoch": 3, "base_sequence": 0}
    flags = {"transactional": transactional, "control": control}
    attributes = (TRANSACTIONAL if transactional else 0) | (CONTROL if control else 0)
    made = encode_one(attributes, timestamp, key, value, producer_id, 3, 0)
    assert made == encode_batch([Record(0, timestamp, key, value)], **identity, **flags)


@pytest.mark.slow
@given(record_lists(), CODECS)
def test_every_codec_there_and_back(records: list[Record], codec: int) -> None:
    batch = encode_batch(records, codec=codec)
    assert header_at(batch).codec == codec
    assert crc_ok(memoryview(batch), 0, len(batch))
    assert read_back(batch) == records


@pytest.mark.slow
@given(record_lists(), CODECS, st.integers(0, 1 << 62), st.integers(0, 1 << 30))
def test_patching_leaves_the_checksum_right(records: list[Record], codec: int, offset: int, epoch: int) -> None:
    batch = encode_batch(records, codec=codec)
    padded = bytearray(b"before") + batch + b"after"
    patch_offset_and_epoch(memoryview(padded), 6, offset, epoch)
    end = 6 + len(batch)
    assert crc_ok(memoryview(padded), 6, end)
    assert header_at(padded, 6)[:3] == (offset, len(batch) - 12, epoch)
    assert (padded[:6], padded[end:]) == (b"before", b"after")
    moved = list(records_of(padded, 6, max_bytes=1 << 24))
    assert [record.offset - offset for record in moved] == [record.offset for record in records]


@pytest.mark.slow
@given(record_lists(), CODECS, st.integers(0, 1 << 62))
def test_append_time_stamps_every_record(records: list[Record], codec: int, wall_ms: int) -> None:
    batch = encode_batch(records, codec=codec)
    set_append_time(memoryview(batch), 0, wall_ms)
    header = header_at(batch)
    assert header.is_append_time
    assert header.max_timestamp == wall_ms
    assert header.codec == codec
    assert crc_ok(memoryview(batch), 0, len(batch))
    assert read_back(batch) == [record._replace(timestamp=wall_ms) for record in records]


@pytest.mark.slow
@given(record_lists(), st.data())
def test_every_flipped_bit_after_the_crc_is_noticed(records: list[Record], data: st.DataObject) -> None:
    batch = encode_batch(records)
    bit = data.draw(st.integers(ATTRIBUTES_POS * 8, len(batch) * 8 - 1))
    batch[bit // 8] ^= 1 << bit % 8
    assert not crc_ok(memoryview(batch), 0, len(batch))


@pytest.mark.slow
@given(st.lists(record_lists(), min_size=1, max_size=4), st.integers(0, 60))
def test_batches_of_stops_at_a_cut_tail(groups: list[list[Record]], cut: int) -> None:
    batches = [encode_batch(records) for records in groups]
    log = b"".join(batches)
    found = list(batches_of(memoryview(log)))
    assert [pos for pos, _ in found] == [sum(map(len, batches[:i])) for i in range(len(batches))]
    assert [header.size for _, header in found] == [len(batch) for batch in batches]
    cut = min(cut, len(batches[-1]) - 1)
    assert len(list(batches_of(log[: len(log) - cut - 1]))) == len(batches) - 1


@given(st.binary(max_size=300), st.integers(0, 2**31 - 1), st.integers(-2, 2**31 - 1), CODECS)
def test_arbitrary_record_bytes_give_records_or_corrupt_record(data: bytes, count: int, last: int, codec: int) -> None:
    header = BatchHeader(0, len(data) + 49, 0, 2, 0, codec, last, 0, 0, -1, -1, -1, count)
    batch = bytearray(61) + data
    put_header(batch, header)
    with suppress(CorruptRecord):
        assert len(list(records_of(batch, 0, max_bytes=1 << 16))) == count


@pytest.mark.slow
@given(record_lists(), st.data())
def test_a_damaged_batch_gives_records_or_corrupt_record(records: list[Record], data: st.DataObject) -> None:
    batch = encode_batch(records, codec=data.draw(CODECS))
    for _ in range(data.draw(st.integers(1, 4))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    with suppress(CorruptRecord):
        list(records_of(batch, 0, max_bytes=1 << 16))


def simply_read(data: bytes, count: int) -> list[tuple]:
    """(offset, timestamp, key, value, headers) as the specification defines them, one number at a time."""
    at = 0

    def number() -> int:
        nonlocal at
        value, at = read_varlong(data, at)
        return value

    def field() -> bytes | None:
        nonlocal at
        size = number()
        assert -1 <= size <= len(data) - at
        at += max(size, 0)
        return None if size < 0 else data[at - size : at]

    found = []
    for _ in range(count):
        size = number()
        end = at + size
        at += 1
        stamp, delta, key, value, headers = number(), number(), field(), field(), number()
        assert headers >= 0
        found.append((delta, stamp, key, value, tuple(((field() or b"").decode(), field()) for _ in range(headers))))
        assert at == end
    assert at == len(data)
    return found


BYTES = st.sampled_from([0, 1, 2, 3, 0x7E, 0x7F, 0x80, 0x81, 0xFE, 0xFF]) | st.integers(0, 255)
SIZES = st.sampled_from([0, 1, 5, 63, 64, 100, 8_191, 8_192])


@given(st.lists(st.tuples(SIZES, SIZES, st.integers(1, 300)), min_size=1, max_size=4), st.data())
def test_numbers_of_every_length_are_read_as_the_specification_says(sizes: list, data: st.DataObject) -> None:
    """The fast path for numbers of one or two bytes reads what the slow one reads, also of damaged records."""
    offset, records = 0, []
    for key, value, gap in sizes:
        records.append(Record(offset, 7 * offset, b"k" * key if key else None, b"v" * value, ()))
        offset += gap
    last = offset + 2**31 - 400_000
    body = bytearray(encode_batch(records)[61:])
    for _ in range(data.draw(st.integers(0, 2))):
        body[data.draw(st.integers(0, min(30, len(body) - 1)))] = data.draw(BYTES)
    try:
        found = [tuple(each) for each in read_back(batch_around(bytes(body), len(records), last))]
    except CorruptRecord:
        return
    assert found == simply_read(bytes(body), len(records))


def batch_around(data: bytes, count: int, last_delta: int, base_offset: int = 0, base_timestamp: int = 0) -> bytearray:
    batch = bytearray(61) + data
    put_header(
        batch,
        BatchHeader(base_offset, len(data) + 49, 0, 2, 0, 0, last_delta, base_timestamp, 0, -1, -1, -1, count),
    )
    seal_crc(batch, 0, len(batch))
    return batch


def record_bytes(delta: int, timestamp_delta: int = 0) -> bytes:
    body = encode_record_body(delta, timestamp_delta, None, b"v")
    return bytes([len(body) * 2]) + body


@pytest.mark.parametrize(
    ("data", "count", "last_delta", "why"),
    [
        (record_bytes(0), 2, 1, "cut short|2 records"),
        (record_bytes(0) * 2, 1, 0, "after the last record"),
        (record_bytes(0) + record_bytes(0), 2, 1, "offset delta 0 after 0"),
        (record_bytes(1) + record_bytes(0), 2, 1, "offset delta 0 after 1"),
        (record_bytes(5), 1, 4, "offset delta 5"),
        (record_bytes(0), -1, 0, "-1 records"),
        (record_bytes(0), 10**9, 0, "1000000000 records"),
        (b"\x01" + bytes(8), 1, 0, "a record of -1 bytes"),
        (b"\xfe\xff\xff\xff\x0f" + bytes(8), 1, 0, "a record of 2147483647 bytes"),
        (b"\xff\xff\xff\xff\x7f" + bytes(8), 1, 0, "more than 32 bits"),
        (b"\x80\x80\x80\x80\x80\x00" + bytes(8), 1, 0, "more than 5 bytes"),
        (b"\x0c\x00\x00\x00\x03\x01\x00\x00", 1, 0, "a field of -2 bytes"),
        (b"\x0c\x00\x00\x00\x01\x64\x00\x00", 1, 0, "a field of 50 bytes"),
        (b"\x0c\x00\x00\x00\x01\x01\x01", 1, 0, "-1 record headers"),
        (b"\x14\x00\x00\x00\x01\x01\x80\xa8\xd6\xb9\x07", 1, 0, "1000000000 record headers|headers in"),
        (b"\x10\x00\x00\x00\x01\x01\x02\x01\x01", 1, 0, "without a key"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", 1, 0, "fields end -1 bytes off"),
    ],
)
def test_invalid_records_are_refused(data: bytes, count: int, last_delta: int, why: str) -> None:
    with pytest.raises(CorruptRecord, match=why):
        read_back(batch_around(data, count, last_delta))


def test_a_header_key_that_is_not_utf8_is_kept_byte_for_byte() -> None:
    batch = batch_around(b"\x12\x00\x00\x00\x01\x01\x02\x02\xff\x01", 1, 0)
    (record,) = read_back(batch)
    assert record.headers == (("\udcff", None),)
    assert bytes(encode_batch([record]))[61:] == bytes(batch)[61:]


def test_offsets_and_timestamps_stay_64_bit() -> None:
    with pytest.raises(CorruptRecord, match="offsets"):
        read_back(batch_around(record_bytes(1), 1, 1, base_offset=2**63 - 1))
    with pytest.raises(CorruptRecord, match="offsets -5"):
        read_back(batch_around(record_bytes(0), 1, 0, base_offset=-5))
    with pytest.raises(CorruptRecord, match="timestamp"):
        read_back(batch_around(record_bytes(0, 5), 1, 0, base_timestamp=2**63 - 1))


def test_no_header_no_batch() -> None:
    with pytest.raises(CorruptRecord, match="60 are left"):
        header_at(bytes(60))
    batch = encode_batch([Record(0, 0, None, b"v")])
    with pytest.raises(CorruptRecord, match="no whole v2 batch"):
        list(records_of(batch[:-1], 0, max_bytes=100))
    batch[16] = 1
    with pytest.raises(CorruptRecord, match="magic 1 at position 0"):
        list(batches_of(batch))
    assert list(batches_of(b"")) == []
    short = encode_batch([Record(0, 0, None, b"v")])
    short[8:12] = b"\0\0\0\x30"
    with pytest.raises(CorruptRecord, match="batchLength 48"):
        list(batches_of(short))


def test_a_cleaned_batch_keeps_its_last_offset_and_gets_a_horizon() -> None:
    records = [Record(3, 2000, b"k", None), Record(5, 1000, b"l", b"v")]
    batch = encode_batch(records, base_offset=1, last_offset_delta=9, delete_horizon_ms=7777)
    header = header_at(batch)
    assert (header.last_offset, header.delete_horizon_ms, header.base_timestamp) == (10, 7777, 7777)
    assert read_back(batch) == records
    empty = header_at(encode_batch([], base_offset=4, last_offset_delta=2))
    assert (empty.record_count, empty.last_offset, empty.delete_horizon_ms) == (0, 6, None)


def test_header_words() -> None:
    batch = encode_batch(
        [Record(0, 5, None, b"a"), Record(1, 6, None, b"b")],
        producer_id=1,
        producer_epoch=2,
        base_sequence=2**31 - 1,
        transactional=True,
        control=True,
        timestamp_type=1,
    )
    header = header_at(batch)
    assert (header.is_transactional, header.is_control, header.is_append_time) == (True, True, True)
    assert header.last_sequence == 0, "sequences wrap"
    assert header.size == len(batch)
    assert header_at(encode_batch([])).last_sequence == -1


def test_offsets_that_do_not_rise_are_a_programmer_error() -> None:
    with pytest.raises(AssertionError, match="does not rise"):
        encode_batch([Record(1, 0, None, b"a"), Record(1, 0, None, b"b")])
    with pytest.raises(AssertionError, match="before the last record"):
        encode_batch([Record(1, 0, None, b"a")], last_offset_delta=0)


def test_hello_world_batches() -> None:
    """Records "hello world " fill batches of 16,384 bytes: 819 each, 16,377 bytes."""
    batches: list[bytes] = []
    offset = 0
    while len(batches) < 10:
        start, size = offset, 61
        while True:
            body = encode_record_body(offset - start, 0, None, b"hello world ")
            if size + 1 + len(body) > 16384:
                break
            size += 1 + len(body)
            offset += 1
        records = [Record(o, 1557554753430, None, b"hello world ") for o in range(start, offset)]
        batches.append(bytes(encode_batch(records, base_offset=start)))
        assert len(batches[-1]) == size
    found = list(batches_of(b"".join(batches)))
    assert [header.record_count for _, header in found] == [819] * 10
    assert {header.size for _, header in found} == {16377}
    assert [pos for pos, _ in found] == [16377 * i for i in range(10)]
    assert found[-1][0] == 147393
    assert [header.base_offset for _, header in found] == [819 * i for i in range(10)]


def test_the_names_of_positions_are_those_of_the_fields():
    named = {name.lower(): position for name, position in vars(header_fields).items() if name.isupper()}
    assert named == {name: position for position, name in enumerate(BatchHeader._fields)}
