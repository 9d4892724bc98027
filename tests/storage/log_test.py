"""A log from outside: append, read, roll, truncate, replicate, and looking up by time."""

from __future__ import annotations

import sys

import pytest

from ottla.config.topic import TopicConfig
from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import Record, encode_batch, header_at, put_header, seal_crc, set_append_time
from ottla.seams import Failure, Instant
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.machines.workers import SimWorkers
from ottla.storage.errors import Cold

DAY_MS = 86_400_000
T0 = 1_700_000_000_000


def small(**keywords) -> TopicConfig:
    return TopicConfig(**{"segment_bytes": 10_000, "index_interval_bytes": 1000, **keywords})


def code_of(act) -> ErrorCode:
    with pytest.raises(ApiError) as refused:
        act()
    return refused.value.code


# -- appending and reading ---------------------------------------------------------------------------------------------


def test_appended_batches_are_read_back_with_their_offsets(world, kit, shelf) -> None:
    assert shelf.put(kit.batch(3), kit.batch(2), kit.batch(1)) == [0, 3, 5]
    assert shelf.log.end_offset == 6
    records = kit.read_all(world, shelf.log)
    assert [record.offset for record in records] == [0, 1, 2, 3, 4, 5]


def test_offset_and_leader_epoch_are_patched_in_place(world, kit, shelf) -> None:
    shelf.put(kit.batch(2))
    batch = kit.batch(2)
    shelf.put(batch, epoch=7)
    assert header_at(batch).base_offset == 2
    assert header_at(batch).leader_epoch == 7
    assert world.contents("t-0/00000000000000000000.log").endswith(bytes(batch))
    assert shelf.log.epochs.entries == ((0, 0), (7, 2))


def test_a_region_ends_at_a_batch_and_below_the_limit(world, kit, shelf) -> None:
    batches = [kit.batch(2, 300) for _ in range(20)]
    shelf.put(*batches)
    size = len(batches[0])
    log = shelf.log
    assert len(kit.read(world, log, 0, 1 << 20, 40)) == 20 * size
    assert len(kit.read(world, log, 5, 1 << 20, 40)) == 18 * size
    assert len(kit.read(world, log, 0, 3 * size + 5, 40)) == 3 * size
    assert len(kit.read(world, log, 0, 1 << 20, 7)) == 3 * size
    assert len(kit.read(world, log, 0, 10, 40)) == size
    assert kit.read(world, log, 0, 10, 40, at_least_one=False) == b""
    assert kit.read(world, log, 40, 100, 40) == b""
    assert kit.read(world, log, 7, 100, 7) == b""
    assert kit.read(world, log, 6, 100, 7) == b""


def test_out_of_range(kit, shelf) -> None:
    shelf.put(kit.batch(3))
    for offset in (-1, 4):
        assert code_of(lambda offset=offset: shelf.log.read(offset, 100, 3)) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_reader_at_the_tail_reads_no_header(world, kit, shelf) -> None:
    """A reader that has caught up finds its position without reading the file."""
    shelf.put(kit.batch(1))
    log = shelf.log
    reads = []
    file = log.segments.active.file
    for number in range(1, 400):
        shelf.put(kit.batch(1))
        before = file.size
        region = log.read(number, 1 << 20, log.end_offset)
        assert region.pos + region.size == before
        reads.append(region)
    assert log.read(398, 1 << 20, 399).size == reads[0].size
    assert len(log._newest_positions.offsets) <= 256


def test_a_batch_larger_than_a_segment_is_refused(world, kit) -> None:
    shelf = kit.Shelf(world, small())
    assert code_of(lambda: shelf.put(kit.batch(1, 12_000))) is ErrorCode.RECORD_LIST_TOO_LARGE
    assert shelf.put(kit.batch(1)) == [0]


def test_indexes_hold_the_append_time(world, kit) -> None:
    shelf = kit.Shelf(world, small(message_timestamp_type="LogAppendTime"))
    batch = kit.batch(1, timestamp=5)
    header = tuple(header_at(batch))
    now = Instant(0, T0 + 99)
    set_append_time(batch, 0, now.wall_ms)
    shelf.log.append(memoryview(batch), header, 0, now)
    assert shelf.log.segments.active.max_timestamp == T0 + 99


def test_few_calls_per_append(world, kit, shelf) -> None:
    """The hot path: at most eight Python functions, with producer state and index entries."""
    shelf.put(*(kit.batch(1, 5000, producer_id=1, producer_epoch=0, base_sequence=number) for number in range(5)))
    batch = memoryview(kit.batch(1, 5000, producer_id=1, producer_epoch=0, base_sequence=5))
    header, log, now = tuple(header_at(batch)), shelf.log, world.clock.now()
    called: list[str] = []

    def note(frame, event, _argument) -> None:
        if event == "call" and "/storage/" in frame.f_code.co_filename:
            called.append(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        log.append(batch, header, 0, now)
    finally:
        sys.setprofile(before)
    assert log.segments.active.index.last_entry.offset == 5
    assert len(called) <= 6, called  # and one each in record and in the disk


# -- rolling -----------------------------------------------------------------------------------------------------------


def test_roll_conditions(world, kit) -> None:
    # Size: the batch would pass segment.bytes.
    shelf = kit.Shelf(world, small(segment_bytes=1000))
    size = len(kit.batch(1))
    shelf.put(*(kit.batch(1) for _ in range(1000 // size)))
    assert len(shelf.log.segments) == 1
    shelf.put(kit.batch(1))
    assert [segment.base_offset for segment in shelf.log.segments] == [0, 1000 // size]
    # Age: incoming timestamp - first timestamp of the segment > segment.ms, whatever the time is.
    log = shelf.log
    log.apply_config(small(segment_ms=DAY_MS))
    count = len(log.segments)
    shelf.put(kit.batch(1, timestamp=T0 + DAY_MS))
    assert len(log.segments) == count
    shelf.put(kit.batch(1, timestamp=T0 + DAY_MS + 1))
    assert len(log.segments) == count + 1
    # Index full: two entries are all it may have.
    log.apply_config(small(segment_index_bytes=24, index_interval_bytes=0))
    log.roll_segment()
    count = len(log.segments)
    shelf.put(kit.batch(1, timestamp=T0), kit.batch(1, timestamp=T0 + 1))
    assert len(log.segments) == count
    assert log.segments.active.time_index.is_full
    shelf.put(kit.batch(1, timestamp=T0 + 2))
    assert len(log.segments) == count + 1
    # Relative offset: more than 2^31 - 1 above the base.
    base = log.segments.active.base_offset
    log.end_offset = base + 2**31 - 1
    log.apply_config(small())
    shelf.put(kit.batch(1, timestamp=T0))
    assert len(log.segments) == count + 1
    shelf.put(kit.batch(1, timestamp=T0))
    assert log.segments.active.base_offset == base + 2**31


def test_a_segment_without_timestamps_rolls_by_its_age(world, kit) -> None:
    shelf = kit.Shelf(world, small(segment_ms=DAY_MS))
    log = shelf.log
    for wall_ms, segments in ((T0, 1), (T0 + DAY_MS, 1), (T0 + DAY_MS + 1, 2)):
        batch = kit.batch(1, timestamp=-1)
        log.append(memoryview(batch), tuple(header_at(batch)), 0, Instant(0, wall_ms))
        assert len(log.segments) == segments


def test_jitter_lets_a_segment_roll_earlier(sim, kit) -> None:
    shelf = kit.Shelf(sim, small(segment_ms=DAY_MS, segment_jitter_ms=DAY_MS))
    shelf.put(kit.batch(1))
    active = shelf.log.segments.active
    assert 0 < active.jitter_ms < DAY_MS
    shelf.put(kit.batch(1, timestamp=T0 + DAY_MS - active.jitter_ms))
    assert len(shelf.log.segments) == 1
    shelf.put(kit.batch(1, timestamp=T0 + DAY_MS - active.jitter_ms + 1))
    assert len(shelf.log.segments) == 2


def test_a_rolled_segment_is_complete(world, kit) -> None:
    """Trimmed indexes with the largest timestamp last, and a producer snapshot at the new base."""
    shelf = kit.Shelf(world, small())
    shelf.put(*(kit.batch(1, 1000, timestamp=T0 + number) for number in range(12)))
    world.settle()
    base = shelf.log.segments.active.base_offset
    names = world.names("t-0")
    assert f"{base:020d}.snapshot" in names
    first = shelf.log.segments.first
    assert len(world.contents("t-0/00000000000000000000.index")) == first.index.entries * 8
    assert first.time_index.last_entry == (T0 + base - 1, base - 1)
    assert shelf.log.recovery_point == base


def test_rolling_an_empty_segment_does_nothing(shelf) -> None:
    shelf.log.roll_segment()
    assert len(shelf.log.segments) == 1


# -- looking up by time ------------------------------------------------------------------------------------------------


def test_time_lookup(world, kit) -> None:
    """Segment by largest timestamp, time index, offset index, scan; and the dump's example, 23388 in 23388…23390."""
    shelf = kit.Shelf(world, small(index_interval_bytes=100))
    first = 1557554753430 - 50
    shelf.put(*(kit.batch(1, 90, timestamp=first + number) for number in range(100)))
    assert shelf.lookup(1557554753430) == (1557554753430, 50)
    assert shelf.lookup(first + 99) == (first + 99, 99)
    assert shelf.lookup(first + 100) is None
    assert shelf.lookup(0) == (first, 0)
    log = shelf.log
    log.restart_at(23147)
    shelf.put(kit.batch(241, 1, timestamp=1632390207000), kit.batch(3, 1, timestamp=1632390207745))
    assert shelf.lookup(1632390207745) == (1632390207745, 23388)
    found = log.segments.active
    assert header_at(kit.read(world, log, 23388, 10, log.end_offset)).last_offset == 23390
    assert found.base_offset == 23147


def test_max_timestamp(world, kit, shelf) -> None:
    answers = kit.Answers()
    shelf.log.max_timestamp_offset(answers)
    world.settle()
    assert answers == [None]
    shelf.put(kit.batch(3, timestamp=T0), kit.batch(3, timestamp=T0 + 1000), kit.batch(3, timestamp=T0 + 500))
    shelf.log.max_timestamp_offset(answers)
    world.settle()
    assert answers[1] == (T0 + 1002, 5)


def test_time_lookup_starts_at_the_log_start(kit, shelf) -> None:
    shelf.put(*(kit.batch(1, timestamp=T0 + number) for number in range(5)))
    shelf.log.set_start_offset(3)
    assert shelf.lookup(T0) == (T0 + 3, 3)


# -- truncation --------------------------------------------------------------------------------------------------------


def test_truncation_drops_segments_and_cuts_one(world, kit) -> None:
    shelf = kit.rolled(world, [0, 10, 20], 30)
    log = shelf.log
    region = log.read(10, 1000, 30)
    log.truncate_to(13)
    assert log.end_offset == log.high_watermark == 13
    assert region.generation != region.file.generation
    assert [record.offset for record in kit.read_all(world, log)] == list(range(13))
    assert shelf.put(kit.batch(4), epoch=3) == [13]
    assert log.epochs.entries == ((0, 0), (3, 13))
    assert shelf.lookup(T0 + 12) == (T0 + 12, 12)
    assert len(kit.read_all(world, log)) == 17
    log.truncate_to(15)
    assert log.end_offset == 13
    assert log.epochs.entries == ((0, 0),)


def test_truncation_removes_producer_state_of_cut_records(world, kit, shelf) -> None:
    batches = [kit.batch(1, producer_id=1, producer_epoch=0, base_sequence=number) for number in range(4)]
    shelf.put(*batches)
    shelf.log.truncate_to(2)
    again = kit.batch(1, producer_id=1, producer_epoch=0, base_sequence=2)
    assert shelf.put(again) == [2]


@pytest.mark.parametrize("flushed", [False, True])
def test_truncation_keeps_what_was_aborted_before(world, kit, shelf, flushed: bool) -> None:
    """Index entries that are only in memory survive the cut; without them the records would count as committed."""
    keywords = {"producer_epoch": 0, "base_sequence": 0, "transactional": True}
    for producer_id in (1, 2):
        shelf.put(kit.batch(1, producer_id=producer_id, **keywords), kit.marker(producer_id, commit=False))
    if flushed:
        assert shelf.flush() == 4
    shelf.log.truncate_to(3)
    assert [entry.producer_id for entry in shelf.log.aborted_transactions(0, 3)] == [1]
    shelf.put(kit.marker(2, commit=False))
    assert [entry.producer_id for entry in shelf.again().log.aborted_transactions(0, 4)] == [1, 2]


def test_a_marker_in_the_log_needs_no_disk_operation_that_could_fail(sim, kit) -> None:
    """The index of aborted transactions is opened with the log: after the marker a failure cannot be undone."""
    shelf = kit.Shelf(sim)
    words = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    shelf.put(kit.batch(1, base_sequence=0, **words), kit.marker(1, commit=False))
    assert shelf.stop() is None
    again = shelf.again()
    again.put(kit.batch(1, base_sequence=1, **words))
    sim.faults[0].armed[DiskOperation.READ] = 1
    assert again.put(kit.marker(1, commit=False)) == [3]
    sim.faults[0].armed.clear()
    assert [entry.first_offset for entry in again.log.aborted_transactions(0, 4)] == [0, 2]


def test_truncation_keeps_index_entries(world, kit) -> None:
    shelf = kit.Shelf(world, TopicConfig(index_interval_bytes=0))
    shelf.put(*(kit.batch(1) for _ in range(9)))
    before = shelf.log.segments.active.index.size
    shelf.log.truncate_to(8)
    assert shelf.log.segments.active.index.size == before - shelf.log.segments.active.index.ENTRY


def test_truncation_moves_the_recovery_point_back(world, kit, shelf) -> None:
    shelf.put(*(kit.batch(1) for _ in range(5)))
    assert shelf.flush() == 5
    shelf.log.truncate_to(2)
    assert shelf.log.recovery_point == 2


def test_restarting_elsewhere(world, kit) -> None:
    shelf = kit.rolled(world, [0, 10], 20)
    shelf.log.restart_at(100)
    assert (shelf.log.start_offset, shelf.log.end_offset, shelf.log.recovery_point) == (100, 100, 100)
    assert shelf.put(kit.batch(1)) == [100]
    assert shelf.stop() is None
    again = shelf.again()
    assert (again.log.start_offset, again.log.end_offset) == (100, 101)


def test_a_stop_whose_index_cannot_be_written_reports_the_failure(sim, kit) -> None:
    """The transaction index has no file before its first entry is written, so there is nothing to sync."""
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1, producer_id=1, producer_epoch=0, base_sequence=0, transactional=True))
    shelf.put(kit.marker(1, commit=False))
    sim.faults[0].broken = True
    assert isinstance(shelf.stop(), Failure)


# -- replicated batches ------------------------------------------------------------------------------------------------


def test_replicated_batches_keep_offsets_and_epochs(world, kit, tmp_path) -> None:
    leader = kit.Shelf(kit.SimWorld())
    leader.put(kit.batch(2), kit.batch(3, producer_id=4, producer_epoch=0, base_sequence=0))
    leader.put(kit.batch(1), epoch=2)
    content = kit.read(leader.world, leader.log, 0, 1 << 20, 6)
    follower = kit.Shelf(world)
    assert follower.log.append_replica(memoryview(bytearray(content))) == 6
    assert kit.read(world, follower.log, 0, 1 << 20, 6) == content
    assert follower.log.epochs.entries == ((0, 0), (2, 5))
    assert follower.log.producers.get(4) is not None
    assert code_of(lambda: follower.log.append_replica(memoryview(bytearray(content)))) is ErrorCode.CORRUPT_MESSAGE


# -- cold bytes --------------------------------------------------------------------------------------------------------


def cold_world(kit):
    """A restarted broker whose log file is not in memory: the simulated page cache keeps or loses it by seed."""
    for seed in range(20):
        world = kit.SimWorld(seed=seed)
        shelf = kit.Shelf(world)
        shelf.put(*(kit.batch(5, 1000) for _ in range(10)))
        assert shelf.stop() is None
        world.restart()
        again = shelf.again()
        if not again.log.segments.active.file.try_read(0, memoryview(bytearray(1))):
            return again
    raise AssertionError("no seed gave a cold file")


def test_cold_bytes_raise_cold(kit) -> None:
    shelf = cold_world(kit)
    with pytest.raises(Cold) as cold:
        shelf.log.read(0, 1 << 20, 50)
    assert all(region.size > 0 for region in cold.value.regions)
    shelf.world.disk.warm_regions(cold.value.regions, kit.Answers())
    shelf.world.settle()
    assert shelf.log.read(0, 1 << 20, 50) is not None


def test_a_warmed_read_does_not_raise_cold_again(kit) -> None:
    assert cold_world(kit).log.read(0, 1 << 20, 50, warmed=True) is not None


def test_disk_failures_are_storage_errors(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1))
    sim.faults[0].broken = True
    assert code_of(lambda: shelf.put(kit.batch(1))) is ErrorCode.KAFKA_STORAGE_ERROR
    assert shelf.manager.offline_dirs == ("data0",)
    assert shelf.manager.get_log(kit.TP) is None
    assert isinstance(shelf.manager.dirs[0].offline, Failure)


def test_time_lookup_unpacks_large_batches_in_a_worker_and_few_in_a_turn(kit, sim) -> None:
    """A producer may write a wrong header: a batch that claims a later time than its records have is unpacked."""
    jobs: list[str] = []

    class Workers(SimWorkers):
        def run_job(self, job, arguments, done, owner=None) -> None:
            jobs.append(job)
            super().run_job(job, arguments, done, owner)

    shelf = kit.Shelf(sim, workers=Workers(sim.process))

    def lying(count: int) -> bytearray:
        batch = encode_batch([Record(at, T0, b"k", b"v") for at in range(count)], codec=1)
        put_header(batch, header_at(batch)._replace(max_timestamp=T0 + 5))
        seal_crc(batch, 0, len(batch))
        return batch

    shelf.put(*(lying(2) for _ in range(20)), lying(5000), kit.batch(3, timestamp=T0 + 3))
    before = sim.timeline.events
    assert shelf.lookup(T0 + 4) == (T0 + 4, 5041)
    assert jobs == ["ottla.record.log_entries:first_from"]
    assert sim.timeline.events - before > 10, "two of the small ones in a turn"
