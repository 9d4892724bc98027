"""The index files of a running broker, as another program reads them."""

from __future__ import annotations

from pathlib import Path

from tests.storage.conftest import SMALL

from ottla.config.topic import TopicConfig
from ottla.storage.dump.indexes import (
    IndexOptions,
    TimeErrors,
    dump_offset_index,
    dump_time_index,
    dump_txn_index,
)

T0 = 1_700_000_000_000
OFTEN = TopicConfig(index_interval_bytes=300)


def entries_of(path: Path) -> tuple[int, int]:
    """Entries of the offset index and the time index of the segment at `path`; no mismatch may be found."""
    mismatches: dict[int, int] = {}
    errors = TimeErrors([], [], [])
    index, times = path.with_suffix(".index"), path.with_suffix(".timeindex")
    offsets = list(dump_offset_index(str(index), IndexOptions(), mismatches))
    stamps = list(dump_time_index(str(times), IndexOptions(), errors))
    assert (mismatches, errors) == ({}, TimeErrors([], [], []))
    assert index.stat().st_size % 8 == 0
    return index.stat().st_size // 8, len(stamps) if offsets else 0


def test_there_is_no_mismatch_whatever_the_moment(real, kit, tmp_path: Path) -> None:
    shelf = kit.Shelf(real, OFTEN)
    path = tmp_path / "t-0" / "00000000000000000000.log"
    shelf.put(kit.batch(3, timestamp=T0))
    assert entries_of(path) == (0, 0)
    for number in range(1, 2500):
        shelf.put(kit.batch(2 + number % 3, 20, timestamp=T0 + number))
        if number % 250 == 0:
            entries_of(path)
    written, _ = entries_of(path)
    assert written > 400, "in lots of 4 KiB"


def test_entries_are_in_the_files_a_second_later(sim, kit) -> None:
    shelf = kit.Shelf(sim, OFTEN)
    shelf.put(*(kit.batch(2, timestamp=T0 + number) for number in range(20)))
    index = "t-0/00000000000000000000.index"
    assert sim.contents(index) == b""
    sim.advance(1000)
    shelf.manager.run_due()
    held = shelf.log.segments.active.index.entries
    assert 5 < held == len(sim.contents(index)) // 8
    assert len(sim.contents("t-0/00000000000000000000.timeindex")) == 12 * held
    shelf.put(*(kit.batch(2, timestamp=T0 + 100 + number) for number in range(20)))
    sim.advance(1000)
    shelf.manager.run_due()
    assert held < shelf.log.segments.active.index.entries == len(sim.contents(index)) // 8


def test_many_logs_do_not_write_their_entries_in_one_turn(sim, kit) -> None:
    shelf = kit.Shelf(sim, OFTEN)
    home = shelf.log._home
    shown: list[int] = []

    class One:
        def show_entries(self) -> None:
            shown.append(len(shown))

    for _ in range(100):
        home.show_entries_soon(One())
    sim.advance(1000)
    for turns in range(1, 5):
        shelf.manager.run_due()
        assert len(shown) == min(100, 32 * turns)
        sim.advance(10)


def test_an_aborted_transaction_is_in_its_index_at_once(real, kit, tmp_path: Path) -> None:
    shelf = kit.Shelf(real, SMALL)
    for number in range(3):
        batch = kit.batch(2, producer_id=7, producer_epoch=0, base_sequence=2 * number, transactional=True)
        shelf.put(batch, kit.marker(7, 0, commit=False))
        found = list(dump_txn_index(str(tmp_path / "t-0" / "00000000000000000000.txnindex")))
        assert len(found) == number + 1
