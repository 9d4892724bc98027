"""Reading the keys of batches, and rewriting batches without some of their records."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import HEADER_SIZE, Record, encode_batch, header_at, put_header, records_of, seal_crc
from ottla.record.compaction import Keys, ReadPosition, Rewrite, empty_batch, keys_of, rewrite_batches, sorted_offsets
from ottla.record.errors import CorruptRecord
from ottla.record.varint import encode_varint

LIMIT = 1 << 20
ROWS = st.lists(
    st.tuples(
        st.none() | st.binary(max_size=100),
        st.none() | st.binary(max_size=9000),
        st.integers(-(2**40), 2**40),
        st.integers(1, 70_000),
    ),
    min_size=1,
    max_size=12,
)


def batch_of(rows, codec: int = 0, **facts) -> tuple[bytes, list[Record]]:
    offset, records = 100, []
    for key, value, stamp, gap in rows:
        records.append(Record(offset, 2**41 + stamp, key, value, (("h", None),) if gap % 2 else ()))
        offset += gap
    return bytes(encode_batch(records, base_offset=100, codec=codec, **facts)), records


@given(ROWS, st.sampled_from([0, 1, 2, 3, 4]), st.data(), st.none() | st.integers(0, 2**50))
def test_kept_records_are_unchanged(rows, codec: int, data, horizon: int | None) -> None:
    batch, records = batch_of(rows, codec, producer_id=7, producer_epoch=1, base_sequence=3)
    (found,) = keys_of([batch], LIMIT)
    assert [100 + delta for delta in found.deltas] == [record.offset for record in records]
    assert found.tombstones == [n for n, record in enumerate(records) if record.value is None]
    keep = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(records), max_size=len(records))))
    (again,) = rewrite_batches([Rewrite(batch, keep, horizon)], LIMIT)
    before, after = header_at(batch), header_at(again)
    assert list(records_of(again, max_bytes=LIMIT)) == [r for r, stays in zip(records, keep, strict=True) if stays]
    assert (after.base_offset, after.last_offset, after.last_sequence) == (
        before.base_offset, before.last_offset, before.last_sequence,
    )  # fmt: skip
    assert keys_of([again], LIMIT), "its checksum does not match"
    if any(keep):
        assert after.delete_horizon_ms == horizon
        assert after.max_timestamp == max(r.timestamp for r, stays in zip(records, keep, strict=True) if stays)
    else:
        assert again == bytes(empty_batch(before))


def test_append_time_stays_that_of_the_batch() -> None:
    batch, _ = batch_of([(b"a", b"v", 5, 1), (b"b", b"v", 9, 1)], timestamp_type=1)
    (again,) = rewrite_batches([Rewrite(batch, b"\1\0", None)], LIMIT)
    assert [record.timestamp for record in records_of(again, max_bytes=LIMIT)] == [2**41 + 9]


@given(ROWS, st.data())
def test_damage_is_named_and_never_gets_a_checksum_that_fits(rows, data) -> None:
    batch, records = batch_of(rows)
    at = data.draw(st.integers(17, len(batch) - 1))
    broken = batch[:at] + bytes([batch[at] ^ data.draw(st.integers(1, 255))]) + batch[at + 1 :]
    for job in (
        lambda: keys_of([broken], LIMIT),
        lambda: rewrite_batches([Rewrite(broken, b"\1" * len(records), 5)], LIMIT),
    ):
        with pytest.raises(CorruptRecord):
            job()


@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(1, 15), st.sampled_from([0, 1]))
def test_an_answer_holds_a_limited_number_of_keys_and_its_end_position(rows, limit: int, codec: int) -> None:
    batches = [batch_of(each, codec)[0] for each in rows]
    whole = keys_of(batches, LIMIT)
    found = [Keys([], [], []) for _ in batches]
    at, begin = 0, ReadPosition()
    while at < len(batches):
        answer = keys_of(batches[at:], LIMIT, begin, limit)
        assert 0 < sum(len(each.keys) for each in answer) <= limit
        for number, piece in enumerate(answer, at):
            before = found[number]
            shifted = [index + len(before.keys) for index in piece.tombstones]
            found[number] = Keys(before.keys + piece.keys, [*before.deltas, *piece.deltas], before.tombstones + shifted)
        rest = answer[-1].rest
        at, begin = (at + len(answer), ReadPosition()) if rest is None else (at + len(answer) - 1, rest)
    assert [each._replace(deltas=list(each.deltas)) for each in whole] == found


@given(ROWS, st.integers(0, 12), st.integers(0, 12))
def test_a_piece_of_an_answer(rows, start: int, end: int) -> None:
    (whole,) = keys_of([batch_of(rows)[0]], LIMIT)
    piece = whole.slice_records(start, end)
    assert (piece.keys, list(piece.deltas)) == (whole.keys[start:end], list(whole.deltas)[start:end])
    assert [piece.keys[n] for n in piece.tombstones] == [whole.keys[n] for n in whole.tombstones if start <= n < end]


@given(ROWS, st.data(), st.none() | st.integers(0, 2**50), st.sampled_from([0, 2]))
def test_kept_records_may_be_given_by_offsets(rows, data, horizon: int | None, codec: int) -> None:
    batch, records = batch_of([(key, value, stamp, 1) for key, value, stamp, _ in rows], codec)
    keep = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(records), max_size=len(records))))
    offsets = array("q", (record.offset for record, stays in zip(records, keep, strict=True) if stays))
    assert rewrite_batches([Rewrite(batch, offsets, horizon)], LIMIT) == rewrite_batches(
        [Rewrite(batch, keep, horizon)], LIMIT
    )


@given(st.dictionaries(st.integers(0, 2**63 - 1), st.booleans()))
def test_offsets_rise_and_tombstones_are_distinguished(latest: dict[int, bool]) -> None:
    packed = array("q", (~offset if tombstone else offset for offset, tombstone in latest.items())).tobytes()
    alive, tombstones = (list(memoryview(each).cast("q")) for each in sorted_offsets(packed))
    assert alive == sorted(latest)
    assert tombstones == sorted(offset for offset, tombstone in latest.items() if tombstone)


@pytest.mark.parametrize("horizon", [None, 2**63 - 1, 2**62])
@pytest.mark.parametrize("delta", [2**63 - 1, -(2**63)])
def test_a_timestamp_beyond_64_bits_does_not_end_compaction(delta: int, horizon: int | None) -> None:
    """In a topic that was not compacted when the record was produced, only headers were checked."""
    body = b"\0" + encode_varint(delta) + b"\0\2k\1\0"
    batch = bytearray(encode_batch([Record(0, 2**41, b"k", b"v")])[:HEADER_SIZE]) + encode_varint(len(body)) + body
    put_header(batch, header_at(batch)._replace(batch_length=len(batch) - 12))
    seal_crc(batch, 0, len(batch))
    (again,) = rewrite_batches([Rewrite(bytes(batch), b"\1", horizon)], LIMIT)
    (found,) = keys_of([again], LIMIT)
    assert (found.keys, header_at(again).delete_horizon_ms) == ([b"k"], horizon)
