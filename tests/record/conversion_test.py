"""Batches to message sets and back: as Apache Kafka converts them, and whatever there is."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import Record, batches_of, encode_batch, records_of
from ottla.record.conversion import downgraded, messages_of, upgraded
from ottla.record.errors import CorruptRecord
from ottla.record.legacy import messages_in

LIMIT = 1 << 20


def log_of(golden, name: str) -> bytes:
    (path,) = golden(name).directory.rglob("00000000000000000000.log")
    return path.read_bytes()


def flat(message_set: bytes) -> list[tuple[int, int, bytes | None, bytes | None]]:
    return [
        (one.offset, one.timestamp, one.key, one.value)
        for entry in messages_of(message_set)
        for one in messages_in(entry, LIMIT)
    ]


@pytest.mark.parametrize(("name", "magic"), [("format-0.9.0", 0), ("format-0.10.0", 1)])
def test_a_batch_goes_down_as_apache_kafka_takes_it_down(golden, name: str, magic: int) -> None:
    """The same records, plain messages to the byte; how many a wrapper holds was its client's choice."""
    theirs, ours = log_of(golden, name), downgraded(log_of(golden, "format-2.8"), magic, max_bytes=LIMIT)
    assert flat(ours) == flat(theirs)
    found, expected = ({m.offset: m for m in messages_of(one) if not m.codec} for one in (ours, theirs))
    both = found.keys() & expected.keys()
    assert len(both) > 5
    assert [found[offset] for offset in both] == [expected[offset] for offset in both]


@pytest.mark.parametrize("name", ["format-0.9.0", "format-0.10.0"])
def test_what_an_old_broker_wrote_goes_up_and_reads_the_same(golden, name: str) -> None:
    batch = upgraded(log_of(golden, name), 4, max_bytes=LIMIT)
    found = list(records_of(batch, max_bytes=LIMIT))
    expected = list(golden(name).records())
    assert [(r.key, r.value) for r in found] == [(r.key, r.value) for r in expected]
    assert [r.timestamp for r in found] == [r.timestamp if r.timestamp_type else -1 for r in expected]
    assert [r.offset for r in found] == list(range(len(expected)))


RECORDS = st.lists(
    st.tuples(st.none() | st.binary(max_size=30), st.none() | st.binary(max_size=300), st.integers(0, 2**40)),
    min_size=1,
    max_size=20,
)


@given(RECORDS, st.sampled_from([0, 1, 2, 3]), st.sampled_from([0, 1]), st.booleans(), st.integers(0, 2**50))
def test_down_and_up_again_keeps_what_there_is(rows, codec: int, magic: int, append_time: bool, base: int) -> None:
    records = [Record(base + 2 * n, stamp, key, value, (("h", b"x"),)) for n, (key, value, stamp) in enumerate(rows)]
    batch = encode_batch(records, base_offset=base, codec=codec, timestamp_type=int(append_time))
    stamps = [record.timestamp for record in records_of(batch, max_bytes=LIMIT)]
    down = downgraded(batch, magic, max_bytes=LIMIT)
    expected = [
        (record.offset, stamp if magic else -1, record.key, record.value)
        for record, stamp in zip(records, stamps, strict=True)
    ]
    assert flat(down) == expected
    up = list(records_of(upgraded(down, codec, max_bytes=LIMIT), max_bytes=LIMIT))
    assert [(n, *row[1:]) for n, row in enumerate(expected)] == [(r.offset, r.timestamp, r.key, r.value) for r in up]


def test_plain_messages_below_the_offset_that_was_asked_for_are_left_out() -> None:
    batch = encode_batch([Record(n, 5, None, b"v") for n in range(5)])
    assert [m.offset for m in messages_of(downgraded(batch, 1, max_bytes=LIMIT, first_offset=3))] == [3, 4]
    packed = encode_batch([Record(n, 5, None, b"v") for n in range(5)], codec=1)
    assert len(flat(downgraded(packed, 1, max_bytes=LIMIT, first_offset=3))) == 5, "a wrapper goes whole"


def test_control_records_and_empty_batches_do_not_exist_below() -> None:
    control = encode_batch([Record(0, 5, b"\0\0\0\1", b"")], control=True, transactional=True, producer_id=1)
    assert downgraded(control, 1, max_bytes=LIMIT) == b""


def test_zstd_does_not_go_down() -> None:
    with pytest.raises(ValueError, match="zstd"):
        downgraded(encode_batch([Record(0, 5, None, b"v")], codec=4), 1, max_bytes=LIMIT)


def test_damage_is_named() -> None:
    good = downgraded(encode_batch([Record(0, 5, None, b"value")]), 1, max_bytes=LIMIT)
    with pytest.raises(CorruptRecord, match="checksum"):
        upgraded(good[:-1] + b"\0", 0, max_bytes=LIMIT)
    with pytest.raises(CorruptRecord, match="without messages"):
        upgraded(good[:-1], 0, max_bytes=LIMIT)
    with pytest.raises(CorruptRecord, match="size -5"):
        upgraded(struct.pack(">qi", 0, -5) + bytes(40), 0, max_bytes=LIMIT)
    bomb = downgraded(encode_batch([Record(0, 5, None, bytes(100_000))], codec=1), 1, max_bytes=LIMIT)
    with pytest.raises(CorruptRecord, match=r"more than|beyond"):
        upgraded(bomb, 0, max_bytes=1000)
    many = good * 100
    with pytest.raises(CorruptRecord, match="beyond"):
        upgraded(many, 0, max_bytes=1000)


@given(st.binary(max_size=200))
def test_whatever_comes_is_a_batch_or_a_named_error(data: bytes) -> None:
    try:
        batch = upgraded(data, 0, max_bytes=LIMIT)
    except CorruptRecord:
        return
    assert list(batches_of(batch))
