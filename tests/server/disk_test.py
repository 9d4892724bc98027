"""The real disk: errors of a real file system.

Zone: real. tests/contract has what every disk must do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import resource
import subprocess
import threading
import time

import pytest
from tests.steps import count_steps

from ottla.seams import Failure, Kind, Region
from ottla.server.disks import file as file_module
from ottla.server.disks.descriptors import Descriptors
from ottla.server.disks.disk import RealDisk
from ottla.server.loop.completion_queue import THREADS, CompletionQueue


class World:
    """A loop to step."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.turns = CompletionQueue(self.loop)

    def until(self, holds) -> None:
        end = time.monotonic() + 180
        while not holds():
            assert time.monotonic() < end, "timed out"
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()


@pytest.fixture
def world():
    made = World()
    yield made
    made.turns.stop_threads()
    made.loop.close()


@pytest.fixture
def disk(world, tmp_path):
    return RealDisk(str(tmp_path), world.turns)


def content(file):
    into = bytearray(file.size)
    assert file.read_now(0, memoryview(into)) == file.size
    return bytes(into)


@contextlib.contextmanager
def small_files():
    """Writes beyond 10,000 bytes of a file are cut short, as on a full disk.

    The limit applies to the whole process: pytest must not report meanwhile, because its output may be a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_short_write_is_undone(disk, tmp_path):
    file = disk.open("a.log", True)
    file.append([b"a" * 6_000])
    with small_files(), pytest.raises(Failure) as refused:
        file.append([b"b" * 3_000, b"c" * 3_000])
    assert refused.value.kind is Kind.FULL
    assert "a.log" in refused.value.message
    assert (file.size, file.generation) == (6_000, 0)
    assert os.stat(tmp_path / "a.log").st_size == 6_000
    file.append([b"d" * 2_000])
    assert content(file) == b"a" * 6_000 + b"d" * 2_000
    file.close()
    assert (tmp_path / "a.log").read_bytes() == b"a" * 6_000 + b"d" * 2_000


def test_a_checkpoint_that_does_not_fit_leaves_the_old_one_and_no_litter(disk):
    disk.replace_now("checkpoint", b"old")
    with small_files(), pytest.raises(Failure) as refused:
        disk.replace_now("checkpoint", b"x" * 20_000)
    assert refused.value.kind is Kind.FULL
    assert content(disk.open("checkpoint", False)) == b"old"
    assert list(disk.list("")) == ["checkpoint"]


@pytest.mark.root
def test_a_full_file_system(world, tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=True)
    try:
        disk = RealDisk(str(mount), world.turns)
        file = disk.open("a.log", True)
        for taken in range(0, 60_000, 5_000):
            assert file.append([b"x" * 5_000]) == taken
        taken = file.size
        with pytest.raises(Failure) as refused:
            file.append([b"x" * 5_000, b"y" * 5_000])
        assert refused.value.kind is Kind.FULL
        assert file.size == taken == os.stat(mount / "a.log").st_size
        into = bytearray(10)
        assert file.try_read(taken - 10, memoryview(into)) == 10
        file.truncate(1_000)
        file.append([b"y" * 5_000])
        file.close()
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.root
def test_a_read_only_file_system_is_the_devices_failure(world, tmp_path):
    mount = tmp_path / "mount"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)], check=True)
    try:
        disk = RealDisk(str(mount), world.turns)
        subprocess.run(["mount", "-o", "remount,ro", str(mount)], check=True)
        with pytest.raises(Failure) as refused:
            disk.open("a.log", True)
        assert refused.value.kind is Kind.IO
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_failed_sync_is_final(disk, world, monkeypatch):
    def broken(_fd):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    file = disk.open("a.log", True)
    file.append([b"123"])
    done = []
    monkeypatch.setattr(file_module, "_fdatasync", broken)
    file.sync(done.append)
    file.sync(done.append)
    world.until(lambda: len(done) == 2)
    monkeypatch.undo()
    file.sync(done.append)
    world.until(lambda: len(done) == 3)
    assert [outcome.kind for outcome in done] == [Kind.IO] * 3
    assert file.durable == 0


def test_syncs_that_wait_share_one_call(disk, world, monkeypatch):
    calls = []
    real = os.fdatasync

    def counted(fd):
        calls.append(fd)
        real(fd)

    monkeypatch.setattr(file_module, "_fdatasync", counted)
    file = disk.open("a.log", True)
    done = []
    for _ in range(10):
        file.append([b"x"])
        file.sync(done.append)
    world.until(lambda: len(done) == 10)
    assert done == list(range(1, 11))
    assert len(calls) == 2


def test_idle_descriptors_are_closed_and_come_back(world, tmp_path):
    descriptors = Descriptors(3)
    disk = RealDisk(str(tmp_path), world.turns, descriptors)
    files = [disk.open(f"{n}.log", True) for n in range(20)]
    for round_ in range(3):
        for n, file in enumerate(files):
            file.append([b"%d-%d " % (n, round_)])
            assert len(descriptors) <= 4
    disk.rename("7.log", "seven.log")
    disk.make_dir("t")
    disk.rename("8.log", "t/8.log")
    disk.rename("t", "u")
    done = []
    disk.unlink("9.log", done.append)
    world.until(lambda: len(done) == 1)
    for n, file in enumerate(files):
        assert content(file) == b"%d-0 %d-1 %d-2 " % (n, n, n)
    for file in files:
        file.close()
    assert len(descriptors) == 0


def test_files_beside_logs_give_way_to_logs(world, tmp_path):
    """n partitions have one open descriptor each, while those fit, although each partition uses three files."""
    descriptors = Descriptors(80)
    disk = RealDisk(str(tmp_path), world.turns, descriptors)
    logs = []
    for n in range(70):
        logs.append(disk.open(f"{n}.log", True))
        for name in (f"{n}.index", f"{n}.timeindex"):
            disk.open(name, True).append([b"x"])
    descriptors.reopened = 0
    for _ in range(3):
        for log in logs:
            log.append([b"x"])
    assert descriptors.reopened == 0
    assert len(descriptors) <= 81


def test_a_file_at_rest_has_no_descriptor_until_it_is_used(world, tmp_path):
    descriptors = Descriptors(10)
    disk = RealDisk(str(tmp_path), world.turns, descriptors)
    file = disk.open("a.index", True)
    file.append([b"one"])
    file.rest()
    assert len(descriptors) == 0
    file.append([b"two"])
    assert content(file) == b"onetwo"
    assert len(descriptors) == 1
    pinned = file.pin_descriptor()
    file.rest()
    assert os.fstat(pinned).st_size == 6
    file.unpin_descriptor()
    file.close()
    file.rest()
    assert len(descriptors) == 0


def test_a_busy_descriptor_is_not_taken_away(world, tmp_path):
    descriptors = Descriptors(1)
    disk = RealDisk(str(tmp_path), world.turns, descriptors)
    first = disk.open("a.log", True)
    fd = first.pin_descriptor()
    for n in range(5):
        disk.open(f"{n}.log", True)
    assert os.fstat(fd).st_size == 0
    assert first.fileno() == fd
    first.unpin_descriptor()


def test_a_file_that_somebody_removed_is_the_devices_failure(world, tmp_path):
    disk = RealDisk(str(tmp_path), world.turns, Descriptors(1))
    file = disk.open("a.log", True)
    disk.open("b.log", True)
    disk.open("c.log", True)
    (tmp_path / "a.log").unlink()
    with pytest.raises(Failure) as refused:
        file.append([b"x"])
    assert refused.value.kind is Kind.IO
    assert "a.log" in refused.value.message


def test_a_reopened_file_does_not_serve_the_regions_of_its_closed_handle(disk):
    """The generation of a closed handle is kept while a reply has a region of it."""
    file = disk.open("a.log", True)
    file.append([b"x" * 100])
    region = Region(file, 0, 100, file.generation)
    file.pin_descriptor()
    file.close()
    again = disk.open("a.log", False)
    again.truncate(0)
    assert region.file.generation != region.generation
    file.unpin_descriptor()
    again.append([b"y"])
    assert content(again) == b"y"


def test_without_the_kernels_word_only_the_own_tail_counts_as_resident(disk):
    disk.open("a.log", True).append([b"old" * 10])
    disk.open("a.log", False).close()
    disk.open("a.log", False).close()
    fresh = RealDisk(disk.name, disk.turns)
    fresh.knows_residency = False
    file = fresh.open("a.log", False)
    into = bytearray(3)
    assert file.try_read(0, memoryview(into)) == 0
    file.append([b"new"])
    assert file.try_read(30, memoryview(into)) == 3
    assert into == b"new"


def test_operations_on_missing_names_are_not_done(disk):
    with pytest.raises(Failure) as refused:
        disk.rename("missing", "elsewhere")
    assert refused.value.kind is Kind.NOT_DONE
    with pytest.raises(Failure) as refused:
        disk.make_dir("missing/inside")
    assert refused.value.kind is Kind.NOT_DONE


def test_a_directory_that_hangs_holds_up_no_other(world, tmp_path):
    """All threads of one directory are busy with syncs that do not end; a sync of the other one ends."""
    disks = []
    for name in ("hangs", "works"):
        (tmp_path / name).mkdir()
        disks.append(RealDisk(str(tmp_path / name), world.turns.add_branch()))
    hung, done = threading.Event(), []
    for _ in range(2 * THREADS):
        disks[0].turns.run_in_thread(hung.wait, lambda _: done.append("hung"))
    file = disks[1].open("a", create=True)
    file.append((b"x",))
    file.sync(done.append)
    world.until(lambda: bool(done))
    assert done == [1]
    hung.set()
    world.until(lambda: len(done) == 1 + 2 * THREADS)
    file.close()


def test_a_descriptor_that_cannot_be_closed_costs_its_own_file_the_next_sync_and_no_other(world, tmp_path, monkeypatch):
    """As on a network file system, which reports only on close that it could not write."""
    disk = RealDisk(str(tmp_path), world.turns, Descriptors(1))
    file = disk.open("a.log", True)
    file.append([b"123"])
    broken, close = file.fileno(), os.close

    def close_fails(fd):
        close(fd)
        if fd == broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "close", close_fails)
    others = [disk.open(name, True) for name in ("b.log", "c.log")]
    monkeypatch.undo()
    done = []
    for each in (file, *others):
        each.sync(done.append)
    world.until(lambda: len(done) == 3)
    failures = [outcome for outcome in done if isinstance(outcome, Failure)]
    assert [(failure.kind, "a.log" in failure.message) for failure in failures] == [(Kind.IO, True)]


def test_a_checkpoint_over_a_file_that_somebody_removed_is_refused_where_its_caller_waits(world, tmp_path):
    disk = RealDisk(str(tmp_path), world.turns, Descriptors(1))
    for name in ("checkpoint", "b.log", "c.log"):
        disk.open(name, True)
    (tmp_path / "checkpoint").unlink()
    done = []
    disk.replace_file("checkpoint", b"new", done.append)
    world.until(lambda: bool(done))
    assert [outcome.kind for outcome in done] == [Kind.IO]


def test_a_directory_is_renamed_and_removed_without_a_look_at_all_others(disk, world):
    """A broker with thousands of logs deletes one: only the directories under its name are examined."""

    def steps_beside(others):
        for number in range(others):
            disk.make_dir(f"other-{number}")
            disk.open(f"other-{number}/0.log", create=True)
        disk.make_dir("t-0")
        disk.make_dir("t-0/inside")
        files = [disk.open(path, create=True) for path in ("t-0/0.log", "t-0/inside/0.log")]
        steps = count_steps(lambda: disk.rename("t-0", "t-0.delete"))
        assert [file.path for file in files] == ["t-0.delete/0.log", "t-0.delete/inside/0.log"]
        gone = []
        steps += count_steps(lambda: disk.unlink("t-0.delete", gone.append))
        world.until(lambda: gone)
        assert not disk.exists("t-0.delete")
        return steps

    assert steps_beside(500) <= steps_beside(0) + 50
