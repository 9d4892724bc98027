"""Checkpoints and logs after a crash: which of them is trusted, and up to which offset."""

from __future__ import annotations

import pytest
from tests.storage.conftest import LOG, SMALL

from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death
from ottla.storage.checkpoints import format_offsets, parse_offsets
from ottla.storage.recovery.load_progress import LoadProgress
from ottla.types import TopicPartition


def test_start_high_watermark_and_end_are_in_order(world, kit, shelf) -> None:
    shelf.put(*(kit.batch(1) for _ in range(10)))
    shelf.log.high_watermark = 10
    shelf.log.set_start_offset(4)
    assert shelf.stop() is None
    for start, mark, expected in ((4, 10, (4, 10)), (4, 99, (4, 10)), (7, 2, (7, 7))):
        world.overwrite("log-start-offset-checkpoint", format_offsets({kit.TP: start}))
        world.overwrite("replication-offset-checkpoint", format_offsets({kit.TP: mark}))
        world.kill()
        again = shelf.again()
        assert (again.log.start_offset, again.log.high_watermark, again.log.end_offset) == (*expected, 10)


def test_a_log_start_above_the_end_empties_the_log(world, kit, shelf) -> None:
    shelf.put(*(kit.batch(1) for _ in range(10)))
    world.settle()
    world.kill()
    world.overwrite("log-start-offset-checkpoint", format_offsets({kit.TP: 50}))
    again = shelf.again()
    assert (again.log.start_offset, again.log.high_watermark, again.log.end_offset) == (50, 50, 50)
    assert again.put(kit.batch(1)) == [50]


def test_a_log_start_beyond_what_a_clean_stop_left_is_damage(world, kit, shelf, caplog) -> None:
    shelf.put(*(kit.batch(1) for _ in range(19)))
    shelf.log.high_watermark = 19
    shelf.log.set_start_offset(14)
    assert shelf.stop() is None
    world.overwrite("log-start-offset-checkpoint", format_offsets({kit.TP: 34}))
    world.kill()
    again = shelf.again()
    assert (again.log.start_offset, again.log.end_offset) == (0, 19), "records that were deleted, rather than none"
    assert "t-0: log start offset 34 is beyond the log end" in caplog.text


def test_segments_below_the_log_start_are_not_recovered(world, kit) -> None:
    """They were about to be removed, and were not synced: damage there does not concern the log."""
    shelf = kit.rolled(world, [0, 10, 20], 30, retention_ms=-1)
    world.settle()
    world.kill()
    world.overwrite("log-start-offset-checkpoint", format_offsets({kit.TP: 12}))
    world.overwrite(LOG, world.contents(LOG)[:-1])
    again = shelf.again()
    assert (again.log.start_offset, again.log.end_offset) == (12, 30)
    assert [segment.base_offset for segment in again.log.segments] == [10, 20]
    world.settle()
    assert "00000000000000000000.log" not in world.names("t-0")


@pytest.mark.parametrize("name", ["recovery-point", "replication", "log-start"])
def test_an_unreadable_checkpoint_costs_time_only(world, kit, shelf, name) -> None:
    shelf.put(*(kit.batch(1) for _ in range(10)))
    assert shelf.stop() is None
    world.overwrite(f"{name}-offset-checkpoint", b"\xff\x00garbage")
    assert shelf.again().log.end_offset == 10


def test_recovery_begins_at_the_recovery_point(sim, kit) -> None:
    """Durable records are not read again: damage below the recovery point is not even noticed."""
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1, 1000) for _ in range(30)))
    assert shelf.flush() == 30
    shelf.manager.dirs[0].checkpoint_recovery_points()
    sim.settle()
    sim.restart()
    seen: list[LoadProgress] = []
    again = kit.Shelf(sim, SMALL, progress=seen.append)
    assert again.log.end_offset == 30
    assert seen[-1].bytes_scanned == again.log.segments.active.size
    assert (seen[-1].logs_done, seen[-1].logs_total) == (1, 1)


def test_a_recovery_point_at_a_segments_base_does_not_cover_the_indexes_before_it(sim, kit) -> None:
    """Found by the simulator: sealed after the last flush, torn by a power loss, never checked again."""
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1, 1000) for _ in range(5)))
    assert shelf.flush() == 5
    shelf.manager.dirs[0].checkpoint_recovery_points()
    sim.settle()
    shelf.log.roll_segment()
    sim.drives[0].sync_directory(
        sim.drives[0].directory_at("t-0"), sim.drives[0].pending_operations(sim.drives[0].directory_at("t-0"))
    )
    sim.restart(Death.POWER_LOSS, (LossPattern.NONE, JournalLoss.ALL))
    again = shelf.again()
    assert [segment.base_offset for segment in again.log.segments] == [0, 5]
    assert again.log.segments[0].index.entries > 0


def test_a_cut_is_durable_before_anything_follows_it(sim, kit) -> None:
    """Found by the simulator: the next power loss restored the torn tail, before a newer segment."""
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1, 1000) for _ in range(5)))
    assert shelf.flush() == 5
    sim.restart()
    size = len(sim.contents(LOG))
    sim.overwrite(LOG, sim.contents(LOG) + b"torn")
    sim.disk.sync_now(LOG)
    again = shelf.again()
    assert len(sim.contents(LOG)) == size
    assert not sim.drives[0].file_at(LOG).shadow, "the platter holds no more than the file"
    assert again.log.end_offset == 5


def test_a_cut_that_a_power_loss_undid_is_known_by_its_epochs(sim, kit) -> None:
    """Found by the simulator: the old tail came back under the new leader's epoch, and so was taken for its records."""
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1) for _ in range(6)), epoch=2)
    assert shelf.flush() == 6
    before = sim.contents(LOG)
    shelf.log.truncate_to(3)
    shelf.put(kit.batch(1), epoch=4)
    sim.settle()
    assert shelf.log.epochs.entries == ((2, 0), (4, 3))
    sim.overwrite(LOG, before)
    sim.restart()
    again = shelf.again()
    assert (again.log.end_offset, again.log.epochs.entries) == (6, ((2, 0),))


def test_a_restored_tail_after_newer_records_is_cut(sim, kit) -> None:
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1) for _ in range(3)), epoch=2)
    old = kit.batch(1)
    shelf.put(kit.batch(1), old, epoch=2)
    tail = sim.contents(LOG)[-len(old) :]
    assert shelf.flush() == 5
    shelf.log.truncate_to(3)
    shelf.put(kit.batch(1), epoch=4)
    sim.settle()
    sim.overwrite(LOG, sim.contents(LOG) + tail)
    sim.restart()
    again = shelf.again()
    assert (again.log.end_offset, again.log.epochs.entries) == (4, ((2, 0), (4, 3)))


def test_below_the_recovery_point_epochs_are_not_checked(sim, kit) -> None:
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(kit.batch(1), epoch=4)
    shelf.put(kit.batch(1), epoch=2)
    assert shelf.flush() == 2
    shelf.manager.dirs[0].checkpoint_recovery_points()
    sim.settle()
    sim.restart()
    assert shelf.again().log.end_offset == 2


def test_a_cut_lowers_the_recovery_point_on_the_disk(sim, kit) -> None:
    """Otherwise a segment that ends after the cut would be trusted, because the next one has the old point."""
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1) for _ in range(6)), epoch=2)
    assert shelf.flush() == 6
    shelf.manager.dirs[0].checkpoint_recovery_points()
    sim.settle()
    shelf.log.truncate_to(3)
    sim.settle()
    assert b"t 0 3" in sim.contents("recovery-point-offset-checkpoint")


# -- a topic that is deleted, and created again under its name ---------------------------------------------------------

CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint", "log-start-offset-checkpoint")


def deleted(kit, sim):
    """A log that is in all checkpoints, and is then deleted."""
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1, 1000) for _ in range(30)))
    shelf.log.high_watermark = 30
    shelf.log.set_start_offset(20)
    assert shelf.flush() == 30
    directory = shelf.manager.dirs[0]
    directory.checkpoint_recovery_points()
    directory.checkpoint_high_watermarks()
    directory.checkpoint_starts()
    sim.settle()
    assert all(parse_offsets(sim.contents(name))[kit.TP] >= 20 for name in CHECKPOINTS)
    shelf.manager.delete_log(kit.TP)
    return shelf.manager


@pytest.mark.parametrize("died_between", [False, True])
@pytest.mark.parametrize("under_way", [False, True])
def test_a_new_log_is_not_taken_for_the_deleted_one_of_its_name(sim, kit, died_between: bool, under_way: bool) -> None:
    """Found by the simulator: the old recovery point covered bytes of the new log that were never flushed."""
    manager = deleted(kit, sim)
    if died_between:
        sim.settle()
        sim.restart()
        manager = kit.Shelf(sim, SMALL).manager
    if under_way:  # writes that begin before the new log exists, and end after that
        for name in CHECKPOINTS:
            sim.disk.replace_file(name, sim.contents(name), lambda _: None)
    manager.create_log(kit.TP, bytes(range(1, 17)), SMALL)
    for name in CHECKPOINTS:
        assert kit.TP not in parse_offsets(sim.contents(name)), name
    sim.settle()
    sim.restart()
    again = kit.Shelf(sim, SMALL).log
    assert (again.start_offset, again.high_watermark, again.end_offset, again.recovery_point) == (0, 0, 0, 0)


def test_only_the_first_of_many_new_logs_waits_for_the_checkpoints(sim, kit) -> None:
    shelf = kit.Shelf(sim, SMALL)
    names = [TopicPartition("many", number) for number in range(20)]
    for tp in names:
        shelf.manager.create_log(tp, bytes(range(16)), SMALL)
    shelf.manager.dirs[0].checkpoint_recovery_points()
    sim.settle()
    for tp in names:
        shelf.manager.delete_log(tp)
    written = []
    at_once = sim.disk.replace_now
    sim.disk.replace_now = lambda name, data: (written.append(name), at_once(name, data))
    for tp in names:
        shelf.manager.create_log(tp, bytes(range(16)), SMALL)
    assert written == list(CHECKPOINTS)


def test_a_recovery_point_beyond_the_end_is_not_trusted(sim, kit) -> None:
    """It is another log's, or the disk lost synced bytes: then the first segment may be torn as well."""
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(*(kit.batch(1, 1000) for _ in range(30)))
    assert shelf.flush() == 30
    bases = [segment.base_offset for segment in shelf.log.segments]
    sim.settle()
    sim.overwrite("recovery-point-offset-checkpoint", format_offsets({kit.TP: 243}))
    sim.overwrite(LOG, sim.contents(LOG)[:-1])
    sim.restart()
    again = shelf.again()
    assert [segment.base_offset for segment in again.log.segments] == bases[:1]
    assert again.log.end_offset == bases[1] - 1
    sim.settle()
    assert again.log.recovery_point == again.log.end_offset


def test_no_recovery_point_from_before_a_cut_covers_the_sealed_segment(world, kit, shelf) -> None:
    """It would cover indexes that were not synced since."""
    shelf.put(*(kit.batch(1) for _ in range(10)))
    shelf.flush()
    shelf.manager.dirs[0].checkpoint_recovery_points()
    world.settle()
    shelf.log.truncate_to(4)
    shelf.put(*(kit.batch(1) for _ in range(8)))
    shelf.log.roll_segment()
    assert parse_offsets(world.contents("recovery-point-offset-checkpoint")) == {kit.TP: 4}
    world.settle()
