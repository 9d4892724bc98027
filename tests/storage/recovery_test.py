"""Recovery after kills and power cuts: synced records exist, damaged ones do not, and the log continues."""

from __future__ import annotations

import pytest
from tests.storage.conftest import LOG, SMALL, idempotent

from ottla.config.topic import TopicConfig
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death
from ottla.sim.mutants.ablation import without_safeguard
from ottla.storage.checkpoints import format_epochs
from ottla.storage.indexes.leader_epochs import EpochEntry

INDEX = "t-0/00000000000000000000.index"
TIME_INDEX = "t-0/00000000000000000000.timeindex"
T0 = 1_700_000_000_000


# -- what a crash leaves -----------------------------------------------------------------------------------------------


def test_a_killed_log_comes_back(world, kit) -> None:
    shelf = kit.Shelf(world, SMALL)
    shelf.put(*(kit.batch(3, 1000) for _ in range(10)))
    before = kit.read_all(world, shelf.log)
    world.kill()
    again = shelf.again()
    assert again.log.end_offset == 30
    assert kit.read_all(world, again.log) == before
    assert [segment.base_offset for segment in again.log.segments] == [0, 9, 18, 27]


def test_a_torn_tail_is_cut(world, kit, shelf) -> None:
    batch = kit.batch(2)
    shelf.put(kit.batch(3), batch)
    whole = world.contents(LOG)
    world.kill()
    for cut in (1, len(batch) - 1):
        world.overwrite(LOG, whole[:-cut])
        again = shelf.again()
        assert again.log.end_offset == 3
        assert len(world.contents(LOG)) == len(whole) - len(batch)
        world.kill()


def test_a_batch_with_a_wrong_checksum_ends_the_log(world, kit) -> None:
    shelf = kit.Shelf(world, SMALL)
    shelf.put(*(kit.batch(1, 1000) for _ in range(20)))
    size = len(kit.batch(1, 1000))
    damaged = bytearray(world.contents(LOG))
    damaged[3 * size + 100] ^= 1
    world.kill()
    world.overwrite(LOG, bytes(damaged))
    again = shelf.again()
    assert again.log.end_offset == 3
    assert len(again.log.segments) == 1
    assert [name for name in world.names("t-0") if name.endswith(".log")] == ["00000000000000000000.log"]
    assert again.put(kit.batch(1)) == [3]
    assert len(kit.read_all(world, again.log)) == 4


def test_without_the_checksum_damage_stays(world, kit, shelf) -> None:
    shelf.put(kit.batch(1, 1000), kit.batch(1, 1000))
    damaged = bytearray(world.contents(LOG))
    damaged[200] ^= 1
    world.kill()
    world.overwrite(LOG, bytes(damaged))
    with without_safeguard("crc_check"):
        assert shelf.again().log.end_offset == 2
    world.kill()
    assert shelf.again().log.end_offset == 0


def test_without_the_scan_a_torn_tail_stays(world, kit, shelf) -> None:
    shelf.put(kit.batch(1, 1000), kit.batch(1, 1000))
    whole = world.contents(LOG)
    world.kill()
    world.overwrite(LOG, whole[:-5])
    with without_safeguard("recovery_scan"):
        shelf.again()
    assert len(world.contents(LOG)) == len(whole) - 5


def test_zeros_are_cut_off(world, kit, shelf) -> None:
    """A file whose length was written and whose last pages were not."""
    shelf.put(kit.batch(3))
    whole = world.contents(LOG)
    world.kill()
    world.overwrite(LOG, whole + bytes(5000))
    assert shelf.again().log.end_offset == 3
    assert world.contents(LOG) == whole


def test_a_batch_larger_than_the_buffer_is_checked_piece_by_piece(world, kit) -> None:
    shelf = kit.Shelf(world)
    shelf.put(kit.batch(1), kit.batch(1, 9 * 1024 * 1024), kit.batch(1))
    whole = bytearray(world.contents(LOG))
    world.kill()
    assert shelf.again().log.end_offset == 3
    world.kill()
    whole[6 * 1024 * 1024] ^= 1
    world.overwrite(LOG, bytes(whole))
    assert shelf.again().log.end_offset == 1


def test_a_segment_that_does_not_continue_the_one_before_is_dropped(world, kit) -> None:
    """A sealed segment whose pages were lost leaves a hole; records after a hole are not part of the log."""
    shelf = kit.Shelf(world, SMALL)
    shelf.put(*(kit.batch(1, 1000) for _ in range(20)))
    bases = [segment.base_offset for segment in shelf.log.segments]
    world.kill()
    world.overwrite(LOG, b"")
    again = shelf.again()
    assert len(bases) == 3
    assert again.log.end_offset == 0
    assert again.put(kit.batch(1)) == [0]


def test_holes_of_a_compacted_log_are_kept(world, kit) -> None:
    shelf = kit.Shelf(world, TopicConfig(segment_bytes=10_000, cleanup_policy=("compact",)))
    shelf.put(*(kit.batch(1, 1000) for _ in range(20)))
    world.kill()
    world.overwrite(LOG, b"")
    again = shelf.again()
    assert again.log.end_offset == 20
    first = again.log.segments[1].base_offset
    region = again.log.read(0, 1 << 20, 20, warmed=True)
    assert region.file is again.log.segments[1].file
    assert first > 0


# -- what is rebuilt ---------------------------------------------------------------------------------------------------


def test_bogus_indexes_are_rebuilt(world, kit) -> None:
    shelf = kit.Shelf(world, SMALL)
    shelf.put(*(kit.batch(1, 1000, timestamp=T0 + number) for number in range(20)))
    assert shelf.stop() is None
    good = {path: world.contents(path) for path in (INDEX, TIME_INDEX)}
    for damage in ({INDEX: b"x" * 15}, {TIME_INDEX: b"y" * 13}, {INDEX: None}, {TIME_INDEX: None}):
        for path, content in damage.items():
            if content is None:
                world.remove(path)
            else:
                world.overwrite(path, content)
        again = shelf.again()
        assert again.lookup(T0 + 5) == (T0 + 5, 5)
        assert {path: world.contents(path) for path in good} == good
        assert again.stop() is None


def test_indexes_without_a_log_are_removed(world, kit, shelf) -> None:
    shelf.put(kit.batch(1))
    assert shelf.stop() is None
    world.overwrite("t-0/00000000000000000500.index", bytes(8))
    shelf.again()
    assert "00000000000000000500.index" not in world.names("t-0")


def test_a_wrong_index_is_not_trusted(world, kit, shelf) -> None:
    """It passes the sanity check and is wrong: a read notices it, and searches the log itself."""
    config = TopicConfig(index_interval_bytes=100)
    shelf = kit.Shelf(world, config)
    batches = [kit.batch(2, 300) for _ in range(10)]
    shelf.put(*batches)
    assert shelf.stop() is None
    size = len(batches[0])
    entries = bytearray(world.contents(INDEX))
    entries[12:16] = (size + 17).to_bytes(4, "big")
    world.overwrite(INDEX, bytes(entries))
    again = shelf.again()
    for offset in range(20):
        found = kit.batches_in(kit.read(world, again.log, offset, 10, 20))
        assert found[0][0].base_offset == offset - offset % 2


def test_producer_state_survives_a_kill(world, kit) -> None:
    shelf = kit.Shelf(world, SMALL)
    shelf.put(*(idempotent(kit, number, size=1000) for number in range(20)))
    world.kill()
    again = shelf.again()
    assert again.put(idempotent(kit, 18, size=1000)) == [18]
    assert again.log.end_offset == 20
    assert again.put(idempotent(kit, 20)) == [20]


def test_producer_state_survives_a_stop_through_its_snapshot(world, kit, shelf) -> None:
    shelf.put(idempotent(kit, 0, 3))
    assert shelf.stop() is None
    assert "00000000000000000003.snapshot" in world.names("t-0")
    again = shelf.again()
    assert again.put(idempotent(kit, 0, 3)) == [0]
    assert again.log.end_offset == 3


@pytest.mark.parametrize("damage", [b"", b"short", bytes(46)])
def test_a_damaged_snapshot_is_skipped(world, kit, shelf, damage) -> None:
    shelf.put(idempotent(kit, 0, 3))
    assert shelf.stop() is None
    world.overwrite("t-0/00000000000000000003.snapshot", damage)
    again = shelf.again()
    assert again.put(idempotent(kit, 0, 3)) == [0]
    assert "00000000000000000003.snapshot" not in world.names("t-0")


def test_stray_snapshots_are_removed(world, kit, shelf) -> None:
    shelf.put(idempotent(kit, 0))
    assert shelf.stop() is None
    for number in (1, 2):
        shelf = shelf.again()
        shelf.put(idempotent(kit, number))
        assert shelf.stop() is None
    shelf.again()
    assert [name for name in world.names("t-0") if name.endswith(".snapshot")] == ["00000000000000000003.snapshot"]


def test_open_and_aborted_transactions_survive_a_kill(world, kit) -> None:
    shelf = kit.Shelf(world, SMALL)

    def transactional(producer_id: int, sequence: int) -> bytearray:
        keywords = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": sequence}
        return kit.batch(1, 1000, transactional=True, **keywords)

    shelf.put(transactional(1, 0), transactional(2, 0), transactional(3, 0))
    shelf.put(kit.marker(1, commit=False), kit.marker(2, commit=True))
    shelf.log.high_watermark = shelf.log.end_offset
    aborted = shelf.log.segments.aborted_transactions(0, 5)
    assert [(entry.producer_id, entry.first_offset, entry.last_offset) for entry in aborted] == [(1, 0, 3)]
    world.kill()
    again = shelf.again()
    again.log.high_watermark = again.log.end_offset
    assert again.log.segments.aborted_transactions(0, 5) == aborted
    assert again.log.first_unstable_offset == 2
    again.put(kit.marker(3, commit=False))
    again.log.roll_segment()
    assert again.stop() is None
    third = again.again()
    third.log.high_watermark = third.log.end_offset
    assert third.log.first_unstable_offset is None
    assert len(third.log.segments.aborted_transactions(0, 6)) == 2
    assert third.log.segments.aborted_transactions(4, 5) == [third.log.segments.aborted_transactions(0, 6)[1]]


@pytest.mark.parametrize("after", ["clean stop", "kill", "cut"])
@pytest.mark.parametrize("rolled", [False, True])
def test_a_marker_above_the_high_watermark_ends_nothing_for_readers_after_a_restart_or_a_cut(
    world, kit, shelf, after, rolled
) -> None:
    keywords = {"producer_id": 1, "producer_epoch": 0, "transactional": True}
    shelf.put(kit.batch(2), kit.batch(2, base_sequence=0, **keywords), kit.batch(1, base_sequence=2, **keywords))
    shelf.put(kit.marker(1))
    if rolled:
        shelf.log.roll_segment()
        world.settle()
    shelf.put(kit.batch(1))
    shelf.log.high_watermark = 5
    assert shelf.log.first_unstable_offset == 2
    if after == "cut":
        shelf.log.truncate_to(6)
    else:
        assert after != "clean stop" or shelf.stop() is None
        shelf.manager.dirs[0].offsets.checkpoint_high_watermarks()
        world.settle()
        world.kill()
        shelf = shelf.again()
    assert shelf.log.high_watermark == 5
    assert shelf.log.first_unstable_offset == 2
    shelf.log.high_watermark = 6
    assert shelf.log.first_unstable_offset is None


@pytest.mark.parametrize("rolled", [False, True])
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("pattern", [LossPattern.NONE, LossPattern.ALL])
@pytest.mark.parametrize("journal", [JournalLoss.NONE, JournalLoss.ALL])
def test_aborted_transactions_survive_a_power_cut(sim, kit, rolled, clean, pattern, journal) -> None:
    """The index of aborted transactions is a file that is created late; without it they would count as committed."""
    shelf = kit.Shelf(sim, SMALL)
    for producer_id in (1, 2):
        keywords = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        shelf.put(kit.batch(1, transactional=True, **keywords), kit.marker(producer_id, commit=False))
        if rolled:
            shelf.log.roll_segment()
    shelf.flush()
    if clean:
        assert shelf.stop() is None
    sim.restart(Death.POWER_LOSS, (pattern, journal))
    again = shelf.again()
    assert again.log.end_offset == 4
    assert [entry.first_offset for entry in again.log.segments.aborted_transactions(0, 4)] == [0, 2]


def test_leader_epochs_are_found_in_the_batches(world, kit, shelf) -> None:
    shelf.put(kit.batch(1), epoch=1)
    shelf.put(kit.batch(1), epoch=4)
    world.settle()
    world.kill()
    world.overwrite("t-0/leader-epoch-checkpoint", b"torn")
    again = shelf.again()
    assert again.log.epochs.entries == ((1, 0), (4, 1))
    again.flush()
    assert world.contents("t-0/leader-epoch-checkpoint") == format_epochs([EpochEntry(1, 0), EpochEntry(4, 1)])


def test_leader_epochs_beyond_the_end_are_dropped(world, kit, shelf) -> None:
    shelf.put(kit.batch(1), epoch=1)
    shelf.put(kit.batch(1), epoch=4)
    world.settle()
    whole = world.contents(LOG)
    world.kill()
    world.overwrite(LOG, whole[:-1])
    assert shelf.again().log.epochs.entries == ((1, 0),)


def test_after_a_clean_stop_leader_epochs_beyond_the_end_stay_in_the_file_until_a_leader_writes(
    world, kit, shelf
) -> None:
    shelf.put(kit.batch(1), epoch=1)
    shelf.log.epochs.assign_epoch(4, 1)
    assert shelf.stop() is None
    stored = world.contents("t-0/leader-epoch-checkpoint")
    again = shelf.again()
    world.settle()
    assert again.log.epochs.entries == ((1, 0),)
    assert world.contents("t-0/leader-epoch-checkpoint") == stored
    again.log.metadata.settle_epochs()
    world.settle()
    assert world.contents("t-0/leader-epoch-checkpoint") == format_epochs([EpochEntry(1, 0)])


# -- the mark of a clean stop ------------------------------------------------------------------------------------------


def test_the_mark_is_removed_before_the_first_append(sim, kit) -> None:
    """Even when the power fails right then: the unlink is durable, so the log is not trusted."""
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1))
    assert shelf.stop() is None
    again = shelf.again()
    again.put(kit.batch(1))
    sim.restart(Death.POWER_LOSS, (LossPattern.NONE, JournalLoss.NONE))
    assert ".kafka_cleanshutdown" not in sim.names("")
    assert again.again().log.end_offset == 1


@without_safeguard("clean_marker_order")
def test_without_that_order_a_crash_is_taken_for_a_clean_stop(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1))
    sim.restart()
    assert ".kafka_cleanshutdown" in sim.names("")


def test_the_mark_is_written_last(sim, kit) -> None:
    """However early a stop is interrupted: if the mark exists, everything else is durable."""
    for fuse in range(0, 400, 7):
        world = kit.SimWorld()
        shelf = kit.Shelf(world, SMALL)
        shelf.put(*(kit.batch(1, 1000) for _ in range(12)))
        world.settle()
        world.machine.loss = (LossPattern.NONE, JournalLoss.NONE)
        world.process.fuse, world.process.fuse_death = fuse, Death.POWER_LOSS
        answers = kit.Answers()
        world.process.run_turn(lambda shelf=shelf, answers=answers: shelf.manager.stop_logs(answers))
        world.settle()
        if world.machine.process is not None:
            assert answers == [None]
            world.machine.end_process(Death.POWER_LOSS)
        world._boot()
        if ".kafka_cleanshutdown" in world.names(""):
            again = shelf.again()
            assert again.log.end_offset == 12
            assert again.log.segments.active.max_timestamp > 0
            assert len(kit.read_all(world, again.log)) == 12


def test_a_failed_sync_leaves_no_mark_and_takes_the_directory_offline(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1))
    sim.faults[0].broken = True
    outcome = shelf.stop()
    assert outcome is not None
    assert shelf.manager.offline_dirs == ("data0",)
    sim.faults[0].repair_device()
    assert ".kafka_cleanshutdown" not in sim.names("")


# -- leftovers ---------------------------------------------------------------------------------------------------------


def test_deleted_and_cleaned_files_are_removed(world, kit, shelf) -> None:
    shelf.put(kit.batch(1))
    assert shelf.stop() is None
    for name in ("00000000000000000007.log.deleted", "00000000000000000000.log.cleaned"):
        world.overwrite(f"t-0/{name}", b"whatever")
    again = shelf.again()
    world.settle()
    assert not [name for name in world.names("t-0") if name.endswith((".deleted", ".cleaned"))]
    assert again.log.end_offset == 1


def rewritten(world, kit, config=SMALL):
    """A stopped log of three segments, and the bytes of a rewrite that joins the first two."""
    shelf = kit.Shelf(world, config)
    shelf.put(*(kit.batch(1, 1000) for _ in range(20)))
    assert shelf.stop() is None
    second, third = (segment.base_offset for segment in list(shelf.log.segments)[1:])
    joined = world.contents(LOG) + world.contents(f"t-0/{second:020d}.log")
    return shelf, second, third, joined


def test_a_complete_swap_is_finished(world, kit) -> None:
    shelf, second, third, joined = rewritten(world, kit)
    world.overwrite(LOG + ".swap", joined)
    again = shelf.again()
    assert [segment.base_offset for segment in again.log.segments] == [0, third]
    assert [record.offset for record in kit.read_all(world, again.log)] == list(range(20))
    assert f"{second:020d}.log" not in world.names("t-0")


def test_a_swap_beside_an_unfinished_part_is_dropped(world, kit) -> None:
    shelf, second, _, joined = rewritten(world, kit)
    world.overwrite(f"t-0/{second:020d}.log.swap", joined[:100])
    world.overwrite(f"t-0/{second:020d}.log.cleaned", b"")
    again = shelf.again()
    assert [record.offset for record in kit.read_all(world, again.log)] == list(range(20))
    assert not [name for name in world.names("t-0") if name.endswith((".swap", ".cleaned"))]
