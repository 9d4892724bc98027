"""Passes of compaction over logs with messages of formats v0 and v1, against a dict of keys."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.messagesets import GZIP, LZ4, SNAPPY, kept_set
from tests.storage.cleaning.pass_test import SMALL, clean
from tests.storage.conftest import Shelf, SimWorld, read_all

from ottla.record.batch import Record, encode_batch
from ottla.record.log_entries import entries_of
from ottla.seams import Failure

T = 1_700_000_000_000
SETS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([0, GZIP, SNAPPY, LZ4]),
        st.lists(st.tuples(st.integers(0, 6), st.integers(-1, 150)), min_size=1, max_size=6),
    ),
    min_size=1,
    max_size=20,
)


def write(shelf: Shelf, magic: int, codec: int, rows: list[tuple[int, int]]) -> list[Record]:
    end = shelf.log.end_offset
    records = [
        Record(end + at, T + at if magic else -1, b"key %d" % key, None if size < 0 else b"v" * size)
        for at, (key, size) in enumerate(rows)
    ]
    content = kept_set(magic, codec, records) if magic < 2 else encode_batch(records, base_offset=end, codec=codec)
    shelf.log.append_replica(memoryview(bytes(content)), 0)
    shelf.log.high_watermark = shelf.log.end_offset
    return records


def made(shelf: Shelf, sets) -> list[Record]:
    """All records but the last one, which keeps the log's end, are in segments that can be cleaned."""
    records = [record for one in sets for record in write(shelf, *one)]
    shelf.log.roll_segment()
    return records


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(SETS)
def test_the_latest_of_every_key_stays_where_it_was(sets) -> None:
    world = SimWorld()
    shelf = Shelf(world, SMALL)
    records = made(shelf, sets)
    latest = {record.key: record for record in records}
    for _ in range(2):
        assert not isinstance(clean(shelf, now_ms=T), Failure)
        assert read_all(world, shelf.log) == sorted(latest.values(), key=lambda record: record.offset)
    assert not isinstance(clean(shelf, now_ms=T + 10_000), Failure)
    values = [record for record in sorted(latest.values(), key=lambda r: r.offset) if record.value is not None]
    assert read_all(world, shelf.log) == values
    world.settle()
    world.restart()
    again = Shelf(world, SMALL)
    assert again.log.end_offset == len(records)
    assert read_all(world, again.log) == values


def test_rewritten_entries_are_of_format_v2(sim) -> None:
    shelf = Shelf(sim, SMALL)
    made(shelf, [(0, 0, [(1, 10), (2, 10)]), (1, GZIP, [(1, 20), (3, 20)]), (2, 0, [(3, 30)])])
    assert not isinstance(clean(shelf), Failure)
    content = sim.contents(shelf.log.segments.first.path)
    assert [header[3] for _, header in entries_of(content)] == [2] * 3
    assert [record.offset for record in read_all(sim, shelf.log)] == [1, 2, 4]


def test_a_damaged_old_message_is_kept_and_reported(sim) -> None:
    shelf = Shelf(sim, SMALL)
    made(shelf, [(1, 0, [(1, 10), (2, 10)])])
    path = shelf.log.segments.first.path
    content = bytearray(sim.contents(path))
    content[-1] ^= 1
    sim.overwrite(path, bytes(content))
    outcome = clean(shelf)
    assert isinstance(outcome, Failure)
    assert "offset 1 does not match its checksum" in outcome.message
    assert sim.contents(path) == content
