"""The batches of a fetch that an application may see."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import CorruptBatchError, Fetched, TopicPartition, records_in, visible_batches
from ottla.client.fetching.batches import visible_positions, whole_batches
from ottla.record.batch import Record, encode_batch
from ottla.record.control import ControlType, control_key, marker_value

WHERE = TopicPartition("t", 0)


def data(offset: int, producer: int = -1, count: int = 1) -> bytearray:
    records = [Record(offset + n, 1000 + n, None, b"%d" % (offset + n)) for n in range(count)]
    return encode_batch(records, base_offset=offset, producer_id=producer, transactional=producer >= 0)


def marker(offset: int, producer: int, kind: ControlType) -> bytearray:
    record = Record(offset, 1000, control_key(kind), marker_value(0))
    return encode_batch([record], base_offset=offset, producer_id=producer, transactional=True, control=True)


def fetched(log: bytes, aborted: tuple[tuple[int, int], ...] = (), offset: int = 0) -> Fetched:
    view, end = whole_batches(memoryview(log), WHERE, offset)
    return Fetched(WHERE, offset, end, view, end, end, 0, aborted, True, None)


def test_aborted_records_and_markers_are_left_out() -> None:
    log = b"".join(
        [
            data(0),
            data(1, producer=7),
            data(2, producer=8),
            marker(3, 7, ControlType.ABORT),
            data(4, producer=7),
            marker(5, 8, ControlType.COMMIT),
            marker(6, 7, ControlType.COMMIT),
        ]
    )
    assert [r.offset for r in records_in(fetched(log, aborted=((7, 1),)))] == [0, 2, 4]
    assert [r.offset for r in records_in(fetched(log))] == [0, 1, 2, 4], "read_uncommitted has no list"


@pytest.mark.slow
@given(st.data())
def test_read_committed_shows_committed_records(draw) -> None:
    """Compares with a model that records how every transaction ended."""
    steps = draw.draw(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("daac")), max_size=40))
    log, offset = [], 0
    open_since: dict[int, list[int]] = {}
    expected, aborted = [], []
    for producer, step in steps:
        if step == "d":
            log.append(data(offset, producer))
            open_since.setdefault(producer, []).append(offset)
        elif producer in open_since:
            abort = step == "a"
            log.append(marker(offset, producer, ControlType.ABORT if abort else ControlType.COMMIT))
            offsets = open_since.pop(producer)
            if abort:
                aborted.append((producer, offsets[0]))
            else:
                expected += offsets
        else:
            log.append(data(offset))
            expected.append(offset)
        offset += 1
    # A broker serves records up to the last stable offset: cut the log where the first open transaction began.
    stable = min([offset, *(offsets[0] for offsets in open_since.values())])
    served = b"".join(log[:stable])
    if not served:
        return
    listed = tuple(sorted((item for item in aborted if item[1] < stable), key=lambda item: item[1]))
    seen = [record.offset for record in records_in(fetched(served, listed))]
    assert seen == sorted(found for found in expected if found < stable)
    view = memoryview(served)
    for aborted_ones in (listed, ()):
        both = visible_positions(view, WHERE, aborted_ones), visible_batches(view, WHERE, aborted_ones)
        assert both[0] == [pos for pos, _ in both[1]]


def test_records_before_the_position_are_left_out() -> None:
    assert [r.offset for r in records_in(fetched(bytes(data(10, count=5)), offset=12))] == [12, 13, 14]


def test_a_wrong_checksum_is_an_error_with_the_offset() -> None:
    log = data(0) + data(1)
    log[-1] ^= 1
    view = memoryview(log)
    visible = visible_batches(view, WHERE)
    assert next(visible)[1].base_offset == 0
    with pytest.raises(CorruptBatchError, match=r"t-0: the batch at offset 1 does not match its checksum"):
        next(visible)
    assert len(list(visible_batches(view, WHERE, check_crcs=False))) == 2
    with pytest.raises(CorruptBatchError, match=r"t-0: the batch at offset 1 does not match its checksum"):
        visible_positions(view, WHERE)
    assert visible_positions(view, WHERE, check_crcs=False) == [0, len(data(0))]
    assert visible_positions(view[:-1], WHERE) == [0], "a cut-off batch at the end is left out"


@pytest.mark.parametrize("cut", [1, 60, 62])
def test_a_cut_off_last_batch_is_left_out(cut: int) -> None:
    """Apache Kafka cuts the last batch at the size limit. Without this, every reader would have to check for it."""
    log = data(0, count=3) + data(3)
    whole, end = whole_batches(memoryview(log)[:-cut], WHERE, 0)
    assert (whole, end) == (data(0, count=3), 3)
    assert whole_batches(memoryview(log), WHERE, 0) == (log, 4)


@pytest.mark.parametrize(
    ("log", "offset", "why"),
    [
        (b"", 0, "not contain a whole batch"),
        (bytes(data(0))[:-1], 0, "not contain a whole batch"),
        (bytes(data(5)), 6, "instead of"),
        (bytes(data(5) + data(5)), 5, "instead of"),
        (bytes(data(5) + data(3)), 5, "instead of"),
        (bytes(data(0))[:16] + b"\x01" + bytes(data(0))[17:], 0, "magic 1"),
        (bytes(8) + b"\xff\xff\xff\xff" + bytes(data(0))[12:], 0, "batchLength -1"),
    ],
)
def test_batches_with_wrong_offsets_or_lengths_are_refused(log: bytes, offset: int, why: str) -> None:
    with pytest.raises(CorruptBatchError, match=why):
        whole_batches(memoryview(log), WHERE, offset)


@given(st.binary(max_size=300))
def test_any_bytes_give_an_offset_or_a_named_error(noise: bytes) -> None:
    try:
        whole, end = whole_batches(memoryview(noise), WHERE, 0)
    except CorruptBatchError:
        return
    assert whole
    assert end > 0


@given(st.integers(0, 400), st.integers(1, 255))
def test_a_damaged_batch_never_gives_other_records(at: int, flip: int) -> None:
    """Damages every byte that the checksum covers: not base offset, length, epoch and magic."""
    log = bytearray(data(0, count=20))
    at = 21 + at % (len(log) - 21)
    log[at] ^= flip
    with pytest.raises(CorruptBatchError):
        list(records_in(fetched(bytes(log))))


def test_a_decompression_bomb_stops_at_the_limit() -> None:
    bomb = encode_batch([Record(0, 0, None, bytes(5_000_000))], codec=1)
    with pytest.raises(CorruptBatchError, match="the batch at offset 0"):
        list(records_in(fetched(bytes(bomb)), max_batch_bytes=1_000_000))
