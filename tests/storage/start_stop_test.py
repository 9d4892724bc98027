"""The work of a stop and a start for each log: nothing is written or read for logs that have not changed.

Zone: real. Operations on the disk are counted, not time.
"""

from __future__ import annotations

import logging
from collections import Counter

import pytest

from ottla.config.topic import TopicConfig
from ottla.record.batch import Record, encode_batch
from ottla.seams import Failure, Kind
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.drive_faults import DiskOperation, DriveFaults
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death
from ottla.storage.checkpoints import format_epochs
from ottla.storage.clean_shutdown import SYNCED_ALONE
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.recovery.load_progress import LOGS_PER_LINE
from ottla.types import TopicPartition

LOG = "t-0/00000000000000000000.log"
EPOCHS = "t-0/leader-epoch-checkpoint"
MANY = SYNCED_ALONE + 10


class Counted(DriveFaults):
    """Injects no faults, and counts the operations per path."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[DiskOperation, str]] = Counter()

    def check_operation(self, operation: DiskOperation, path: str) -> None:
        self.seen[operation, path] += 1
        super().check_operation(operation, path)


class NoRoomForEpochs(DriveFaults):
    """The drive is full when leader epochs are written."""

    def check_operation(self, operation: DiskOperation, path: str) -> None:
        if operation is DiskOperation.REPLACE and path.endswith(EPOCHS[4:]):
            raise Failure(Kind.FULL, path)
        super().check_operation(operation, path)


@pytest.fixture
def counted(sim):
    """Counts from the call on."""

    def begin() -> Counter:
        sim.disk.faults = Counted()
        return sim.disk.faults.seen

    return begin


def idempotent(kit, number: int) -> bytearray:
    return encode_batch([Record(0, 1, None, b"")], producer_id=9, producer_epoch=0, base_sequence=number)


def test_a_log_that_is_led_and_not_written_writes_no_leader_epoch(sim, kit, counted) -> None:
    shelf = kit.Shelf(sim)
    shelf.log.begin_epoch(1)
    shelf.put(kit.batch(1), epoch=1)
    sim.settle()
    assert shelf.stop() is None
    seen = counted()
    again = shelf.again()
    again.log.begin_epoch(2)
    assert again.log.epochs.entries == ((1, 0), (2, 1))
    sim.settle()
    assert again.stop() is None
    assert not [each for each in seen if each[0] is not DiskOperation.READ and each[1].startswith("t-0/")]
    assert again.again().log.epochs.entries == ((1, 0),)


@pytest.mark.parametrize("after", ["clean stop", "kill"])
def test_a_flush_brings_the_leader_epoch_of_its_records_to_the_file(sim, kit, counted, after) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1), epoch=1)
    sim.settle()
    if after == "kill":
        sim.kill()
    else:
        assert shelf.stop() is None
    again = shelf.again()
    sim.settle()
    seen = counted()
    again.log.begin_epoch(2)
    assert not seen
    again.put(kit.batch(1), kit.batch(1), epoch=2)
    assert len(again.log.segments) == 1
    again.flush()
    assert sim.contents(EPOCHS) == format_epochs([EpochEntry(1, 0), EpochEntry(2, 1)])


def test_a_followers_append_writes_stale_leader_epochs_first(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1), epoch=1)
    shelf.log.epochs.assign_epoch(4, 1)
    assert shelf.stop() is None
    again = shelf.again()
    again.log.append_replica(memoryview(encode_batch([Record(1, 1, None, b"")], base_offset=1, leader_epoch=1)))
    sim.settle()
    assert sim.contents(EPOCHS) == format_epochs([EpochEntry(1, 0)])


def test_an_epoch_that_contradicts_records_is_written_at_once(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1), epoch=1)
    shelf.put(kit.batch(1), epoch=4)
    shelf.log.begin_epoch(3)
    sim.settle()
    assert sim.contents(EPOCHS) == format_epochs([EpochEntry(1, 0), EpochEntry(3, 2)])


def test_a_stop_without_producers_leaves_no_snapshot_and_the_start_does_not_read_for_one(sim, kit, counted) -> None:
    shelf = kit.Shelf(sim, TopicConfig(segment_bytes=100_000, index_interval_bytes=1000))
    for _ in range(60):
        shelf.put(kit.batch(1))
    shelf.log.high_watermark = 60
    assert shelf.stop() is None
    assert not [name for name in sim.names("t-0") if name.endswith(".snapshot")]
    seen = counted()
    again = shelf.again()
    assert again.log.end_offset == 60
    assert 0 < seen[DiskOperation.READ, LOG] < 30


def test_producers_recovered_without_a_snapshot_get_one_at_the_next_stop(world, kit, shelf) -> None:
    shelf.put(idempotent(kit, 0), idempotent(kit, 1))
    assert shelf.stop() is None
    world.overwrite("t-0/00000000000000000002.snapshot", b"torn")
    again = shelf.again()
    assert again.stop() is None
    assert "00000000000000000002.snapshot" in world.names("t-0")
    assert again.again().put(idempotent(kit, 1)) == [1]


def test_after_a_kill_one_sync_makes_all_logs_durable_and_none_of_them_is_synced(sim, kit, counted) -> None:
    shelf = kit.Shelf(sim)
    for partition in range(20):
        tp = TopicPartition("t", partition)
        log = shelf.manager.create_log(tp, kit.TOPIC_ID, TopicConfig())
        kit.append(log, kit.batch(1), 1, sim.clock.now())
    sim.settle()
    sim.kill()
    seen = counted()
    again = shelf.again()
    for log in again.manager.online_logs():
        log.begin_epoch(2)
    sim.settle()
    assert {log.recovery_point for log in again.manager.online_logs()} == {1}
    synced = [path for kind, path in seen if kind in (DiskOperation.SYNC, DiskOperation.SYNC_DIR) and "/" not in path]
    touched = [path for kind, path in seen if kind is not DiskOperation.READ and path.endswith((EPOCHS[4:], "t-0"))]
    assert len(synced) <= 3
    assert not touched


def test_acknowledged_records_found_after_a_kill_survive_a_power_cut(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(3))
    sim.restart()
    again = shelf.again()
    assert again.log.recovery_point == again.log.sync_awaited == 3
    sim.restart(Death.POWER_LOSS, (LossPattern.NONE, JournalLoss.NONE))
    assert again.again().log.end_offset == 3


def lead_and_write(sim, kit, epoch: int = 1):
    """Logs in which a leader of an epoch has written one batch."""
    shelf = kit.Shelf(sim)
    for partition in range(MANY):
        log = shelf.manager.create_log(TopicPartition("t", partition), kit.TOPIC_ID, TopicConfig())
        log.begin_epoch(epoch)
        kit.append(log, kit.batch(1), epoch, sim.clock.now())
    return shelf


def written_epochs(seen: Counter) -> set[str]:
    return {path for kind, path in seen if kind is DiskOperation.REPLACE and path.endswith(EPOCHS[4:])}


def test_epochs_that_begin_in_many_logs_are_not_written_before_a_flush(sim, kit, counted) -> None:
    seen = counted()
    lead_and_write(sim, kit)
    sim.settle()
    assert not written_epochs(seen)


def test_a_flush_writes_the_epochs_before_the_recovery_point_passes_their_records(sim, kit) -> None:
    shelf = lead_and_write(sim, kit)
    sim.settle()
    last = shelf.manager.get_log(TopicPartition("t", MANY - 1))
    path = f"{last.directory}/leader-epoch-checkpoint"
    assert not sim.disk.exists(path)
    flushed = kit.Answers()
    last.flush(flushed)
    sim.settle()
    assert flushed == [last.recovery_point] == [1]
    assert sim.contents(path) == format_epochs([EpochEntry(1, 0)])


def test_a_flush_whose_epochs_cannot_be_written_moves_no_recovery_point(sim, kit) -> None:
    shelf = lead_and_write(sim, kit)
    sim.settle()
    last = shelf.manager.get_log(TopicPartition("t", MANY - 1))
    before = last.recovery_point
    sim.disk.faults = NoRoomForEpochs()
    flushed = kit.Answers()
    last.flush(flushed)
    sim.settle()
    assert isinstance(flushed[0], Failure)
    assert last.recovery_point == before
    sim.disk.faults = DriveFaults()
    last.flush(flushed)
    sim.settle()
    assert flushed[1] == last.recovery_point == 1
    assert last.epochs_file.is_due is False


@pytest.mark.parametrize("death", [Death.KILL, Death.POWER_LOSS])
def test_epochs_that_were_not_written_are_found_in_the_batches(sim, kit, death) -> None:
    shelf = lead_and_write(sim, kit)
    sim.settle()
    sim.restart(death)
    again = shelf.again()
    for log in again.manager.online_logs():
        expected = ((1, 0),) if log.end_offset else ()
        assert log.epochs.entries == expected
    if death is Death.KILL:
        assert {log.end_offset for log in again.manager.online_logs()} == {1}


def test_a_stop_with_many_due_epochs_writes_them_without_a_sync_each(sim, kit, counted) -> None:
    shelf = lead_and_write(sim, kit)
    sim.settle()
    seen = counted()
    sim.disk.faults.syncs_all = True
    assert shelf.stop() is None
    synced = [path for kind, path in seen if kind in (DiskOperation.SYNC, DiskOperation.SYNC_DIR) and path]
    assert len(synced) < 10
    sim.restart(Death.POWER_LOSS, (LossPattern.NONE, JournalLoss.NONE))
    again = shelf.again()
    for log in again.manager.online_logs():
        assert sim.contents(f"{log.directory}/leader-epoch-checkpoint") == format_epochs([EpochEntry(1, 0)])
        assert log.epochs.entries == ((1, 0),)


@pytest.mark.parametrize("is_one_call", [True, False])
def test_a_stop_makes_many_logs_durable_by_one_sync_where_the_system_has_one(sim, kit, counted, is_one_call) -> None:
    shelf = kit.Shelf(sim)
    for partition in range(MANY):
        log = shelf.manager.create_log(TopicPartition("t", partition), kit.TOPIC_ID, TopicConfig())
        kit.append(log, kit.batch(1), 1, sim.clock.now())
    sim.settle()
    seen = counted()
    sim.disk.faults.syncs_all = is_one_call
    assert shelf.stop() is None
    synced = [path for kind, path in seen if kind in (DiskOperation.SYNC, DiskOperation.SYNC_DIR) and path]
    assert (len(synced) < 10) == is_one_call
    sim.restart(Death.POWER_LOSS, (LossPattern.NONE, JournalLoss.NONE))
    again = shelf.again()
    logs = list(again.manager.online_logs())
    assert len(logs) == MANY
    assert {(log.end_offset, log.recovery_point, log.segments.active.time_index.entries) for log in logs} == {(1, 1, 1)}


def test_a_sync_of_the_directory_that_fails_leaves_no_mark_of_a_clean_stop(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    for partition in range(MANY):
        log = shelf.manager.create_log(TopicPartition("t", partition), kit.TOPIC_ID, TopicConfig())
        kit.append(log, kit.batch(1), 1, sim.clock.now())
    sim.settle()
    sim.disk.faults.arm_error(DiskOperation.SYNC)
    assert isinstance(shelf.stop(), Failure)
    sim.disk.faults.repair_device()
    assert ".kafka_cleanshutdown" not in sim.names("")


def test_a_log_at_rest_has_one_descriptor(real, kit) -> None:
    shelf = kit.rolled(real, [0, 10], 20)
    assert shelf.stop() is None
    real.kill()
    again = shelf.again()
    assert again.log.end_offset == 20
    real.settle()
    assert len(real.disk.descriptors) == 1


@pytest.mark.slow
def test_a_stop_and_a_start_of_many_logs_log_their_progress(sim, kit, caplog) -> None:
    caplog.set_level(logging.INFO, "ottla.storage")
    shelf = kit.Shelf(sim)
    for partition in range(LOGS_PER_LINE + 1):
        shelf.manager.create_log(TopicPartition("t", partition), kit.TOPIC_ID, TopicConfig())
    assert shelf.stop() is None
    shelf.again()
    said = [record.getMessage() for record in caplog.records]
    assert "data0: stopping, 2000 of 2001 logs are written" in said
    assert "data0: loaded 2001 of 2001 logs, recovery has read 0 bytes" in said


def test_after_a_kill_the_file_names_no_epoch_of_records_that_were_cut_off(sim, kit) -> None:
    shelf = kit.Shelf(sim)
    shelf.put(kit.batch(1), epoch=1)
    shelf.put(kit.batch(1), epoch=2)
    shelf.put(kit.batch(1), epoch=3)
    shelf.log.flush(lambda _: None)
    sim.settle()
    whole = sim.contents(LOG)
    sim.kill()
    sim.overwrite(LOG, whole[: len(whole) // 3 + 10])
    again = shelf.again()
    assert again.log.end_offset == 1
    assert again.stop() is None
    assert sim.contents(EPOCHS) == format_epochs([EpochEntry(1, 0)])
