"""One file of the log directory: the real `ottla.seams.File`.

Zone: real. Handles positions, undo of short writes, syncs in order, residency and the mapping of sealed files;
`ottla.server.disks.disk` handles names and directories.

Positions are explicit (`pwritev`), never O_APPEND: bytes of a refused append cannot move the next one.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from ottla.seams import Done, Failure, Kind
from ottla.server.disks.descriptors import Descriptors
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.os_errors import failure_of

IOV_MAX: Final = 1024
"""Most parts of one writev; more parts are joined first."""
SMALL_VIEW: Final = 16 * 1024
"""A sealed file up to this size is copied into memory: a mapping would cost a descriptor and a page anyway."""
HOT_TAIL: Final = 32 * 1024 * 1024
"""Where the system does not report which pages are resident, the last HOT_TAIL bytes that this process wrote count as
resident."""

_fdatasync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_NOWAIT: Final[int] = getattr(os, "RWF_NOWAIT", 0)
_CANNOT_TELL = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Folder:
    """A directory with open handles in it; renaming it moves them all."""

    __slots__ = ("files", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.files: dict[str, RealFile] = {}


class FileTable(Protocol):
    """The open handles of a disk, as one of them uses it (`ottla.server.disks.disk.RealDisk`)."""

    knows_residency: bool
    """Whether the system reports which pages are resident; a file clears it when the system refuses."""

    @property
    def turns(self) -> CompletionQueue:
        """Where completions are queued."""
        ...

    @property
    def descriptors(self) -> Descriptors:
        """The open descriptors of the process."""
        ...

    def reopen_file(self, file: RealFile) -> int:
        """A new descriptor for a parked handle."""
        ...

    def forget_handle(self, folder: Folder, name: str, file: RealFile) -> None:
        """Remove a handle that is closed."""
        ...

    def admit_sync(self, start: Callable[[], None]) -> None:
        """Call `start` now, or when fewer files are synced."""
        ...

    def end_sync(self) -> None:
        """A sync that was admitted has ended."""
        ...


class RealFile:
    """A counted handle on a file; its descriptor may be parked while idle and is opened again on use."""

    __slots__ = (
        "_closed",
        "_count",
        "_detached",
        "_disk",
        "_fd",
        "_folder",
        "_hot_from",
        "_lost",
        "_name",
        "_pins",
        "_queued",
        "_sealed",
        "_sync_size",
        "_syncing",
        "_view",
        "_waiting",
        "durable",
        "generation",
        "seldom",
        "size",
        "touched",
    )

    def __init__(self, disk: FileTable, folder: Folder, name: str, fd: int, size: int) -> None:
        self._disk = disk
        self._folder = folder
        self._name = name
        self._fd = fd
        self._count = 1
        self._pins = 0
        self._closed = False
        self._detached = False
        self._sealed = False
        self._hot_from = size
        self._view: memoryview | None = None
        self._lost: Failure | None = None
        self._syncing = self._queued = False
        self._sync_size = 0
        self._waiting: list[tuple[int, Done[int]]] = []
        self.size = size
        self.durable = 0
        self.generation = 0
        self.touched = True
        self.seldom = ".log" not in name
        """Indexes and other files beside a log are used less often than the log."""

    # -- descriptors ---------------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Where the file is now, relative to its disk."""
        return f"{self._folder.path}/{self._name}" if self._folder.path else self._name

    @property
    def busy(self) -> bool:
        """Whether a thread or a reply uses the descriptor, or it could not be opened again because the name was
        removed."""
        return self._pins > 0 or self._detached

    def fileno(self) -> int:
        """The descriptor, opened again if it was parked. Raises Failure IO when another program has removed the
        file."""
        self.touched = True
        if self._fd < 0:
            if self._closed and not self._queued:
                raise Failure(Kind.NOT_DONE, f"the file was closed: {self.path}")
            self._fd = self._disk.reopen_file(self)
        return self._fd

    def park_descriptor(self) -> None:
        """Close the descriptor; the next use opens it again."""
        fd = self._fd
        self._fd = -1
        try:
            os.close(fd)
        except OSError as error:
            # The descriptor is closed nevertheless, but bytes written earlier may not have reached the device: later
            # syncs have to fail.
            self._lost = failure_of(error, self.path)

    def rest(self) -> None:
        """Close the descriptor if nothing uses it: a broker has thousands of logs, and most of them are idle."""
        if self._fd >= 0 and not self.busy and not self._syncing:
            self._disk.descriptors.on_closed(self)
            self.park_descriptor()

    def pin_descriptor(self) -> int:
        """Keep the descriptor open for a thread or a reply until `unpin_descriptor`, even after `close`."""
        fd = self._fd
        if fd < 0:
            fd = self.fileno()
        self.touched = True
        self._pins += 1
        return fd

    def unpin_descriptor(self) -> None:
        """Undo one `pin_descriptor`."""
        self._pins -= 1
        if self._pins == 0 and self._closed and not self._queued:
            self._close_descriptor()

    def open_again(self) -> None:
        """Count one more user of this handle.

        A closed handle that a reply still pins is opened again: a second handle would have a generation of its own, and
        the reply would not notice that the file was truncated and written again through it.
        """
        self._count += 1
        if self._closed:
            self._closed = self._sealed = False

    def on_moved(self, folder: Folder, name: str) -> None:
        """Follow a rename of the file."""
        self._folder = folder
        self._name = name

    def keep_descriptor(self) -> None:
        """Keep the descriptor open from now on: the name is about to be removed."""
        self.fileno()
        self._detached = True

    def _close_descriptor(self) -> None:
        self._disk.forget_handle(self._folder, self._name, self)
        if self._fd >= 0:
            self._disk.descriptors.on_closed(self)
            self.park_descriptor()

    # -- writing -------------------------------------------------------------------------------------------------

    def append(self, parts: Sequence[bytes | bytearray | memoryview]) -> int:
        """Write all parts at the end with one system call, or nothing. Returns their position. Raises Failure FULL or
        IO."""
        assert not self._sealed, "append to a sealed file"
        at = self.size
        self.touched = True
        fd = self._fd
        if fd < 0:
            fd = self.fileno()
        if len(parts) > IOV_MAX:
            # The kernel refuses more parts with EINVAL.
            parts = (b"".join(parts),)
        try:
            if len(parts) == 1:  # a produced batch: `pwrite` is a fifth cheaper than the vector call
                wanted = len(parts[0])
                written = os.pwrite(fd, parts[0], at)
            else:
                wanted = sum(map(len, parts))
                written = os.pwritev(fd, parts, at)
        except OSError as error:
            raise failure_of(error, self.path) from None
        if written != wanted:
            self._write_rest(fd, memoryview(b"".join(parts))[written:], at + written)
        self.size = at + wanted
        return at

    def _write_rest(self, fd: int, rest: memoryview, at: int) -> None:
        """Continue after a short write. If the device is full, one of the next calls fails and reports the reason."""
        try:
            while rest:
                written = os.pwrite(fd, rest, at)
                at += written
                rest = rest[written:]
        except OSError as error:
            # Without the undo, a later and shorter append would leave the end of this one after it, where recovery
            # would find bytes of a batch that was refused.
            self._undo_append(fd)
            raise failure_of(error, self.path) from None

    def _undo_append(self, fd: int) -> None:
        """Cut off the bytes of a refused append. No reader has seen them, so the generation does not change."""
        try:
            os.ftruncate(fd, self.size)
        except OSError as error:
            raise failure_of(error, self.path) from None

    def truncate(self, size: int) -> None:
        """Truncate to `size` bytes. Views taken before must not be used any more: their pages may not exist."""
        assert 0 <= size <= self.size, "truncate to more than the size"
        try:
            os.ftruncate(self.fileno(), size)
        except OSError as error:
            raise failure_of(error, self.path) from None
        # A sync that runs may report more than is left; readers that pinned a region compare its generation.
        self._view = None
        self._sealed = False
        self.size = size
        self.durable = min(self.durable, size)
        self._sync_size = min(self._sync_size, size)
        self._hot_from = min(self._hot_from, size)
        # A reply with a region of the earlier generation must not send what is written here from now on.
        self.generation += 1

    def seal(self) -> None:
        """Forbid appends from now on."""
        self._sealed = True

    def close(self) -> None:
        """Count one user less; after the last one the descriptor is closed as soon as nothing uses it."""
        assert self._count > 0, "closed more often than opened"
        self._count -= 1
        if self._count:
            return
        self._closed = True
        self._view = None
        if self._pins == 0 and not self._queued:
            self._close_descriptor()

    # -- reading -------------------------------------------------------------------------------------------------

    def try_read(self, pos: int, into: memoryview) -> int:
        """Read from the page cache; returns 0 where the device would have to be read, and at the end of the file."""
        room = self.size - pos
        if room <= 0:
            return 0
        if len(into) > room:
            into = into[:room]
        fd = self._fd
        if fd < 0:
            fd = self.fileno()
        self.touched = True
        if not self._disk.knows_residency:
            return self._try_tail(fd, pos, into)
        try:
            return os.preadv(fd, (into,), pos, _NOWAIT)
        except BlockingIOError:
            return 0
        except OSError as error:
            if error.errno not in _CANNOT_TELL:
                raise failure_of(error, self.path) from None
        # The file system does not support RWF_NOWAIT: use the estimate for this disk from now on.
        self._disk.knows_residency = False
        return self._try_tail(fd, pos, into)

    def _try_tail(self, fd: int, pos: int, into: memoryview) -> int:
        if pos < self._hot_from or pos < self.size - HOT_TAIL:
            return 0
        try:
            return os.preadv(fd, (into,), pos)
        except OSError as error:
            raise failure_of(error, self.path) from None

    def read_pinned(self, pos: int, into: memoryview) -> int:
        """Read for a reply that has pinned the file; a read that fills `into` undoes the pin. Raises OSError."""
        self.touched = True
        count = os.preadv(self._fd, (into,), pos)
        if count == len(into):
            self._pins -= 1
            if not self._pins and self._closed:
                # `unpin_descriptor` counts this pin down again, and closes the descriptor if nothing else needs it.
                self._pins = 1
                self.unpin_descriptor()
        return count

    def read_now(self, pos: int, into: memoryview) -> int:
        """Read, waiting for the device. Returns the number of bytes, fewer than `into` holds only at the end."""
        room = max(0, self.size - pos)
        try:
            return read_all(self.fileno(), pos, into[:room] if len(into) > room else into)
        except OSError as error:
            raise failure_of(error, self.path) from None

    def read(self, pos: int, size: int, done: Done[memoryview]) -> None:
        """Read up to `size` bytes in a thread."""
        size = max(0, min(size, self.size - pos))
        try:
            fd = self.pin_descriptor()
        except Failure as failure:
            self._disk.turns.run_soon(done, failure.as_value())
            return

        def work() -> memoryview:
            view = memoryview(bytearray(size))
            return view[: read_all(fd, pos, view)]

        def finished(outcome: memoryview | Failure) -> None:
            self.unpin_descriptor()
            done(outcome)

        self._disk.turns.run_in_thread(work, finished)

    def view(self) -> memoryview:
        """The whole file, read-only: mapped, or copied if it is small. Seals the file."""
        if self._view is None:
            self.seal()
            self._view = self._map_file()
        return self._view

    def _map_file(self) -> memoryview:
        try:
            if self.size <= SMALL_VIEW:
                copy = bytearray(self.size)
                self.read_now(0, memoryview(copy))
                return memoryview(copy).toreadonly()
            return memoryview(mmap.mmap(self.fileno(), self.size, prot=mmap.PROT_READ))
        except OSError as error:
            raise failure_of(error, self.path) from None

    # -- durability ----------------------------------------------------------------------------------------------

    def sync(self, done: Done[int]) -> None:
        """Make all bytes appended so far durable; requests that come while a sync runs share the next one."""
        self._waiting.append((self.size, done))
        if not self._syncing:
            self._queue_sync()

    def _queue_sync(self) -> None:
        """Queue a sync: a disk syncs few files at a time, because each of them needs an open descriptor meanwhile."""
        self._syncing = self._queued = True
        self._disk.admit_sync(self._start_sync)

    def _start_sync(self) -> None:
        # Requests that come from here on may be for bytes that this sync does not cover: they share the next one.
        batch = self._waiting
        self._waiting = []
        try:
            if self._lost is not None:
                raise self._lost
            fd = self.pin_descriptor()
        except Failure as failure:
            self._lost = failure.as_value()
            self._syncing = self._queued = False
            self._disk.end_sync()
            self._complete_batch(batch, failure.as_value())
            return
        self._queued = False
        self._sync_size = self.size
        self._disk.turns.run_in_thread(lambda: _fdatasync(fd), lambda outcome: self._on_synced(batch, outcome))

    def _on_synced(self, batch: list[tuple[int, Done[int]]], outcome: Failure | None) -> None:
        self._syncing = False
        self._disk.end_sync()
        if outcome is None:
            # `_sync_size` is the size when fdatasync began: bytes that were appended while it ran may not be on the
            # device. A truncation in between has lowered it.
            self.durable = max(self.durable, self._sync_size)
        else:
            # After a failed fsync the kernel may mark the dirty pages as clean: a second fsync would succeed although
            # the data is lost. So every later sync of this file fails.
            self._lost = Failure(Kind.IO, f"{outcome.message}: {self.path}")
        self._complete_batch(batch, self._lost)
        if self._waiting:
            self._queue_sync()
        self.unpin_descriptor()

    def _complete_batch(self, batch: list[tuple[int, Done[int]]], failure: Failure | None) -> None:
        for size, done in batch:
            self._disk.turns.run_soon(done, size if failure is None else failure)


def read_all(fd: int, pos: int, into: memoryview) -> int:
    """Fill `into` from `pos`; returns the number of bytes, fewer than `into` holds only at the end of the file."""
    filled = 0
    while filled < len(into):
        count = os.preadv(fd, (into[filled:] if filled else into,), pos + filled)
        if count == 0:
            break
        filled += count
    return filled
