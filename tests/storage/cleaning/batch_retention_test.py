"""Decisions about single batches, and which segments are rewritten together."""

from __future__ import annotations

from array import array

import pytest

from ottla.record.batch import BatchHeader, Record, encode_batch, header_at
from ottla.record.compaction import Keys, empty_batch, keys_of, sorted_offsets
from ottla.record.control import Marker, marker_batch
from ottla.storage.cleaning.batch_retention import (
    BARE,
    COPY,
    DROP,
    BatchRetention,
    LastBatch,
    RetentionBounds,
    RetentionDecision,
    RetentionFate,
)
from ottla.storage.cleaning.cleaning_pass import Extent, group_segments
from ottla.storage.cleaning.live_offsets import LiveOffsets
from ottla.storage.cleaning.offset_map import ENTRY_BYTES, OffsetMap
from ottla.storage.cleaning.transactions import CleanedTransactions
from ottla.storage.indexes.txn_index import AbortedTransaction

NOW, DAY = 1_000_000, 1_000
EVERYWHERE = 1 << 60


def header(base: int = 0, count: int = 1, **fields: int) -> BatchHeader:
    records = [Record(base + n, 5, b"k%d" % n, b"v") for n in range(count)]
    transactional = fields.pop("transactional", 0)
    return header_at(encode_batch(records, base_offset=base, transactional=bool(transactional), **fields))  # type: ignore[arg-type]


def marked(base: int, producer: int, commit: bool, epoch: int = 0, horizon_ms: int | None = None) -> BatchHeader:
    found = header_at(marker_batch(producer, epoch, Marker(commit, 1), 5))._replace(base_offset=base)
    return (
        found if horizon_ms is None else found._replace(attributes=found.attributes | 0x40, base_timestamp=horizon_ms)
    )


def judge(
    latest: OffsetMap | None = None,
    aborted: list[AbortedTransaction] | None = None,
    producers: dict[int, LastBatch] | None = None,
    removable_below: int = EVERYWHERE,
) -> BatchRetention:
    bounds = RetentionBounds(NOW, DAY, removable_below)
    latest = knowing() if latest is None else latest
    return BatchRetention(latest, unseen(latest), CleanedTransactions(aborted or []), producers or {}, bounds)


def unseen(latest: OffsetMap) -> LiveOffsets:
    """No batch is in the part that the first pass has read: keys decide."""
    return LiveOffsets(latest.end_offset, latest.end_offset, b"", b"")


def seen(latest: OffsetMap) -> LiveOffsets:
    return LiveOffsets(latest.start_offset, latest.end_offset, *sorted_offsets(b"".join(latest.packed_offsets())))


def decided(by: BatchRetention, found: BatchHeader, keys: Keys) -> RetentionDecision:
    keep, has_tombstones = by.kept_records(found, keys)
    return by.decide_with_keys(found, keep, has_tombstones)


def knowing(*offsets: tuple[bytes, int], end: int = 100) -> OffsetMap:
    latest = OffsetMap(0, 1 << 20)
    for key, offset in sorted(offsets, key=lambda each: each[1]):
        latest.add_keys(offset, Keys([key], [0], []))
    latest.skip_to_offset(end - 1)
    return latest


def test_a_record_with_a_later_one_of_its_key_is_removed_and_others_stay() -> None:
    found = decided(judge(knowing((b"a", 7), (b"b", 1))), header(0, 2), Keys([b"a", b"b"], [0, 1], []))
    assert found == RetentionDecision(RetentionFate.REWRITE, b"\0\1")
    assert decided(judge(knowing((b"a", 0))), header(0), Keys([b"a"], [0], [])) == COPY
    assert decided(judge(knowing((b"a", 7))), header(0), Keys([b"a"], [0], [])) == DROP


def test_records_beyond_the_map_stay_and_records_without_a_key_are_removed() -> None:
    assert judge(knowing((b"a", 7), end=8)).decide_without_keys(header(8)) == COPY
    assert decided(judge(knowing()), header(0), Keys([None], [0], [])) == DROP


def test_a_tombstone_gets_a_delete_horizon_and_is_removed_after_it() -> None:
    keys, lone = Keys([b"a"], [0], [0]), knowing((b"a", 3))
    assert decided(judge(lone), header(3), keys) == RetentionDecision(RetentionFate.REWRITE, b"\1", NOW + DAY)
    waiting = header(3, delete_horizon_ms=NOW + 1)
    assert decided(judge(lone), waiting, keys) == COPY
    due = header(3, delete_horizon_ms=NOW)
    assert decided(judge(lone), due, keys) == DROP
    assert decided(judge(lone, removable_below=3), due, keys) == COPY, "a replica has not cleaned past it"
    assert decided(judge(lone, removable_below=4), due, keys) == DROP


def test_a_marker_stays_while_its_transaction_has_batches_and_then_until_its_horizon() -> None:
    ends = judge()
    assert ends.decide_without_keys(header(0, producer_id=4, producer_epoch=0, transactional=1)) is None
    assert ends.decide_control(marked(5, 4, True), Marker(True, 1)) == COPY
    assert judge().decide_control(marked(5, 4, True), Marker(True, 1)) == RetentionDecision(
        RetentionFate.REWRITE, b"\1", NOW + DAY
    )
    assert judge().decide_control(marked(5, 4, True, horizon_ms=NOW + 1), Marker(True, 1)) == COPY
    assert judge().decide_control(marked(5, 4, True, horizon_ms=NOW), Marker(True, 1)) == DROP
    assert judge(removable_below=5).decide_control(marked(5, 4, True, horizon_ms=NOW), Marker(True, 1)) == COPY


def test_aborted_records_are_removed_at_once_and_their_marker_later() -> None:
    aborted = [AbortedTransaction(4, 0, 5, 6)]
    transactions = CleanedTransactions(aborted)
    first = BatchRetention(
        OffsetMap(0, 1), unseen(OffsetMap(0, 1)), transactions, {}, RetentionBounds(NOW, DAY, EVERYWHERE)
    )
    assert first.decide_without_keys(header(0, producer_id=4, producer_epoch=0, transactional=1)) == DROP
    assert first.decide_control(marked(5, 4, False), Marker(False, 1)) == COPY
    assert transactions.kept == aborted, "readers may still hold offsets below the marker"
    again = judge(aborted=aborted)
    assert again.decide_control(marked(5, 4, False), Marker(False, 1)).delete_horizon_ms == NOW + DAY


def test_the_last_batch_of_a_producer_stays_without_its_records() -> None:
    data = header(0, producer_id=4, producer_epoch=2, base_sequence=9)
    last = {4: LastBatch(2, 0)}
    assert decided(judge(knowing((b"a", 7)), producers=last), data, Keys([b"a"], [0], [])) == BARE
    assert decided(judge(knowing((b"a", 7)), producers={4: LastBatch(3, 0)}), data, Keys([b"a"], [0], [])) == DROP
    empty = header_at(empty_batch(data))
    assert (empty.last_sequence, empty.last_offset, empty.record_count) == (9, 0, 0)
    assert judge(producers=last).decide_without_keys(empty) == COPY
    assert judge(producers={4: LastBatch(2, 8)}).decide_without_keys(empty) == DROP
    due = marked(5, 4, True, epoch=2, horizon_ms=NOW)
    assert judge(producers={4: LastBatch(2, -1)}).decide_control(due, Marker(True, 1)) == BARE, (
        "the only batch of this epoch"
    )


def test_batches_in_the_mapped_part_are_judged_by_offsets_alone() -> None:
    known = knowing((b"a", 7), (b"b", 1), (b"c", 2), end=8)
    by = BatchRetention(known, seen(known), CleanedTransactions([]), {}, RetentionBounds(NOW, DAY, EVERYWHERE))
    assert by.decide_without_keys(header(0)) == DROP
    assert by.decide_without_keys(header(1, 2)) == COPY
    assert by.decide_without_keys(header(0, 4)) == RetentionDecision(RetentionFate.REWRITE, array("q", [1, 2]))
    assert by.decide_without_keys(header(4, 4)._replace(record_count=3)) is None, (
        "one is missing, it is not known which"
    )
    assert by.decide_without_keys(header(6, 4)) is None, "not seen whole"
    assert by.decide_without_keys(header(8)) == COPY


def test_tombstones_in_the_mapped_part_are_judged() -> None:
    known = OffsetMap(0, 1 << 20)
    known.add_keys(0, Keys([b"a", b"b", b"a"], range(3), [0, 1]))
    by = BatchRetention(known, seen(known), CleanedTransactions([]), {}, RetentionBounds(NOW, DAY, EVERYWHERE))
    assert by.decide_without_keys(header(0, 3)) == RetentionDecision(
        RetentionFate.REWRITE, array("q", [1, 2]), NOW + DAY
    )
    assert by.decide_without_keys(header(2)) == COPY, "its later value is none"
    assert by.decide_without_keys(header(0, 3, delete_horizon_ms=NOW + 1)) == RetentionDecision(
        RetentionFate.REWRITE, array("q", [1, 2])
    )
    assert by.decide_without_keys(header(0, 3, delete_horizon_ms=NOW)) is None, "some are removed: the keys show which"


def test_keys_of_a_batch_continue_after_its_known_part() -> None:
    latest = OffsetMap(11, ENTRY_BYTES)
    latest.add_keys(10, Keys([b"a", b"b"], range(2), []))
    assert (len(latest), latest.end_offset) == (1, 12)
    latest.add_keys(10, Keys([b"a", b"b"], range(2), []))
    assert (len(latest), latest.end_offset) == (1, 12)
    assert latest.used_share == 1
    assert not latest.release_memory()


def test_the_map_takes_pieces_until_it_is_full() -> None:
    latest = OffsetMap(10, 3 * ENTRY_BYTES)
    latest.add_keys(10, Keys([b"a", b"b"], [0, 1], []))
    assert not latest.is_full
    latest.add_keys(12, Keys([b"c", b"d", b"a"], [0, 1, 2], []))
    assert latest.is_full
    assert (len(latest), latest.end_offset) == (4, 15)
    assert list(latest.kept_records(10, Keys([b"a", b"b"], [0, 1], []))) == [0, 1]


def test_long_keys_are_distinguished_by_their_digest() -> None:
    values = [b"a" * 40, b"a" * 41, b"a" * 15, b"", None]
    batch = encode_batch([Record(n, 0, key, b"v") for n, key in enumerate(values)])
    (found,) = keys_of([bytes(batch)], 1 << 20)
    assert len(set(found.keys)) == 5
    assert [None if key is None else len(key) for key in found.keys] == [16, 16, 15, 0, None]


@pytest.mark.parametrize(
    ("sizes", "index_sizes", "expected"),
    [
        ([400, 600, 1], [8, 8, 8], [2, 1]),
        ([1000, 1000], [8, 8], [1, 1]),
        ([10, 10, 10], [60, 60, 8], [1, 2]),
        ([2000, 10], [8, 8], [1, 1]),
        ([], [], []),
    ],
)
def test_neighbours_are_rewritten_into_one_segment(
    sizes: list[int], index_sizes: list[int], expected: list[int]
) -> None:
    extents = [Extent(n * 10, n * 10 + 10, *each) for n, each in enumerate(zip(sizes, index_sizes, strict=True))]
    found = group_segments(extents, 1000, 100)
    assert [len(group) for group in found] == expected
    assert [each for group in found for each in group] == extents


def test_relative_offsets_must_fit() -> None:
    far = [Extent(0, 10, 1, 1), Extent(2**31 - 1, 2**31, 1, 1), Extent(2**31, 2**31 + 1, 1, 1)]
    assert [len(group) for group in group_segments(far, 1000, 1000)] == [2, 1]
