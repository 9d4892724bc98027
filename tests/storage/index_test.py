"""The sparse indexes: entries, look-ups, limits; the worked examples of the source documents."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.record.batch import Record, encode_batch
from ottla.storage.errors import IndexFull, IndexOverflow, NotMonotonic
from ottla.storage.indexes.index import (
    WARM_BYTES,
    OffsetIndex,
    OffsetPosition,
    TimeIndex,
    TimestampOffset,
    largest_at_most,
)

PAGE = 4096
LIMIT = 1024 * 1024


@pytest.fixture
def offset_index(world):
    def made(base_offset: int = 0, limit: int = LIMIT) -> OffsetIndex:
        return OffsetIndex(world.disk, f"{base_offset:020d}.index", base_offset, limit, create=True)

    return made


@pytest.fixture
def time_index(world):
    def made(base_offset: int = 0, limit: int = LIMIT) -> TimeIndex:
        return TimeIndex(world.disk, f"{base_offset:020d}.timeindex", base_offset, limit, create=True)

    return made


def test_offset_index_entries(world, kit) -> None:
    """Batches of 819 records "hello world ", 16,377 bytes: one entry each, last offset and first byte."""
    shelf = kit.Shelf(world)
    for _ in range(10):
        records = [Record(number, 1_600_000_000_000, None, b"hello world ") for number in range(819)]
        batch = encode_batch(records)
        assert len(batch) == 16_377
        shelf.put(batch)
    index = shelf.log.segments.active.index
    expected = [(819 * number + 818, 16_377 * number) for number in range(1, 10)]
    assert [index.entry_at_slot(slot) for slot in range(index.entries)] == expected
    # Files of the 1.0 era hold the base offset: a look-up finds a place at or before the batch in both.
    old = OffsetIndex(world.disk, "old.index", 0, LIMIT, create=True)
    for number in range(1, 10):
        old.append(819 * number, 16_377 * number)
    assert old.lookup_offset(819) == old.lookup_offset(1637) == (819, 16_377)
    assert old.lookup_offset(818) == (0, 0)


def test_lookup_offset_23(offset_index) -> None:
    index = offset_index()
    for offset, position in ((6, 100), (14, 210), (20, 320), (26, 430)):
        index.append(offset, position)
    assert index.lookup_offset(23) == (20, 320)


def test_lookup_offset_115(offset_index) -> None:
    index = offset_index()
    for offset, position in ((100, 4000), (110, 8200), (120, 13000), (130, 18000)):
        index.append(offset, position)
    assert index.lookup_offset(115) == (110, 8200)


def test_lookup_offset_230(offset_index) -> None:
    """Relative offset 13 in the segment 217: start at 456, the entry of relative offset 12."""
    index = offset_index(217)
    for relative, position in ((6, 156), (12, 456), (18, 612)):
        index.append(217 + relative, position)
    assert 230 - index.base_offset == 13
    assert index.lookup_offset(230) == (217 + 12, 456)


def test_relative_offset(world, offset_index) -> None:
    index = offset_index(32)
    index.append(35, 7)
    index.write_out()
    assert bytes(world.contents(f"{32:020d}.index"))[:8] == bytes([0, 0, 0, 3, 0, 0, 0, 7])
    for offset in (31, 32 + 2**31):
        with pytest.raises(IndexOverflow):
            index.append(offset, 8)
    index.append(32 + 2**31 - 1, 8)
    assert index.last_entry == (32 + 2**31 - 1, 8)


def test_index_size_rounds_down(offset_index, time_index) -> None:
    index = offset_index(limit=67)
    assert index.max_entries * 8 == 64
    for number in range(1, 9):
        assert not index.is_full
        index.append(number, number)
    assert index.is_full
    assert time_index(limit=67).max_entries * 12 == 60


def test_warm_lookup_touches_few_pages() -> None:
    """13 pages, then 14: plain bisection reads other pages each time, this search only those of the tail."""

    def touched(entries: int, warm: int, per_page: int) -> list[int]:
        pages: list[int] = []

        def key_at(_: bytearray, slot: int) -> tuple[int]:
            if slot // per_page not in pages:
                pages.append(slot // per_page)
            return (slot,)

        assert largest_at_most(key_at, bytearray(), 1, 0, entries, entries - 1, warm) == entries - 1
        return pages

    everything = 1 << 30
    assert touched(13, everything, per_page=1) == [0, 6, 9, 11, 12]
    assert touched(14, everything, per_page=1) == [0, 7, 10, 12, 13]
    per_page = PAGE // 8
    for entries in (12 * per_page + 1, 12 * per_page + 100, 13 * per_page, 13 * per_page + 1):
        last = (entries - 1) // per_page
        assert set(touched(entries, WARM_BYTES // 8, per_page)) <= {last - 2, last - 1, last}


def test_a_lookup_below_the_warm_section_leaves_it_alone() -> None:
    per_page = PAGE // 8
    pages = set()

    def key_at(_: bytearray, slot: int) -> tuple[int]:
        pages.add(slot // per_page)
        return (slot,)

    assert largest_at_most(key_at, bytearray(), 1, 0, 13 * per_page, 5, WARM_BYTES // 8) == 5
    assert 12 not in pages


def test_time_index_monotonic(time_index) -> None:
    index = time_index(limit=5 * 12)
    index.append(100, 10)
    index.append(100, 12)
    assert index.entries == 1
    with pytest.raises(NotMonotonic):
        index.append(99, 13)
    with pytest.raises(NotMonotonic):
        index.append(101, 9)
    for number in range(1, 4):
        index.append(100 + number, 10 + number)
    with pytest.raises(IndexFull):
        index.append(200, 20)
    index.append(200, 20, closing=True)
    assert index.last_entry == (200, 20)
    with pytest.raises(IndexFull):
        index.append(201, 21, closing=True)


def test_offsets_must_rise(offset_index) -> None:
    index = offset_index(10)
    index.append(12, 0)
    for offset in (12, 11):
        with pytest.raises(NotMonotonic):
            index.append(offset, 5)
    assert index.entries == 1


def test_a_full_index_refuses(offset_index) -> None:
    index = offset_index(limit=16)
    index.append(1, 1)
    index.append(2, 2)
    with pytest.raises(IndexFull):
        index.append(3, 3)


def test_an_empty_index_points_to_the_start(offset_index, time_index) -> None:
    assert offset_index(5).lookup_offset(100) == (5, 0)
    assert offset_index(7).last_entry is None
    assert time_index(5).lookup_timestamp(100) == (-1, 5)
    assert time_index(9).last_entry == (-1, 9)


def test_the_file_holds_entries_and_nothing_else(world, offset_index) -> None:
    index = offset_index(limit=800)
    assert world.contents(f"{0:020d}.index") == b""
    index.append(3, 4)
    index.seal_file()
    assert world.contents(f"{0:020d}.index") == bytes([0, 0, 0, 3, 0, 0, 0, 4])
    assert index.lookup_offset(9) == (3, 4)


def test_entries_come_back_from_a_file_that_was_not_closed(world, offset_index) -> None:
    """A file of Apache Kafka that was not closed has its full length: zeros after the entries are ignored."""
    index = offset_index(limit=800)
    index.append(3, 256)
    index.append(9, 512)
    index.write_out()
    world.overwrite(f"{0:020d}.index", world.contents(f"{0:020d}.index")[:16].ljust(800, b"\0"))
    index.close()
    reopened = OffsetIndex(world.disk, f"{0:020d}.index", 0, 0)
    assert [reopened.entry_at_slot(slot) for slot in range(reopened.entries)] == [(3, 256), (9, 512)]


def test_truncate_keeps_what_is_below(offset_index, time_index) -> None:
    index, times = offset_index(), time_index()
    for number in range(1, 10):
        index.append(number * 10, number * 100)
        times.append(number * 1000, number * 10)
    index.truncate_to(50)
    times.truncate_to(50)
    assert index.last_entry == (40, 400)
    assert times.last_entry == (4000, 40)
    index.append(45, 410)
    times.append(4500, 45)
    index.truncate_to(46)
    assert index.last_entry == (45, 410)
    index.truncate_to(0)
    times.truncate_to(0)
    assert index.entries == times.entries == 0


def test_impossible_index_files_are_not_sane(world, offset_index) -> None:
    index = offset_index(100)
    index.append(103, 50)
    assert index.is_sane(log_size=1000)
    assert not index.is_sane(log_size=50)
    index.seal_file()
    index.close()
    world.overwrite(f"{100:020d}.index", b"12345")
    assert not OffsetIndex(world.disk, f"{100:020d}.index", 100, 0).is_sane(1000)


@given(
    steps=st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5000)), max_size=60),
    warm=st.integers(1, 70),
    target=st.integers(0, 3100),
)
def test_search_is_bisection(steps, warm, target) -> None:
    """Whatever the warm section is, the result is that of a linear search."""
    keys = []
    for step, _ in steps:
        keys.append((keys[-1] if keys else 0) + step)
    expected = max((slot for slot, key in enumerate(keys) if key <= target), default=-1)
    assert largest_at_most(lambda _, slot: (keys[slot],), bytearray(), 1, 0, len(keys), target, warm) == expected


@pytest.mark.slow
@given(data=st.data())
def test_an_index_is_a_sorted_map(kit, data) -> None:
    """Against a plain list, through appends, truncation, sealing and reopening."""
    world = kit.SimWorld()
    index = OffsetIndex(world.disk, "i.index", 50, LIMIT, create=True)
    times = TimeIndex(world.disk, "i.timeindex", 50, LIMIT, create=True)
    model: list[tuple[int, int]] = []
    for _ in range(data.draw(st.integers(0, 3))):
        for _ in range(data.draw(st.integers(0, 30))):
            last = model[-1] if model else (49, 0)
            entry = last[0] + data.draw(st.integers(1, 9)), last[1] + data.draw(st.integers(1, 9))
            model.append(entry)
            index.append(*entry)
            times.append(entry[1], entry[0])
        if data.draw(st.booleans()):
            cut = data.draw(st.integers(40, 400))
            model = [entry for entry in model if entry[0] < cut]
            index.truncate_to(cut)
            times.truncate_to(cut)
    if data.draw(st.booleans()):
        index.seal_file()
        times.seal_file()
    for target in range(40, 360, 7):
        below = [entry for entry in model if entry[0] <= target]
        assert index.lookup_offset(target) == (OffsetPosition(*below[-1]) if below else (50, 0))
        before = [entry for entry in model if entry[1] <= target]
        assert times.lookup_timestamp(target) == (TimestampOffset(before[-1][1], before[-1][0]) if before else (-1, 50))
        at = [entry for entry in model if entry[1] <= target]
        assert index.floor_of_position(target) == (at[-1][1] if at else 0)
