"""One log directory of the machine: the real `ottla.seams.Disk`.

Zone: real. Handles names, directories, checkpoints and the table of open handles; `ottla.server.disks.file` handles
the content of one file. A handle follows its file: a rename moves it in the table; after an unlink it keeps its
descriptor open.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import stat
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ottla.seams import Done, Failure, Kind, Region
from ottla.server.disks.descriptors import Descriptors
from ottla.server.disks.file import Folder, RealFile, read_all
from ottla.server.loop.completion_queue import THREADS, CompletionQueue, SerialExecutor
from ottla.server.os_errors import failure_of

_logger = logging.getLogger(__name__)

SYNCS: Final = 2 * THREADS
"""Files that are synced at a time: one per thread, and as many that are ready to follow."""
STRANGERS_NAMED: Final = 10
"""Most log lines about foreign entries of one directory."""
WARM_STEP: Final = 256 * 1024
"""Bytes read at a time to bring them into the page cache."""


class Folders:
    """The directories with open handles, by path and by the first component of their path.

    A broker has a directory per log: a rename or a removal finds the affected directories without a scan of all.
    """

    __slots__ = ("_by_path", "_by_top")

    def __init__(self) -> None:
        self._by_path: dict[str, Folder] = {}
        self._by_top: dict[str, dict[str, Folder]] = {}

    def get_folder(self, path: str) -> Folder | None:
        """The directory of that path."""
        return self._by_path.get(path)

    def add_folder(self, folder: Folder) -> None:
        """Register a directory under its path."""
        self._by_path[folder.path] = folder
        self._by_top.setdefault(_first_component(folder.path), {})[folder.path] = folder

    def remove_folder(self, folder: Folder) -> None:
        """Remove a directory, unless another one is registered under its path."""
        if self._by_path.get(folder.path) is folder:
            del self._by_path[folder.path]
            group = self._by_top[_first_component(folder.path)]
            del group[folder.path]
            if not group:
                del self._by_top[_first_component(folder.path)]

    def folders_under(self, path: str) -> list[Folder]:
        """The directory of that path, and those inside it."""
        inside = path + "/"
        group = self._by_top.get(_first_component(path), {})
        return [each for each in group.values() if each.path == path or each.path.startswith(inside)]


def _first_component(path: str) -> str:
    return path.partition("/")[0]


class RealDisk:
    """A directory of the file system."""

    __slots__ = ("_admitted", "_folders", "_lanes", "_queue", "descriptors", "knows_residency", "name", "turns")

    def __init__(self, name: str, turns: CompletionQueue, descriptors: Descriptors | None = None) -> None:
        self.name = name
        self.turns = turns
        self.descriptors = Descriptors() if descriptors is None else descriptors
        self.knows_residency = hasattr(os, "RWF_NOWAIT")
        self._folders = Folders()
        self._lanes: dict[str, SerialExecutor] = {}
        self._admitted = 0
        self._queue: deque[Callable[[], None]] = deque()

    def _full_path(self, path: str) -> str:
        return f"{self.name}/{path}" if path else self.name

    # -- files ---------------------------------------------------------------------------------------------------

    def open(self, path: str, create: bool) -> RealFile:
        """Open a file; a second open of the same one shares the handle."""
        parent, _, name = path.rpartition("/")
        folder = self._folders.get_folder(parent)
        if folder is None:
            folder = Folder(parent)
        file = folder.files.get(name)
        if file is not None:
            file.open_again()
            return file
        try:
            fd, size = self._open_descriptor(path, os.O_CREAT if create else 0)
        except OSError as error:
            raise failure_of(error, path) from None
        file = RealFile(self, folder, name, fd, size)
        folder.files[name] = file
        self._folders.add_folder(folder)
        self.descriptors.on_opened(file)
        return file

    def reopen_file(self, file: RealFile) -> int:
        """A new descriptor for a parked handle. Raises Failure IO when another program has removed the file."""
        try:
            fd, _ = self._open_descriptor(file.path, 0)
        except FileNotFoundError:
            raise Failure(Kind.IO, f"another program has removed the file: {file.path}") from None
        except OSError as error:
            raise failure_of(error, file.path) from None
        self.descriptors.reopened += 1
        self.descriptors.on_opened(file)
        return fd

    def _open_descriptor(self, path: str, flags: int) -> tuple[int, int]:
        """Open a file; returns descriptor and size. Parks an idle file when the process has no descriptor left.

        Raises OSError.
        """
        while True:
            try:
                return _open_regular(self._full_path(path), os.O_RDWR | flags)
            except OSError as error:
                # Only EMFILE: parking a file of this process does not help when the whole system has no descriptor left
                # (ENFILE).
                if error.errno != errno.EMFILE or not self.descriptors.make_room():
                    raise

    def admit_sync(self, sync: Callable[[], None]) -> None:
        """Call `sync` now, or when another sync has ended (`end_sync`)."""
        if self._admitted < SYNCS:
            self._admitted += 1
            sync()
        else:
            self._queue.append(sync)

    def end_sync(self) -> None:
        """A sync has ended."""
        self._admitted -= 1
        if self._queue:
            self.admit_sync(self._queue.popleft())

    def forget_handle(self, folder: Folder, name: str, file: RealFile) -> None:
        """Remove a handle that was closed, or whose name was removed."""
        if folder.files.get(name) is not file:
            return
        del folder.files[name]
        if not folder.files:
            self._folders.remove_folder(folder)

    def _detach_file(self, path: str) -> None:
        """Prepare an open handle for the removal or replacement of its name: it keeps its descriptor open."""
        parent, _, name = path.rpartition("/")
        folder = self._folders.get_folder(parent)
        file = folder.files.get(name) if folder is not None else None
        if folder is not None and file is not None:
            file.keep_descriptor()
            self.forget_handle(folder, name, file)

    def read_small(self, path: str) -> bytes:
        """Read a whole file without a handle: a broker reads thousands of small files at its start."""
        try:
            fd, size = self._open_descriptor(path, 0)
            try:
                content = bytearray(size)
                del content[read_all(fd, 0, memoryview(content)) :]
            finally:
                os.close(fd)
        except OSError as error:
            raise failure_of(error, path) from None
        return bytes(content)

    # -- names ---------------------------------------------------------------------------------------------------

    def exists(self, path: str) -> bool:
        """Whether a file or directory of that name exists."""
        return self._stat_path(path) is not None

    def _stat_path(self, path: str) -> os.stat_result | None:
        try:
            return os.stat(self._full_path(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failure_of(error, path) from None

    def list(self, path: str) -> Sequence[str]:
        """Names in a directory, sorted; directories end in `/`. Entries that a broker never creates are left out and
        logged: pipes, sockets, devices, dangling links, names that are not UTF-8.
        """
        try:
            with os.scandir(self._full_path(path)) as entries:
                found = [(entry.name, _entry_suffix(entry)) for entry in entries]
        except OSError as error:
            raise failure_of(error, path) from None
        strangers = [name for name, suffix in found if suffix is None]
        for name in strangers[:STRANGERS_NAMED]:
            _logger.warning("%s: %a is not a broker's file: ignoring it", self._full_path(path), name)
        return sorted(name + suffix for name, suffix in found if suffix is not None)

    def make_dir(self, path: str) -> bool:
        """Create a directory; returns False if it exists already."""
        try:
            os.mkdir(self._full_path(path), 0o755)
        except FileExistsError:
            return False
        except OSError as error:
            raise failure_of(error, path) from None
        return True

    def rename(self, source: str, target: str) -> None:
        """Rename a file (replacing a file of the new name) or a directory."""
        self._detach_file(target)
        try:
            os.rename(self._full_path(source), self._full_path(target))
        except OSError as error:
            raise failure_of(error, source) from None
        self._move_handles(source, target)

    def _move_handles(self, source: str, target: str) -> None:
        for folder in self._folders.folders_under(source):
            self._folders.remove_folder(folder)
            folder.path = target + folder.path[len(source) :]
            self._folders.add_folder(folder)
        parent, _, name = source.rpartition("/")
        old = self._folders.get_folder(parent)
        file = old.files.get(name) if old is not None else None
        if old is None or file is None:
            return
        self.forget_handle(old, name, file)
        parent, _, name = target.rpartition("/")
        folder = self._folders.get_folder(parent) or Folder(parent)
        self._folders.add_folder(folder)
        folder.files[name] = file
        file.on_moved(folder, name)

    def modified_ms(self, path: str) -> int:
        """Wall-clock time of the last change in ms. Raises Failure NOT_DONE when the file is missing."""
        found = self._stat_path(path)
        if found is None:
            raise Failure(Kind.NOT_DONE, f"no such file: {path}")
        return found.st_mtime_ns // 1_000_000

    def free_bytes(self) -> int:
        """Bytes that a process without privileges may still write."""
        found = self._file_system()
        return found.f_bavail * found.f_frsize

    def total_bytes(self) -> int:
        """Size of the file system."""
        found = self._file_system()
        return found.f_blocks * found.f_frsize

    def _file_system(self) -> os.statvfs_result:
        try:
            return os.statvfs(self.name)
        except OSError as error:
            raise failure_of(error, self.name) from None

    # -- durability of names -------------------------------------------------------------------------------------

    def sync_dir(self, path: str, done: Done[None]) -> None:
        """Sync a directory in a thread."""
        self.turns.run_in_thread(lambda: _fsync_path(self._full_path(path)), done)

    def sync_now(self, path: str) -> None:
        """Sync one file or directory, waiting for it."""
        try:
            _fsync_path(self._full_path(path))
        except OSError as error:
            raise failure_of(error, path) from None

    def sync_all(self, done: Done[bool]) -> None:
        """Sync the file system that holds the directory, in a thread."""
        self.turns.run_in_thread(lambda: _sync_file_system(self.name), done)

    def sync_all_now(self) -> bool:
        """Sync the file system that holds the directory, waiting for it."""
        try:
            return _sync_file_system(self.name)
        except OSError as error:
            raise failure_of(error, self.name) from None

    def replace_file(self, path: str, data: bytes, done: Done[None]) -> None:
        """Write a checkpoint in a thread: write a temporary file, sync it, rename it over the old one, sync the
        directory."""
        try:
            self._detach_file(path)
        except Failure as failure:
            self.turns.run_soon(done, failure.as_value())
            return
        # One writer per path: two threads would write the same temporary file, and the older checkpoint could be
        # renamed last.
        lane = self._lanes.setdefault(path, SerialExecutor(self.turns))

        def finished(outcome: Failure | None) -> None:
            if lane.is_idle:
                self._lanes.pop(path, None)
            done(outcome)

        lane.submit_work(lambda: _replace_path(self._full_path(path), data), finished)

    def replace_now(self, path: str, data: bytes) -> None:
        """Write a checkpoint, waiting for it and for earlier ones of the same name."""
        lane = self._lanes.get(path)
        if lane is not None:
            # An earlier checkpoint that still waits for its thread would otherwise replace this newer one.
            lane.finish_all()
        self._detach_file(path)
        try:
            _replace_path(self._full_path(path), data)
        except OSError as error:
            raise failure_of(error, path) from None

    # -- removing ------------------------------------------------------------------------------------------------

    def unlink(self, path: str, done: Done[None]) -> None:
        """Remove a file, or a directory with its content.

        The name of a file is removed at once, so that a new file may take it. Its blocks are freed when a thread closes
        the last descriptor, because that can take long.
        """
        try:
            release = self._remove_name(path)
        except Failure as failure:
            self.turns.run_soon(done, failure.as_value())
            return
        except OSError as error:
            self.turns.run_soon(done, failure_of(error, path))
            return
        self.turns.run_in_thread(release, done)

    def _remove_name(self, path: str) -> Callable[[], None]:
        full = self._full_path(path)
        if stat.S_ISDIR(os.lstat(full).st_mode):
            for folder in self._folders.folders_under(path):
                for name in list(folder.files):
                    self._detach_file(f"{folder.path}/{name}")
            return lambda: _remove_tree(full)
        self._detach_file(path)
        # This descriptor keeps the blocks allocated after the unlink. The thread that closes it frees them, and not the
        # loop.
        fd = os.open(full, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            os.unlink(full)
        except OSError:
            os.close(fd)
            raise
        return lambda: os.close(fd)

    def unlink_now(self, path: str) -> None:
        """Remove a small file, waiting for it; does nothing if it is missing."""
        self._detach_file(path)
        try:
            os.unlink(self._full_path(path))
        except FileNotFoundError:
            return
        except OSError as error:
            raise failure_of(error, path) from None

    # -- the page cache ------------------------------------------------------------------------------------------

    def warm_regions(self, regions: Sequence[Region], done: Done[None]) -> None:
        """Read the regions in a thread, so that they are in the page cache when they are sent."""
        pinned: list[RealFile] = []
        spans: list[tuple[int, int, int]] = []

        def finished(outcome: Failure | None) -> None:
            for file in pinned:
                file.unpin_descriptor()
            done(outcome)

        try:
            for region in regions:
                file = region.file
                assert isinstance(file, RealFile), "a region of another shell"
                spans.append((file.pin_descriptor(), region.pos, region.size))
                pinned.append(file)
        except Failure as failure:
            self.turns.run_soon(finished, failure.as_value())
            return
        self.turns.run_in_thread(lambda: _read_spans(spans), finished)


def _open_regular(path: str, flags: int) -> tuple[int, int]:
    """Open a file; returns descriptor and size. Does not wait for the other end of a pipe. Raises OSError, also for
    an entry that is not a regular file."""
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
    except OSError:
        os.close(fd)
        raise
    return fd, found.st_size


def _entry_suffix(entry: os.DirEntry[str]) -> str | None:
    """The suffix of its name in a list: `/` for a directory; None for an entry that a broker never creates."""
    try:
        entry.name.encode()
        return "/" if entry.is_dir() else "" if entry.is_file() else None
    except (OSError, UnicodeEncodeError):
        return None


def _fsync_path(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync_file_system(path: str) -> bool:
    """Sync a file system; returns False where the system cannot (`syncfs` is Linux's). Raises OSError."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None) if sys.platform == "linux" else None
    if syncfs is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not syncfs(fd):
            return True
        number = ctypes.get_errno()
        # An old kernel or a sandbox: the caller syncs file by file.
        if number == errno.ENOSYS:
            return False
        raise OSError(number, os.strerror(number), path)
    finally:
        os.close(fd)


def _replace_path(path: str, data: bytes) -> None:
    temporary = path + ".tmp"
    fd = _open_temporary(temporary)
    try:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    # Content, rename, directory, in this order. A rename before the fsync of the content may survive a crash without
    # it, and leave an empty checkpoint; without the last step a crash may bring the old checkpoint back.
    _fsync_path(os.path.dirname(path))


def _open_temporary(path: str) -> int:
    """Create or empty a file; a link or a pipe of that name is replaced, never followed or waited for."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    try:
        return _open_regular(path, flags)[0]
    except OSError:
        os.unlink(path)
        return _open_regular(path, flags | os.O_EXCL)[0]


def _remove_tree(path: str) -> None:
    with os.scandir(path) as entries:
        found = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for inside, is_dir in found:
        if is_dir:
            _remove_tree(inside)
        else:
            os.unlink(inside)
    os.rmdir(path)


def _read_spans(spans: Sequence[tuple[int, int, int]]) -> None:
    scratch = memoryview(bytearray(WARM_STEP))
    for fd, start, size in spans:
        warmed = 0
        while warmed < size:
            count = os.preadv(fd, (scratch[: min(WARM_STEP, size - warmed)],), start + warmed)
            if count == 0:
                break
            warmed += count
