"""Keys out of batches, and batches without some of their records."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import Record, encode_batch, header_at, records_of
from ottla.record.compaction import Rewrite, bare, keys_of, rewritten
from ottla.record.errors import CorruptRecord

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
def test_what_stays_is_what_it_was(rows, codec: int, data, horizon: int | None) -> None:
    batch, records = batch_of(rows, codec, producer_id=7, producer_epoch=1, base_sequence=3)
    (found,) = keys_of([batch], LIMIT)
    assert [100 + delta for delta in found.deltas] == [record.offset for record in records]
    assert found.tombstones == [n for n, record in enumerate(records) if record.value is None]
    keep = bytes(data.draw(st.lists(st.integers(0, 1), min_size=len(records), max_size=len(records))))
    (again,) = rewritten([Rewrite(batch, keep, horizon)], LIMIT)
    before, after = header_at(batch), header_at(again)
    assert list(records_of(again, max_bytes=LIMIT)) == [r for r, stays in zip(records, keep, strict=True) if stays]
    assert (after.base_offset, after.last_offset, after.last_sequence) == (
        before.base_offset, before.last_offset, before.last_sequence,
    )  # fmt: skip
    assert keys_of([again], LIMIT), "its checksum fits"
    if any(keep):
        assert after.delete_horizon_ms == horizon
        assert after.max_timestamp == max(r.timestamp for r, stays in zip(records, keep, strict=True) if stays)
    else:
        assert again == bytes(bare(before))


def test_append_time_stays_that_of_the_batch() -> None:
    batch, _ = batch_of([(b"a", b"v", 5, 1), (b"b", b"v", 9, 1)], timestamp_type=1)
    (again,) = rewritten([Rewrite(batch, b"\1\0", None)], LIMIT)
    assert [record.timestamp for record in records_of(again, max_bytes=LIMIT)] == [2**41 + 9]


@given(ROWS, st.data())
def test_damage_is_named_and_never_gets_a_checksum_that_fits(rows, data) -> None:
    batch, records = batch_of(rows)
    at = data.draw(st.integers(17, len(batch) - 1))
    broken = batch[:at] + bytes([batch[at] ^ data.draw(st.integers(1, 255))]) + batch[at + 1 :]
    for job in (lambda: keys_of([broken], LIMIT), lambda: rewritten([Rewrite(broken, b"\1" * len(records), 5)], LIMIT)):
        with pytest.raises(CorruptRecord):
            job()
