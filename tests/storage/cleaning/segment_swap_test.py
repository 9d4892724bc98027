"""Segments are exchanged while the log is read, cut, deleted and stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.storage.cleaning.cleaner_test import filled, go_on, start
from tests.storage.cleaning.pass_test import LIMIT, fill, latest, records
from tests.storage.conftest import TP, Answers, Shelf, SimWorld

from ottla.record.batch import Record
from ottla.seams import Failure
from ottla.sim.machines.machine import Death
from ottla.storage.indexes.timestamps import offset_for
from ottla.storage.retention.retention_enforcer import delete_old_segments

__all__ = ["filled"]


def moments(filled: Shelf) -> Iterator[int]:
    """Run the first pass step by step; pauses inside an exchange show the state that other operations meet."""
    filled.manager.run_due()
    for moment in range(10_000):
        if filled.log.cleaning.exchange is not None:
            yield moment
        if filled.log.cleaning.checkpoint:
            return
        if not filled.world.timeline.run_next_event():
            filled.world.advance(1000)
            filled.manager.run_due()


def exchanging(seed: int, stop_at: int) -> tuple[SimWorld, Shelf, list[Record]]:
    """A log in the middle of an exchange, and its records before."""
    world = SimWorld(seed=seed)
    shelf = start(world)
    fill(shelf, 1, batches=200, keys=80)
    shelf.flush()
    before = records(shelf)
    for count, _ in enumerate(moments(shelf)):
        if count == stop_at:
            break
    assert shelf.log.cleaning.exchange is not None
    return world, shelf, before


@pytest.mark.parametrize("stop_at", range(0, 12, 2))
def test_a_truncation_finishes_the_exchange_and_ends_the_pass(stop_at: int) -> None:
    world, shelf, before = exchanging(3, stop_at)
    shelf.log.truncate_to(20)
    assert shelf.log.cleaning.exchange is None
    assert not [name for name in world.names(str(TP)) if name.endswith((".cleaned", ".swap"))]
    for record in records(shelf):
        assert record in before
        assert record.offset < 20
    end = shelf.log.end_offset
    assert end <= 20
    world.settle()
    assert shelf.log.cleaned_until == 0
    fill(shelf, 9)
    go_on(shelf, 120_000)
    assert shelf.log.cleaned_until == shelf.log.segments.active.base_offset
    after = records(shelf)
    shelf.stop()
    assert records(start(world)) == after
    world.close()


@pytest.mark.parametrize("stop_at", range(0, 12, 3))
def test_retention_waits_for_an_exchange(stop_at: int) -> None:
    world, shelf, _ = exchanging(4, stop_at)
    shelf.log.set_start_offset(shelf.log.end_offset)
    assert delete_old_segments(shelf.log, world.clock.now()) == 0
    go_on(shelf, 120_000)
    delete_old_segments(shelf.log, world.clock.now())
    assert len(shelf.log.segments) == 1, "all but the active one"
    world.settle()
    shelf.stop()
    assert start(world).log.start_offset == shelf.log.end_offset
    world.close()


@pytest.mark.parametrize("stop_at", range(0, 12, 3))
def test_a_log_may_be_deleted_while_segments_are_exchanged(stop_at: int) -> None:
    world, shelf, _ = exchanging(5, stop_at)
    shelf.manager.delete_log(TP)
    go_on(shelf, 120_000)
    assert shelf.manager.offline_dirs == ()
    assert shelf.manager.get_log(TP) is None
    made = shelf.log
    assert made.cleaned_until == 0
    fill(shelf, 2)
    go_on(shelf, 120_000)
    assert made.cleaned_until == made.segments.active.base_offset
    world.close()


@pytest.mark.parametrize("stop_at", range(12))
def test_a_clean_stop_finishes_the_exchange(stop_at: int) -> None:
    world, shelf, before = exchanging(6, stop_at)
    assert not isinstance(shelf.stop(), Failure)
    assert not [name for name in world.names(str(TP)) if name.endswith(".swap")]
    again = start(world)
    assert latest(records(again)) == latest(before)
    go_on(again)
    assert again.log.cleaned_until == again.log.segments.active.base_offset
    assert latest(records(again)) == latest(before)
    world.close()


@pytest.mark.parametrize("stop_at", range(3))
def test_a_failure_in_an_exchange_takes_the_directory_offline(stop_at: int) -> None:
    world, shelf, before = exchanging(7, stop_at)
    world.faults[0].broken = True
    world.settle()
    go_on(shelf, 30_000)
    assert shelf.manager.offline_dirs == ("data0",)
    world.restart(Death.POWER_LOSS)
    assert latest(records(start(world))) == latest(before)
    world.close()


def test_readers_are_served_while_segments_are_exchanged() -> None:
    world = SimWorld(seed=8)
    shelf = start(world)
    fill(shelf, 1, batches=200, keys=80)
    before, seen, looked_up = records(shelf), 0, Answers()
    for _ in moments(shelf):
        for offset in range(0, shelf.log.end_offset, 40):
            region = shelf.log.read(offset, LIMIT, shelf.log.end_offset, warmed=True)
            assert region is not None
            assert region.generation == region.file.generation
        shelf.log.segments.aborted_transactions(0, shelf.log.end_offset)
        offset_for(shelf.log.segments, shelf.log.start_offset, 1050, looked_up, shelf.log.home.workers)
        seen += 1
    assert seen > 5
    assert not [each for each in looked_up if isinstance(each, Failure)]
    assert latest(records(shelf)) == latest(before)
    world.close()


def test_a_region_read_before_an_exchange_keeps_its_bytes(sim: SimWorld, filled: Shelf) -> None:
    region = filled.log.read(0, LIMIT, filled.log.end_offset)
    assert region is not None
    pinned = bytearray(region.size)
    region.file.read_now(region.pos, memoryview(pinned))
    answers = Answers()
    region.file.read(region.pos, region.size, answers)
    go_on(filled)
    assert filled.log.cleaned_until > 0
    assert answers == [bytes(pinned)]
    fresh = filled.log.read(0, LIMIT, filled.log.end_offset, warmed=True)
    assert fresh is not None
    assert fresh.file is not region.file


def test_no_part_of_a_new_segment_is_announced_before_all_of_it_has_a_durable_name() -> None:
    """Otherwise a power cut may leave only its time index, which a start then puts beside the old segment."""
    world = SimWorld(seed=8)
    shelf = start(world)
    fill(shelf, 1, batches=200, keys=80)
    shelf.flush()
    directory = world.drives[0].find_path(str(TP))
    for _ in moments(shelf):
        if any(name.endswith(".swap") for name in directory.names):
            break
    new = {name.removesuffix(".swap") for name in directory.names if name.endswith(".swap")}
    assert len(new) >= 3
    assert {name + ".cleaned" for name in new} <= set(directory.durable)
    world.close()


def test_a_new_segments_log_is_renamed_durably_before_its_indexes() -> None:
    """Otherwise a start that finds the log under `.swap` takes the new transaction index for an old one."""
    world = SimWorld(seed=8)
    shelf = start(world)
    fill(shelf, 1, batches=200, keys=80)
    shelf.flush()
    directory, named = world.drives[0].find_path(str(TP)), 0
    for _ in moments(shelf):
        exchange = shelf.log.cleaning.exchange
        retired = exchange is not None and f"{0:020d}.index.deleted" in directory.names
        if retired and f"{0:020d}.index" in directory.names:
            named += 1
            assert directory.durable[f"{0:020d}.log"] is directory.names[f"{0:020d}.log"]
    assert named
    world.close()
