"""The drive under a log directory: its names, its space, and the effect of a power loss on them.

Zone: deterministic. Outlives the processes that use it (`disk.py` is the view of one process). Creations, renames and
unlinks are pending until the directory is synced. A power loss keeps or loses each pending operation as a whole (file
systems journal a rename as one operation). An operation that depends on names of a lost one is lost with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final

from ottla.seams import Failure, Kind
from ottla.sim.disks.inode import Inode, LossPattern
from ottla.sim.entropy import Stream

NO_LIMIT: Final = 1 << 50


class Directory:
    """Names in one directory: those that processes see, and those on the platter."""

    __slots__ = ("durable", "names", "pending")

    def __init__(self) -> None:
        self.names: dict[str, Entry] = {}
        self.durable: dict[str, Entry] = {}
        self.pending: dict[Operation, None] = {}
        """The operations that wait for a sync of this directory, the oldest first."""


Entry = Directory | Inode
Link = tuple[Directory, str, Entry]
"""A directory, a name in it, and the entry of that name."""


@dataclass(slots=True, eq=False)
class Operation:
    """A change of names that no directory sync has covered yet."""

    removed: tuple[Link, ...]
    added: tuple[Link, ...]
    waits_for: list[Directory]

    def note_sync(self, directory: Directory) -> None:
        """A sync of this directory has covered it."""
        if directory in self.waits_for:
            self.waits_for.remove(directory)
            del directory.pending[self]

    def commit_names(self) -> None:
        """Write it to the platter."""
        for directory, name, entry in self.removed:
            if directory.durable.get(name) is entry:
                del directory.durable[name]
        for directory, name, entry in self.added:
            directory.durable[name] = entry

    def touched_names(self) -> Iterator[tuple[int, str]]:
        """The names it touches, as keys."""
        for directory, name, _ in (*self.removed, *self.added):
            yield id(directory), name


class JournalLoss(Enum):
    """Which pending operations on names survive a power loss."""

    EACH = 1
    PREFIX = 2
    """An ordered journal: all operations up to a random one."""
    ALL = 3
    NONE = 4


class Drive:
    """One device with its file system."""

    def __init__(self, name: str, capacity: int = NO_LIMIT) -> None:
        self.name = name
        self.capacity = capacity
        self.root = Directory()
        self.journal: dict[Operation, None] = {}
        """The pending operations, the oldest first."""

    # ---- names ----

    def find_path(self, path: str) -> Entry | None:
        """The entry of the path; None when it does not exist."""
        entry: Entry | None = self.root
        for name in _path_parts(path):
            if not isinstance(entry, Directory):
                return None
            entry = entry.names.get(name)
        return entry

    def file_at(self, path: str) -> Inode:
        """The file of that path. Raises Failure NOT_DONE."""
        entry = self.find_path(path)
        if not isinstance(entry, Inode):
            raise Failure(Kind.NOT_DONE, f"no such file: {path}")
        return entry

    def directory_at(self, path: str) -> Directory:
        """The directory of that path. Raises Failure NOT_DONE."""
        entry = self.find_path(path)
        if not isinstance(entry, Directory):
            raise Failure(Kind.NOT_DONE, f"no such directory: {path}")
        return entry

    def _parent_of(self, path: str) -> tuple[Directory, str]:
        *above, name = _path_parts(path)
        return self.directory_at("/".join(above)), name

    def create_path(self, path: str, entry: Entry) -> None:
        """Put a new name into its directory, pending. Raises Failure NOT_DONE when the parent is missing."""
        parent, name = self._parent_of(path)
        parent.names[name] = entry
        self._add_operation((), ((parent, name, entry),), [parent])

    def rename_path(self, source: str, target: str) -> None:
        """Move a name, over an existing file if there is one; pending. Raises Failure NOT_DONE."""
        parent, name = self._parent_of(source)
        new_parent, new_name = self._parent_of(target)
        entry = parent.names.get(name)
        if entry is None:
            raise Failure(Kind.NOT_DONE, f"no such file or directory: {source}")
        present = new_parent.names.get(new_name)
        if isinstance(present, Directory) and present.names and present is not entry:
            raise Failure(Kind.NOT_DONE, f"directory is not empty: {target}")
        del parent.names[name]
        new_parent.names[new_name] = entry
        waits = [parent] if parent is new_parent else [parent, new_parent]
        self._add_operation(((parent, name, entry),), ((new_parent, new_name, entry),), waits)

    def unlink_path(self, path: str) -> None:
        """Remove a name, and for a directory its content, pending. A name that does not exist is ignored."""
        entry = self.find_path(path)
        if entry is None:
            return
        parent, name = self._parent_of(path)
        del parent.names[name]
        self._add_operation(((parent, name, entry),), (), [parent])

    def _add_operation(self, removed: tuple[Link, ...], added: tuple[Link, ...], waits_for: list[Directory]) -> None:
        operation = Operation(removed, added, waits_for)
        self.journal[operation] = None
        for directory in waits_for:
            directory.pending[operation] = None

    def pending_operations(self, directory: Directory) -> list[Operation]:
        """The operations that a sync of this directory would cover now."""
        return list(directory.pending)

    def sync_directory(self, directory: Directory, covered: list[Operation]) -> None:
        """A sync of this directory, submitted when `covered` were pending, is complete."""
        for operation in covered:
            operation.note_sync(directory)
        self._commit_covered(covered)

    # ---- contents ----

    def sync_names(self, covered: list[Operation]) -> None:
        """A sync of all directories, submitted when `covered` were pending, is complete."""
        for operation in covered:
            for directory in tuple(operation.waits_for):
                operation.note_sync(directory)
        self._commit_covered(covered)

    def _commit_covered(self, covered: list[Operation]) -> None:
        for operation in covered:
            if operation in self.journal and not operation.waits_for:
                operation.commit_names()
                del self.journal[operation]

    def walk_files(self, durable: bool = False) -> Iterator[tuple[str, Inode]]:
        """All files with their paths, sorted: those that processes see, or those on the platter."""
        yield from _walk_directory(self.root, "", durable)

    def used_bytes(self) -> int:
        """Space taken by the files that have names."""
        return sum(len(inode.data) for _, inode in self.walk_files())

    # ---- faults ----

    def on_process_gone(self) -> None:
        """All processes that used the drive died. Their writes stay in the page cache."""
        for _, inode in self.walk_files():
            inode.on_process_gone()
            inode.evict_lost()

    def power_loss(self, pages: LossPattern, names: JournalLoss, random: Stream) -> None:
        """Lose everything that is only in memory."""
        self._settle_names(names, random)
        for _, inode in self.walk_files():
            inode.power_loss(pages, random)

    def _settle_names(self, loss: JournalLoss, random: Stream) -> None:
        # An operation on a name that a lost operation touched is lost as well: without the creation there is no file to
        # rename. Kept ones are committed in order; then processes see what the platter has.
        journal, self.journal = self.journal, {}
        cut = random.between(0, len(journal))
        lost: dict[tuple[int, str], bool] = {}
        for position, operation in enumerate(journal):
            for directory in operation.waits_for:
                directory.pending.clear()
            kept = _is_kept(loss, position < cut, random) and not any(
                name in lost for name in operation.touched_names()
            )
            if kept:
                operation.commit_names()
            else:
                lost.update(dict.fromkeys(operation.touched_names(), True))
        _restore_names(self.root)


def _is_kept(loss: JournalLoss, before_cut: bool, random: Stream) -> bool:
    if loss is JournalLoss.ALL:
        return True
    if loss is JournalLoss.NONE:
        return False
    return before_cut if loss is JournalLoss.PREFIX else random.chance(0.5)


def _restore_names(directory: Directory) -> None:
    directory.names = dict(directory.durable)
    for entry in directory.names.values():
        if isinstance(entry, Directory):
            _restore_names(entry)


def _path_parts(path: str) -> list[str]:
    parts = [part for part in path.split("/") if part and part != "."]
    assert ".." not in parts, path
    return parts


def _walk_directory(directory: Directory, prefix: str, durable: bool) -> Iterator[tuple[str, Inode]]:
    names = directory.durable if durable else directory.names
    for name in sorted(names):
        entry = names[name]
        if isinstance(entry, Directory):
            yield from _walk_directory(entry, f"{prefix}{name}/", durable)
        else:
            yield prefix + name, entry
