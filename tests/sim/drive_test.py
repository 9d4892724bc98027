"""The effect of a power loss on names, and the errors of a drive.

Zone: real.
"""

from __future__ import annotations

import pytest

from ottla.seams import Failure, Kind
from ottla.sim.disks.drive import JournalLoss
from ottla.sim.disks.drive_faults import DiskOperation
from ottla.sim.disks.inode import LossPattern
from ottla.sim.machines.machine import Death


def content(file) -> bytes:
    into = bytearray(file.size)
    file.read_now(0, memoryview(into))
    return bytes(into)


def power_loss(small, names=JournalLoss.NONE, pages=LossPattern.NONE):
    small.machine.loss = (pages, names)
    return small.end(Death.POWER_LOSS)


def test_a_name_lives_when_its_directory_was_synced(small):
    small.disk.open("a", True)
    small.disk.sync_now("")
    small.disk.open("b", True)
    disk = power_loss(small)
    assert list(disk.list("")) == ["a"]


def test_a_kill_keeps_every_name(small):
    small.disk.make_dir("t-0")
    small.disk.open("t-0/a", True)
    assert list(small.end(Death.KILL).list("t-0")) == ["a"]


def test_a_directory_that_is_lost_takes_its_files_along(small):
    small.disk.make_dir("t-0")
    small.disk.open("t-0/a", True)
    small.disk.sync_now("t-0")
    disk = power_loss(small)
    assert list(disk.list("")) == []


def test_a_rename_is_kept_or_lost_whole(worlds):
    seen = set()
    for seed in range(30):
        small = worlds(seed)
        small.disk.open("old", True).append([b"x"])
        small.disk.sync_now("old")
        small.disk.sync_now("")
        small.disk.rename("old", "new")
        seen.add(tuple(power_loss(small, JournalLoss.EACH).list("")))
    assert seen == {("old",), ("new",)}


def test_what_hangs_on_a_lost_operation_is_lost_with_it(worlds):
    for seed in range(30):
        small = worlds(seed)
        small.disk.open("a.tmp", True)
        small.disk.rename("a.tmp", "a")
        small.disk.open("a.tmp", True)
        names = tuple(power_loss(small, JournalLoss.EACH).list(""))
        assert names in ((), ("a.tmp",), ("a",), ("a", "a.tmp"))


def test_an_ordered_journal_keeps_a_prefix(worlds):
    for seed in range(20):
        small = worlds(seed)
        for name in "abcdef":
            small.disk.open(name, True)
        names = "".join(power_loss(small, JournalLoss.PREFIX).list(""))
        assert "abcdef".startswith(names)


def test_an_unlinked_file_may_come_back(worlds):
    seen = set()
    for seed in range(20):
        small = worlds(seed)
        small.disk.open("a", True).append([b"x"])
        small.disk.sync_now("a")
        small.disk.sync_now("")
        small.disk.unlink_now("a")
        seen.add(tuple(power_loss(small, JournalLoss.EACH).list("")))
    assert seen == {(), ("a",)}


def test_a_checkpoint_is_the_old_or_the_new_one_whatever_happens(worlds):
    for seed in range(60):
        small = worlds(seed)
        small.disk.replace_now("checkpoint", b"old")
        small.disk.replace_file("checkpoint", b"new", lambda _outcome: None)
        small.run(seed % 12 / 1000)
        disk = power_loss(small, JournalLoss.EACH, LossPattern.EACH)
        assert content(disk.open("checkpoint", False)) in (b"old", b"new")


def test_a_checkpoint_that_was_reported_is_durable(small):
    done = []
    small.disk.replace_file("checkpoint", b"new", done.append)
    small.run()
    assert done == [None]
    assert content(power_loss(small).open("checkpoint", False)) == b"new"


def test_a_kill_strikes_between_the_steps_of_a_checkpoint(worlds):
    seen = set()
    for seed in range(40):
        small = worlds(seed)
        small.disk.replace_file("checkpoint", b"new", lambda _outcome: None)
        small.run(seed % 12 / 1000)
        seen.add(tuple(small.end(Death.KILL).list("")))
    assert {(), ("checkpoint.tmp",), ("checkpoint",)} <= seen


@pytest.mark.parametrize("operation", [DiskOperation.APPEND, DiskOperation.READ])
def test_an_armed_error_strikes_once_and_the_device_stays_broken(small, operation):
    file = small.disk.open("a", True)
    file.append([b"before"])
    small.faults.arm_error(operation)
    fired = []
    small.faults.fired = fired.append

    def act():
        return file.append([b"x"]) if operation is DiskOperation.APPEND else content(file)

    for _ in range(2):
        with pytest.raises(Failure) as failed:
            act()
        assert failed.value.kind is Kind.IO
    assert len(fired) == 1
    small.faults.repair_device()
    assert content(file) == b"before"


def test_a_failed_sync_is_final_for_its_file_and_the_bytes_are_gone_after_a_restart(small):
    file = small.disk.open("a", True)
    file.append([b"lost"])
    small.disk.sync_now("")
    small.faults.arm_error(DiskOperation.SYNC)
    done = []
    file.sync(done.append)
    small.run()
    small.faults.repair_device()
    file.sync(done.append)
    small.run()
    assert [outcome.kind for outcome in done] == [Kind.IO, Kind.IO]
    assert file.durable == 0
    assert content(small.end(Death.KILL).open("a", False)) == bytes(4)


def test_a_full_drive_refuses_whole_appends_and_still_reads_and_deletes(small):
    file = small.disk.open("a", True)
    file.append([b"0123456789"])
    small.drive.capacity = 15
    with pytest.raises(Failure) as full:
        file.append([b"012345"])
    assert full.value.kind is Kind.FULL
    assert content(file) == b"0123456789"
    assert small.disk.free_bytes() == 5
    small.disk.unlink_now("a")
    assert small.disk.free_bytes() == 15


def test_a_short_write_leaves_nothing(small):
    file = small.disk.open("a", True)
    small.faults.arm_error(DiskOperation.SHORT_WRITE)
    with pytest.raises(Failure) as full:
        file.append([b"0123456789"])
    assert full.value.kind is Kind.FULL
    assert file.size == 0
    assert file.append([b"again"]) == 0


def test_a_view_of_read_dies_when_done_returns(small):
    file = small.disk.open("a", True)
    file.append([b"bytes"])
    kept = []
    file.read(0, 5, kept.append)
    small.run()
    assert bytes(kept[0]) == b"\xdb" * 5
