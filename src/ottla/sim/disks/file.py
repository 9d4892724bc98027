"""The seam `File` over an inode: a handle that one process holds.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from ottla.seams import Done, Failure, Kind
from ottla.sim.disks.drive_faults import DiskOperation, DriveFaults
from ottla.sim.disks.inode import Inode
from ottla.sim.entropy import Stream
from ottla.sim.machines.machine import Process

POISON: Final = 0xDB
"""Overwrites a borrowed buffer when the loan ends, so that a late reader gets wrong bytes and is detected."""


class FileDisk(Protocol):
    """What an open file uses of the disk that opened it."""

    faults: DriveFaults
    process: Process
    random: Stream

    def wall_ms(self) -> int:
        """Wall time of this turn, for modification times."""

    def check_room(self, wanted: int) -> None:
        """Raises Failure FULL when the drive has no room for that many bytes."""

    def delay_of_sync(self) -> int:
        """How long the next sync takes, ns."""

    def delay_of_read(self) -> int:
        """How long the next read takes, ns."""

    def forget_inode(self, inode: Inode) -> None:
        """The last user closed its handle."""


class SimFile:
    """An open file. All opens of one file by one process share it."""

    def __init__(self, disk: FileDisk, inode: Inode, path: str) -> None:
        self.disk = disk
        self.inode = inode
        self.path = path
        """The path that it was opened with, for messages."""
        self._users = 0
        self._sealed = False
        self._durable = 0
        self._lost: Failure | None = None
        self._last_sync_ns = 0
        self._cold_below = len(inode.data) if disk.random.chance(0.5) else 0

    def on_opened(self) -> None:
        """Count one more user."""
        self._users += 1

    # ---- state ----

    @property
    def size(self) -> int:
        """Bytes accepted so far."""
        return len(self.inode.data)

    @property
    def durable(self) -> int:
        """Bytes covered by a sync that completed on this handle."""
        return min(self._durable, len(self.inode.data))

    @property
    def generation(self) -> int:
        """Rises by one with each truncation."""
        return self.inode.generation

    # ---- writing ----

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all parts at the end, or nothing. Raises Failure FULL or IO."""
        assert not self._sealed, "append to a sealed file"
        disk = self.disk
        disk.process.burn_fuse()
        disk.faults.check_operation(DiskOperation.APPEND, self.path)
        disk.check_room(sum(map(len, parts)))
        if disk.faults.short_write():
            raise Failure(Kind.FULL, f"short write, undone: {self.path}")
        return self.inode.append(list(parts), disk.wall_ms())

    def truncate(self, size: int) -> None:
        """Cut to `size`; `generation` rises. Raises Failure IO."""
        assert 0 <= size <= self.size, "truncate makes a file longer"
        self.disk.process.burn_fuse()
        self.disk.faults.check_operation(DiskOperation.APPEND, self.path)
        self.inode.truncate(size, self.disk.wall_ms())
        self._sealed = False
        self._durable = min(self._durable, size)
        self._cold_below = min(self._cold_below, size)

    def rest(self) -> None:
        """Does nothing: here an idle file holds no resources."""

    def seal(self) -> None:
        """No more appends."""
        self.disk.process.burn_fuse()
        self._sealed = True

    def close(self) -> None:
        """Count one user less; the last one releases the handle."""
        assert self._users > 0, "closed more often than opened"
        self.disk.process.burn_fuse()
        self._users -= 1
        if self._users == 0:
            self.disk.forget_inode(self.inode)

    # ---- reading ----

    def try_read(self, pos: int, into: memoryview) -> int:
        """Read resident bytes; 0 where the device would have to be read, and at the end. Raises Failure IO."""
        if pos < self._cold_below:
            return 0
        return self.read_now(pos, into)

    def read_now(self, pos: int, into: memoryview) -> int:
        """Read, blocking. Raises Failure IO."""
        self.disk.process.burn_fuse()
        self.disk.faults.check_operation(DiskOperation.READ, self.path)
        part = self.inode.data[pos : pos + len(into)]
        into[: len(part)] = part
        return len(part)

    def read(self, pos: int, size: int, done: Done[memoryview]) -> None:
        """Read up to `size` bytes off the loop; the view is overwritten when `done` returns."""
        self.disk.process.burn_fuse()
        self.disk.process.post_turn(self.disk.delay_of_read(), "read", self._deliver_read, pos, size, done)

    def _deliver_read(self, pos: int, size: int, done: Done[memoryview]) -> None:
        try:
            self.disk.faults.check_operation(DiskOperation.READ, self.path)
        except Failure as failure:
            self.disk.process.deliver_completion(done, failure)
            return
        part = self.inode.data[pos : pos + max(0, size)]
        self.disk.process.deliver_completion(done, memoryview(part))
        part[:] = bytes([POISON]) * len(part)

    def on_warmed(self) -> None:
        """A worker has read the file, so none of its bytes are cold. Raises Failure IO."""
        self.disk.faults.check_operation(DiskOperation.READ, self.path)
        self._cold_below = 0

    def view(self) -> memoryview:
        """The whole file, read-only."""
        self.seal()
        self.disk.faults.check_operation(DiskOperation.READ, self.path)
        if self.inode.sealed is None:
            self.inode.sealed = bytes(self.inode.data)
        return memoryview(self.inode.sealed)

    # ---- durability ----

    def sync(self, done: Done[int]) -> None:
        """Make all accepted bytes durable. After a failure every later sync of this handle fails: the kernel drops the
        dirty state of the pages, so a retry would succeed without writing them."""
        disk = self.disk
        disk.process.burn_fuse()
        now = disk.process.timeline.now_ns
        # Syncs of one file complete in the order of their submission.
        self._last_sync_ns = max(self._last_sync_ns, now + disk.delay_of_sync())
        cell = self.inode.start_sync()
        disk.process.post_turn(self._last_sync_ns - now, "sync", self._on_synced, self.size, cell, done)

    def _on_synced(self, size: int, cell: list[int], done: Done[int]) -> None:
        if self._lost is None:
            try:
                self.disk.faults.check_operation(DiskOperation.SYNC, self.path)
            except Failure as failure:
                self._lost = failure
        if self._lost is not None:
            self.inode.fail_sync(cell)
            self.disk.process.deliver_completion(done, self._lost)
            return
        self._durable = max(self._durable, cell[0])
        self.inode.end_sync(cell)
        self.disk.process.deliver_completion(done, size)
