"""Whole passes over logs on a disk, real and simulated, and stops in the middle of them."""

from __future__ import annotations

import importlib
import random
from typing import Any

import pytest
from tests.storage.conftest import TP, Answers, Shelf, SimWorld, read_bytes

from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, batches_of, encode_batch, records_of
from ottla.record.control import Marker, marker_batch
from ottla.record.errors import CorruptRecord
from ottla.seams import Done, Failure, Kind
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death
from ottla.storage.cleaning.batch_retention import LastBatch, RetentionBounds
from ottla.storage.cleaning.cleaning_pass import Cleaned, CleaningPass, CleaningTask
from ottla.storage.cleaning.offset_map import ENTRY_BYTES
from ottla.storage.cleaning.steps import run_steps
from ottla.storage.log import Log

LIMIT = 1 << 20
SMALL = TopicConfig(segment_bytes=3_000, index_interval_bytes=200, cleanup_policy=("compact",))


class Jobs:
    """`Workers` in this process; results arrive in a later turn."""

    def __init__(self, shelf: Shelf) -> None:
        self._disk = shelf.world.disk
        self.ran = 0

    def run_job(self, job: str, arguments: tuple[object, ...], done: Done[object]) -> None:
        module, _, function = job.partition(":")
        self.ran += 1
        result: object
        try:
            result = getattr(importlib.import_module(module), function)(*arguments)
        except CorruptRecord as error:
            result = Failure(Kind.IO, str(error))
        self._disk.sync_dir("", lambda _: done(result))


def task(
    log: Log, dirty_from: int = 0, now_ms: int = 0, removable_below: int = 1 << 60, room: int = 1 << 20
) -> CleaningTask:
    last = {
        entry.producer_id: LastBatch(entry.producer_epoch, entry.last_offset)
        for entry in log.producers.snapshot_entries()
    }
    unstable = log.first_unstable_offset
    bound = log.segments.active.base_offset if unstable is None else min(unstable, log.segments.active.base_offset)
    until = log.segments[log.segments.floor_slot(bound)].base_offset
    return CleaningTask(
        log.tp, log.directory, log.config, log.segments, log.cleaning, log.start_offset, dirty_from, until, last,
        RetentionBounds(now_ms, 1000, removable_below), room, LIMIT,
    )  # fmt: skip


def clean(shelf: Shelf, **facts: int) -> Any:
    answers = Answers()
    home = shelf.log._home
    run_steps(CleaningPass(home, Jobs(shelf), task(shelf.log, **facts)).run_steps(), answers)
    shelf.world.settle()
    (answer,) = answers
    return answer


def records(shelf: Shelf) -> list[Record]:
    """All records of the log, without control records."""
    log, found, offset = shelf.log, [], shelf.log.start_offset
    while offset < log.end_offset:
        data = read_bytes(shelf.world, log, offset, LIMIT, log.end_offset)
        if not data:
            break
        for pos, header in batches_of(data):
            if not header.is_control:
                found += list(records_of(data, pos, max_bytes=LIMIT))
            offset = header.last_offset + 1
    return found


def fill(shelf: Shelf, seed: int, batches: int = 60, keys: int = 12) -> None:
    chosen = random.Random(seed)
    for number in range(batches):
        rows = [
            Record(n, 1000 + number, b"k%d" % chosen.randrange(keys), chosen.choice([None, b"v%d" % number * 9]))
            for n in range(chosen.randrange(1, 6))
        ]
        shelf.put(encode_batch(rows, codec=chosen.choice([0, 1, 2, 3, 4])))
    shelf.log.high_watermark = shelf.log.end_offset


def latest(found: list[Record]) -> dict[bytes | None, bytes | None]:
    return {record.key: record.value for record in found}


def living(found: list[Record]) -> dict[bytes | None, bytes | None]:
    return {key: value for key, value in latest(found).items() if value is not None}


@pytest.mark.parametrize("seed", range(4))
def test_the_latest_value_of_every_key_stays_where_it_was(world: Any, seed: int) -> None:
    shelf = Shelf(world, SMALL)
    fill(shelf, seed)
    before, end = records(shelf), shelf.log.segments.active.base_offset
    done = clean(shelf)
    assert isinstance(done, Cleaned), done
    assert done.end_offset == end
    assert done.bytes_after < done.bytes_before
    after = records(shelf)
    assert latest(after) == latest(before)
    assert set(after) <= set(before)
    assert [r for r in after if r.offset >= end] == [r for r in before if r.offset >= end]
    clean_part = [record.key for record in after if record.offset < end]
    assert len(clean_part) == len(set(clean_part))
    assert len(shelf.log.segments) < 5, "neighbours became one"
    assert not [name for name in world.names(str(TP)) if name.endswith((".cleaned", ".swap"))]


def test_cleaned_records_are_found_by_offset_and_by_time(world: Any) -> None:
    shelf = Shelf(world, SMALL)
    fill(shelf, 1)
    clean(shelf)
    before = records(shelf)
    shelf.stop()
    again = shelf.again()
    assert records(again) == before
    for record in before[::3]:
        found = again.lookup(record.timestamp)
        assert found is not None
        first = next(one for one in before if one.timestamp >= record.timestamp)
        assert found.offset <= first.offset


def test_a_second_pass_begins_where_the_first_ended_and_removes_old_tombstones(world: Any) -> None:
    shelf = Shelf(world, SMALL)
    fill(shelf, 2)
    first = clean(shelf, now_ms=10_000)
    fill(shelf, 3)
    before = records(shelf)
    second = clean(shelf, dirty_from=first.end_offset, now_ms=20_000)
    after = records(shelf)
    assert living(after) == living(before)
    assert second.end_offset > first.end_offset
    third = clean(shelf, dirty_from=second.end_offset, now_ms=40_000)
    assert third.end_offset == second.end_offset
    old = [record for record in records(shelf) if record.offset < second.end_offset]
    assert old
    assert all(record.value is not None for record in old)


def test_a_small_map_takes_several_passes(world: Any) -> None:
    shelf = Shelf(world, SMALL)
    fill(shelf, 5, keys=40)
    before, at, passes = records(shelf), 0, 0
    while at < shelf.log.segments.active.base_offset:
        done = clean(shelf, dirty_from=at, room=ENTRY_BYTES * 8)
        assert done.end_offset > at
        at, passes = done.end_offset, passes + 1
    assert passes > 2
    assert latest(records(shelf)) == latest(before)


def test_aborted_records_are_removed_and_their_marker_stays_for_readers(world: Any) -> None:
    shelf = Shelf(world, SMALL)
    log = shelf.log
    facts = {"producer_epoch": 0, "transactional": True, "base_sequence": 0}
    shelf.put(encode_batch([Record(0, 5, b"a", b"kept")], producer_id=1, **facts))
    shelf.put(encode_batch([Record(0, 5, b"a", b"aborted")], producer_id=2, **facts))
    shelf.put(marker_batch(2, 0, Marker(False, 1), 5), marker_batch(1, 0, Marker(True, 1), 5))
    log.high_watermark = log.end_offset
    log.roll_segment()
    fill(shelf, 1, batches=3)
    assert isinstance(clean(shelf), Cleaned)
    assert b"aborted" not in [record.value for record in records(shelf)]
    assert b"kept" in [record.value for record in records(shelf)]
    assert [txn.producer_id for txn in log.aborted_transactions(0, log.end_offset)] == [2]


def test_a_log_that_changes_during_a_pass_ends_it_without_leftovers(world: Any) -> None:
    shelf = Shelf(world, SMALL)
    fill(shelf, 1)
    answers, home = Answers(), shelf.log._home
    run_steps(CleaningPass(home, Jobs(shelf), task(shelf.log)).run_steps(), answers)
    shelf.log.truncate_to(10)
    before = shelf.log.end_offset
    world.settle()
    (failure,) = answers
    assert isinstance(failure, Failure)
    assert failure.kind is Kind.CONFLICT
    assert shelf.log.end_offset == before
    assert not [name for name in world.names(str(TP)) if name.endswith((".cleaned", ".swap"))]


def test_a_damaged_batch_never_gets_a_valid_checksum(world: Any) -> None:
    shelf = Shelf(world, SMALL)
    fill(shelf, 1)
    path = shelf.log.segments[1].path
    shelf.stop()
    data = bytearray(world.contents(path))
    data[70] ^= 0x40
    world.overwrite(path, bytes(data))
    again = shelf.again()
    failure = clean(again)
    assert isinstance(failure, Failure)
    assert "checksum" in failure.message or "record" in failure.message or "damaged" in failure.message
    assert world.contents(path) == bytes(data)


@pytest.mark.slow
@pytest.mark.parametrize("loss", list(JournalLoss))
@pytest.mark.parametrize("death", [Death.KILL, Death.POWER_LOSS])
def test_a_stop_at_any_moment_leaves_the_old_or_the_new(death: Death, loss: JournalLoss) -> None:
    for moment in range(1000):
        world = SimWorld(seed=100 * moment + 1)  # one that needs every sync, as leaving them out shows
        shelf = Shelf(world, SMALL)
        fill(shelf, 7, batches=120, keys=60)
        first = clean(shelf)  # what it leaves are small segments, of which the next pass makes one
        fill(shelf, 8, batches=40, keys=20)
        shelf.flush()
        before = records(shelf)
        answers = Answers()
        chosen = task(shelf.log, dirty_from=first.end_offset)
        run_steps(CleaningPass(shelf.log._home, Jobs(shelf), chosen).run_steps(), answers)
        assert not answers
        for _ in range(moment):
            world.timeline.run_next_event()
        world.restart(death, (next(iter(LossPattern)), loss))
        again = Shelf(world, SMALL)
        after = records(again)
        assert latest(after) == latest(before), moment
        assert set(after) <= set(before), moment
        assert [record.offset for record in after] == sorted({record.offset for record in after}), moment
        world.close()
        if answers:
            assert moment > 20
            return
    raise AssertionError("the pass never ended")
