"""Single crash points, each of which failed once: every test ends in a power cut (`python -m testbench.crash`)."""

from __future__ import annotations

from tests.storage.conftest import SMALL

from ottla.config.topic import TopicConfig
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death

ALL_LOST = (LossPattern.NONE, JournalLoss.NONE)


def power_cut(world, shelf, loss=ALL_LOST):
    world.restart(Death.POWER_LOSS, loss)
    return shelf.again()


def names_kept(world, wanted) -> None:
    """A power cut that keeps only those pending renames that concern `wanted`."""
    drive = world.drives[0]
    drive.journal = [
        operation
        for operation in drive.journal
        if any(wanted in name for _, name, _ in (*operation.removed, *operation.added))
    ]


def test_a_segment_has_a_durable_name_before_the_next_one_has_one(sim, kit) -> None:
    shelf = kit.Shelf(sim, SMALL)
    shelf.put(kit.batch(1))
    shelf.log.roll_segment()
    shelf.put(kit.batch(1))
    names_kept(sim, "00001.")
    sim.drives[0].root.durable["t-0"] = sim.drives[0].find_path("t-0")
    again = power_cut(sim, shelf, (LossPattern.ALL, JournalLoss.ALL))
    assert again.log.start_offset == 0


def test_a_cut_across_segments_leaves_no_hole(sim, kit) -> None:
    """The names of the later segments are removed durably before the bytes of the earlier one."""
    shelf = kit.rolled(sim, [0, 10, 20, 30], 40)
    shelf.flush()
    shelf.manager.dirs[0].checkpoint_recovery_points()
    sim.settle()
    shelf.log.truncate_to(15)
    for _, inode in sim.drives[0].walk_files():
        inode.shadow = b""  # the shorter length is on the platter already
    again = power_cut(sim, shelf)
    assert again.log.end_offset == 15


def test_a_segment_that_is_cut_to_nothing_is_flushed_as_well(sim, kit) -> None:
    shelf = kit.rolled(sim, [0, 10], 20)
    shelf.flush()
    shelf.log.truncate_to(10)
    assert shelf.flush() == 10
    assert sim.drives[0].file_at("t-0/00000000000000000010.log").shadow == b""


def test_an_unsynced_cut_of_a_killed_process_is_durable_after_a_clean_stop(sim, kit) -> None:
    """A cut in the page cache, a kill, a start and a clean stop: then no power cut restores the cut bytes."""
    shelf = kit.rolled(sim, [0, 10], 20)
    shelf.flush()
    shelf.log.truncate_to(10)
    sim.restart(Death.KILL)
    again = shelf.again()
    assert again.log.end_offset == 10
    assert again.stop() is None
    assert sim.drives[0].file_at("t-0/00000000000000000010.log").shadow == b""
    left = [name for operation in sim.drives[0].journal for _, name, _ in (*operation.removed, *operation.added)]
    assert all(name.endswith(".deleted") for name in left)  # a start removes them again


def test_a_log_emptied_at_its_start_offset_stays_there_after_a_power_cut(sim, kit) -> None:
    """Its start is above all surviving records; their files are renamed durably before the checkpoint drops it."""
    shelf = kit.rolled(sim, [0, 10], 20)
    shelf.log.set_start_offset(18)
    shelf.manager.dirs[0].checkpoint_starts()
    sim.settle()
    sim.remove("t-0/leader-epoch-checkpoint")  # writing it would make all names durable
    sim.drives[0].root.durable["t-0"] = sim.drives[0].find_path("t-0")
    sim.drives[0].find_path("t-0").durable.update(sim.drives[0].find_path("t-0").names)
    sim.drives[0].journal.clear()
    again = power_cut(sim, shelf)
    assert (again.log.start_offset, again.log.end_offset) == (18, 18)
    assert again.stop() is None
    third = power_cut(sim, again)
    assert (third.log.start_offset, third.log.end_offset) == (18, 18)


def test_indexes_are_rebuilt_whole_or_not_at_all(sim, kit) -> None:
    """A power cut during the rebuild leaves the old state or the new one, never half an index."""
    shelf = kit.rolled(sim, [0, 30], 40)
    shelf.put(
        kit.batch(producer_id=5, producer_epoch=0, base_sequence=0, transactional=True), kit.marker(5, commit=False)
    )
    shelf.log.roll_segment()
    shelf.put(kit.batch())
    log = shelf.log
    log.high_watermark = log.end_offset
    expected = log.aborted_transactions(0, log.end_offset)
    assert len(expected) == 1
    assert shelf.stop() is None
    for kind in ("index", "timeindex", "txnindex"):
        sim.remove(f"t-0/{30:020d}.{kind}")
        sim.disk.sync_now("t-0")
    for fuse in range(5, 80, 3):
        sim.machine.loss = (LossPattern.NONE, JournalLoss.ALL)
        sim.process.fuse, sim.process.fuse_death = fuse, Death.POWER_LOSS
        sim.process.run_turn(lambda: kit.Shelf(sim))
        if sim.machine.process is None:
            sim._boot()
            continue
        break
    sim.process.fuse = None
    again = power_cut(sim, shelf)
    assert again.log.aborted_transactions(0, log.end_offset) == expected
    assert again.lookup(1_700_000_000_035) == (1_700_000_000_035, 35)


def test_batches_that_were_cut_off_do_not_come_back_before_newer_ones(sim, kit) -> None:
    """Two pages are rewritten after a cut; the power cut keeps the old content of the first."""
    config = TopicConfig(segment_bytes=1 << 20)
    shelf = kit.Shelf(sim, config)
    shelf.put(*(kit.batch(1, 5000) for _ in range(4)))
    shelf.flush()
    old = sim.contents("t-0/00000000000000000000.log")
    shelf.log.truncate_to(2)
    shelf.put(*(kit.batch(1, 5000) for _ in range(2)), epoch=1)
    sim.settle()
    new = sim.contents("t-0/00000000000000000000.log")
    size = len(old) // 4
    sim.kill()
    sim.overwrite("t-0/00000000000000000000.log", old[: 3 * size] + new[3 * size :])
    again = shelf.again(config)
    assert again.log.end_offset == 3
    assert again.log.epochs.entries == ((0, 0),)


def test_the_epochs_of_a_log_without_records_do_not_change_from_start_to_start(sim, kit) -> None:
    shelf = kit.rolled(sim, [0, 10], 20)
    shelf.log.set_start_offset(20)
    shelf.manager.dirs[0].checkpoint_starts()
    sim.settle()
    found = []
    sim.kill()
    for _ in range(3):
        shelf = shelf.again()
        found.append(shelf.log.epochs.entries)
        assert shelf.stop() is None
    assert found[0] == found[1] == found[2]
