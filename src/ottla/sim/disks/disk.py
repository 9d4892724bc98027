"""The seam `Disk` over a simulated drive, for one process.

Zone: deterministic. Times and failures of operations are here; `drive.py` has the state of a drive, `inode.py` that of
a file. Every operation burns the fuse of the process, so a kill can strike in the middle of any turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TypeVar

from ottla.seams import Done, Failure, Kind, Region
from ottla.sim.disks.drive import Directory, Drive
from ottla.sim.disks.drive_faults import DiskOperation, DriveFaults
from ottla.sim.disks.file import SimFile
from ottla.sim.disks.inode import Inode
from ottla.sim.machines.machine import Process
from ottla.sim.world import MS, US

REMOVE_NS = 2 * MS

T = TypeVar("T")


class SimDisk:
    """A log directory, as one process sees it."""

    def __init__(self, drive: Drive, faults: DriveFaults, process: Process) -> None:
        self.drive = drive
        self.faults = faults
        self.process = process
        self.random = process.machine.streams.named_stream("disk")
        self._handles: dict[int, SimFile] = {}
        self._replacing: dict[str, deque[tuple[Iterator[str], Done[None]]]] = {}

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        return self.drive.name

    def wall_ms(self) -> int:
        """Wall time of this turn, for modification times."""
        return self.process.clock.now().wall_ms

    # ---- files ----

    def open(self, path: str, create: bool) -> SimFile:
        """Open a file; a second open of the same one shares the handle. Raises Failure NOT_DONE, FULL or IO."""
        self.process.burn_fuse()
        self.faults.check_operation(DiskOperation.READ, path)
        found = self.drive.find_path(path)
        if found is None and create:
            found = Inode()
            found.modified_ms = self.wall_ms()
            self.drive.create_path(path, found)
        if not isinstance(found, Inode):
            raise Failure(Kind.NOT_DONE, f"no such file: {path}")
        file = self._handles.get(id(found))
        if file is None:
            file = self._handles[id(found)] = SimFile(self, found, path)
        file.on_opened()
        return file

    def forget_inode(self, inode: Inode) -> None:
        """The last user closed its handle."""
        self._handles.pop(id(inode), None)

    # ---- names ----

    def exists(self, path: str) -> bool:
        """Whether a file or directory with that path exists."""
        self.process.burn_fuse()
        return self.drive.find_path(path) is not None

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted; directories end in `/`. Raises Failure NOT_DONE or IO."""
        self.process.burn_fuse()
        self.faults.check_operation(DiskOperation.READ, path)
        names = self.drive.directory_at(path).names
        return [name + "/" if isinstance(names[name], Directory) else name for name in sorted(names)]

    def make_dir(self, path: str) -> bool:
        """Create a directory unless it exists; True if it is new. Raises Failure NOT_DONE or IO."""
        self.process.burn_fuse()
        self.faults.check_operation(DiskOperation.APPEND, path)
        is_new = self.drive.find_path(path) is None
        if is_new:
            self.drive.create_path(path, Directory())
        return is_new

    def rename(self, source: str, target: str) -> None:
        """Rename a file (over another one) or a directory. Raises Failure NOT_DONE or IO."""
        self.process.burn_fuse()
        self.faults.check_operation(DiskOperation.APPEND, source)
        self.drive.rename_path(source, target)

    def modified_ms(self, path: str) -> int:
        """Wall time of the last change in ms. Raises Failure NOT_DONE."""
        self.process.burn_fuse()
        return self.drive.file_at(path).modified_ms

    def free_bytes(self) -> int:
        """Free space; the drive's capacity shrinks while the nemesis fills it."""
        return max(0, self.drive.capacity - self.drive.used_bytes())

    def total_bytes(self) -> int:
        """The drive's capacity."""
        return self.drive.capacity

    # ---- durability of names ----

    def sync_dir(self, path: str, done: Done[None]) -> None:
        """Make creations, renames and unlinks in this directory durable."""
        self.process.burn_fuse()
        found = self.drive.find_path(path)
        if not isinstance(found, Directory):
            self._post_completion("sync_dir", done, Failure(Kind.NOT_DONE, f"no such directory: {path}"))
            return
        directory, covered = found, self.drive.pending_operations(found)

        def finish() -> Failure | None:
            try:
                self.faults.check_operation(DiskOperation.SYNC_DIR, path)
            except Failure as failure:
                return failure
            self.drive.sync_directory(directory, covered)
            return None

        self.process.post_done(self._draw_delay(self.faults.sync_mean_ns), "sync_dir", done, finish)

    def sync_now(self, path: str) -> None:
        """Sync one file or directory, blocking. Raises Failure NOT_DONE or IO."""
        self.process.burn_fuse()
        found = self.drive.find_path(path)
        if isinstance(found, Directory):
            self.faults.check_operation(DiskOperation.SYNC_DIR, path)
            self.drive.sync_directory(found, self.drive.pending_operations(found))
        else:
            self._sync_inode(self.drive.file_at(path), path)

    def read_small(self, path: str) -> bytes:
        """A whole file. Raises Failure NOT_DONE or IO."""
        self.process.burn_fuse()
        self.faults.check_operation(DiskOperation.READ, path)
        found = self.drive.find_path(path)
        if not isinstance(found, Inode):
            raise Failure(Kind.NOT_DONE, f"no such file: {path}")
        return bytes(found.data)

    def sync_all(self, done: Done[bool]) -> None:
        """Make everything that is in the directory now durable."""
        self.process.burn_fuse()
        if not self.faults.syncs_all:
            self._post_completion("sync_all", done, False)
            return
        files, covered = list(self.drive.walk_files()), list(self.drive.journal)
        cells = [(inode, inode.start_sync()) for _, inode in files]

        def finish() -> bool | Failure:
            try:
                self.faults.check_operation(DiskOperation.SYNC, "")
            except Failure as failure:
                for inode, cell in cells:
                    inode.fail_sync(cell)
                return failure
            for inode, cell in cells:
                inode.end_sync(cell)
            self.drive.sync_names(covered)
            return True

        self.process.post_done(self._draw_delay(self.faults.sync_mean_ns), "sync_all", done, finish)

    def sync_all_now(self) -> bool:
        """Like `sync_all`, but blocking. Raises Failure IO."""
        self.process.burn_fuse()
        if not self.faults.syncs_all:
            return False
        self.faults.check_operation(DiskOperation.SYNC, "")
        for _, inode in self.drive.walk_files():
            inode.end_sync(inode.start_sync())
        self.drive.sync_names(list(self.drive.journal))
        return True

    def _sync_inode(self, inode: Inode, path: str) -> None:
        cell = inode.start_sync()
        try:
            self.faults.check_operation(DiskOperation.SYNC, path)
        except Failure:
            inode.fail_sync(cell)
            raise
        inode.end_sync(cell)

    # ---- checkpoints ----

    def replace_file(self, path: str, data: bytes, done: Done[None]) -> None:
        """Write `<path>.tmp`, sync it, rename it over `path`, sync the directory; a kill strikes between the steps."""
        self.process.burn_fuse()
        # One replacement of a path at a time: a second one waits, as its temporary file has the same name.
        queue = self._replacing.setdefault(path, deque())
        queue.append((self._steps_of_replace(path, data), done))
        if len(queue) == 1:
            self._step_replace(path, *queue[0])

    def _steps_of_replace(self, path: str, data: bytes) -> Iterator[str]:
        """Yields the name of each step before taking it. Raises Failure."""
        yield "replace: write"
        self._write_beside(path, data)
        yield "replace: rename"
        self.faults.check_operation(DiskOperation.REPLACE, path)
        self.drive.rename_path(path + ".tmp", path)
        yield "replace: sync"
        self._sync_directory_of(path)

    def _step_replace(self, path: str, steps: Iterator[str], done: Done[None]) -> None:
        outcome: Failure | None = None
        try:
            for kind in steps:
                delay = self._draw_delay(self.faults.sync_mean_ns)
                self.process.post_thread(delay, kind, self._step_later, path, steps, done)
                return
        except Failure as failure:
            outcome = failure
        queue = self._replacing[path]
        queue.popleft()
        if queue:
            self._step_replace(path, *queue[0])
        else:
            del self._replacing[path]
        self._post_completion("replace", done, outcome)

    def _step_later(self, path: str, steps: Iterator[str], done: Done[None]) -> None:
        """Take the next step, unless `replace_now` has finished this replacement meanwhile."""
        queue = self._replacing.get(path)
        if queue and queue[0][0] is steps:
            self._step_replace(path, steps, done)

    def replace_now(self, path: str, data: bytes) -> None:
        """Like `replace_file`, but blocking; finishes earlier replacements first. Raises Failure NOT_DONE, FULL or
        IO."""
        self._finish_replaces(path)
        self.process.burn_fuse()
        self._write_beside(path, data)
        self.process.burn_fuse()
        self.drive.rename_path(path + ".tmp", path)
        self.process.burn_fuse()
        self._sync_directory_of(path)

    def _finish_replaces(self, path: str) -> None:
        for steps, done in self._replacing.pop(path, ()):
            outcome: Failure | None = None
            try:
                for _ in steps:
                    self.process.burn_fuse()
            except Failure as failure:
                outcome = failure
            self._post_completion("replace", done, outcome)

    def _write_beside(self, path: str, data: bytes) -> None:
        self.faults.check_operation(DiskOperation.REPLACE, path)
        self.check_room(len(data))
        temporary = self.drive.find_path(path + ".tmp")
        if not isinstance(temporary, Inode):
            temporary = Inode()
            self.drive.create_path(path + ".tmp", temporary)
        elif temporary.data:
            temporary.truncate(0, self.wall_ms())
        temporary.append([data], self.wall_ms())
        self._sync_inode(temporary, path + ".tmp")

    def _sync_directory_of(self, path: str) -> None:
        self.faults.check_operation(DiskOperation.SYNC_DIR, path)
        directory = self.drive.directory_at(path.rpartition("/")[0])
        self.drive.sync_directory(directory, self.drive.pending_operations(directory))

    # ---- removing ----

    def unlink(self, path: str, done: Done[None]) -> None:
        """Remove a file, or a directory with its content. The name disappears at once, `done` follows later."""
        self.process.burn_fuse()
        outcome: Failure | None = None
        if self.drive.find_path(path) is None:
            outcome = Failure(Kind.NOT_DONE, f"no such file or directory: {path}")
        elif self.faults.broken:
            outcome = Failure(Kind.IO, f"unlink: {path}")
        else:
            self.drive.unlink_path(path)
        self.process.post_done(self._draw_delay(REMOVE_NS), "unlink", done, lambda: outcome)

    def unlink_now(self, path: str) -> None:
        """Remove a small file if it exists, blocking. Raises Failure IO."""
        self.process.burn_fuse()
        self.faults.check_operation(DiskOperation.APPEND, path)
        self.drive.unlink_path(path)

    # ---- the page cache ----

    def warm_regions(self, regions: Sequence[Region], done: Done[None]) -> None:
        """Bring cold bytes into memory."""
        self.process.burn_fuse()
        files = [region.file for region in regions]

        def finish() -> Failure | None:
            try:
                for file in files:
                    assert isinstance(file, SimFile), "a region of another shell"
                    file.on_warmed()
            except Failure as failure:
                return failure
            return None

        self.process.post_done(self._draw_delay(self.faults.read_mean_ns), "warm", done, finish)

    # ---- shared with SimFile ----

    def check_room(self, wanted: int) -> None:
        """Raises Failure FULL when the drive has no room for that many bytes."""
        capacity = self.drive.capacity
        if capacity < 1 << 50 and self.drive.used_bytes() + wanted > capacity:
            self.faults.note_full()
            raise Failure(Kind.FULL, f"no space on {self.name}")

    def delay_of_sync(self) -> int:
        """How long the next sync takes."""
        return self._draw_delay(self.faults.sync_mean_ns)

    def delay_of_read(self) -> int:
        """How long the next read takes."""
        return self._draw_delay(self.faults.read_mean_ns)

    def _draw_delay(self, mean_ns: int) -> int:
        return self.faults.draw_delay(mean_ns, self.process.timeline.now_ns, self.random)

    def _post_completion(self, kind: str, done: Done[T], outcome: T | Failure) -> None:
        self.process.post_done(10 * US, kind, done, lambda: outcome)
