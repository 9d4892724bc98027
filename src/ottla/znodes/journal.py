"""The journal of the embedded metadata store: transactions in a log, the whole tree in snapshots.

Zone: deterministic. Files of `__znodes-0/` live here: `<first zxid>.log` and `<next zxid>.snapshot`, 20 digits each.
Nothing is told to anyone here; when a transaction counts is the business of `store`.

A new log begins only after the one before is wholly on the disk, so only the last log can have a torn tail, and its
end is cut at the start. The two newest snapshots stay, with the logs that the older one needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from ottla.seams import Disk, Failure, File, Kind
from ottla.znodes.records import CorruptStore, decode_snapshot, encode_snapshot, transactions_in
from ottla.znodes.tree import Tree

logger = logging.getLogger(__name__)

DIRECTORY: Final = "__znodes-0"
"""Looks like a partition of an internal topic, as Kafka's own metadata log does; the log manager leaves it alone."""
SNAPSHOT_BYTES: Final = 4 * 1024 * 1024
"""Bytes of log after which a snapshot is worth its cost; at least twice the last snapshot's size."""
_KEPT_SNAPSHOTS: Final = 2


def _do_nothing(_: object) -> None:
    """For deletions that nobody waits for: what is left is deleted after the next snapshot."""


def check_files(contents: Mapping[str, bytes]) -> Iterator[tuple[str, str, bool]]:
    """What is wrong with the files of a journal, by their names: name, what, and whether a start puts it right."""
    logs = sorted(int(name[:20]) for name in contents if name[20:] == ".log" and name[:20].isdecimal())
    for name, content in sorted(contents.items()):
        if name[20:] == ".snapshot" and name[:20].isdecimal():
            try:
                decode_snapshot(memoryview(content))
            except CorruptStore as reason:
                yield name, str(reason), False
    for first in logs:
        good = max((end for _, end in transactions_in(memoryview(contents[f"{first:020d}.log"]), first)), default=0)
        size = len(contents[f"{first:020d}.log"])
        if good < size:
            text = f"byte {good}: {size - good} bytes are no whole transactions"
            yield f"{first:020d}.log", text, first == logs[-1]


class Journal:
    """The files of one metadata store."""

    def __init__(self, disk: Disk, snapshot_bytes: int = SNAPSHOT_BYTES) -> None:
        self._disk = disk
        self._snapshot_bytes = snapshot_bytes
        self._snapshot_at = snapshot_bytes
        self._writing_snapshot = False
        self._file: File | None = None

    @property
    def file(self) -> File:
        """The log that takes appends."""
        assert self._file is not None, "the journal is not loaded"
        return self._file

    @property
    def wants_snapshot(self) -> bool:
        """Whether enough was written since the last one."""
        return self.file.size >= self._snapshot_at and not self._writing_snapshot

    # -- at the start ----------------------------------------------------------------------------------------------

    def load(self) -> tuple[Tree, int]:
        """Read everything, blocking: the tree and the next zxid. Raises CorruptStore, or Failure of the disk."""
        if not self._disk.exists(DIRECTORY):
            self._disk.make_dir(DIRECTORY)
            self._disk.sync_now("")
        tree, zxid = self._newest_snapshot()
        logs = self._numbers(".log")
        needed = _needed(logs, zxid)
        if logs and not needed:
            raise CorruptStore(f"{DIRECTORY} has no log from zxid {zxid} on; restore the directory from a copy")
        for first in needed:
            zxid = self._replay(tree, zxid, first, is_last=first == needed[-1])
        if not needed:
            self._file = self._disk.open(_name(zxid, ".log"), create=True)
            self._disk.sync_now(DIRECTORY)
        return tree, zxid

    def _newest_snapshot(self) -> tuple[Tree, int]:
        """The newest snapshot that can be read, or an empty tree when there is none at all."""
        numbers = self._numbers(".snapshot")
        for number in reversed(numbers):
            try:
                file = self._disk.open(_name(number, ".snapshot"), create=False)
                content = self._content(file)
                file.close()
                self._snapshot_written(len(content))
                return decode_snapshot(memoryview(content))
            except CorruptStore as reason:
                logger.warning("%s: %s", _name(number, ".snapshot"), reason)
        if numbers:
            raise CorruptStore(f"no snapshot in {DIRECTORY} can be read; restore the directory from a copy")
        return Tree(), 1

    def _content(self, file: File) -> bytearray:
        content = bytearray(file.size)
        with memoryview(content) as view:
            got = file.read_now(0, view)
        return content[:got]

    def _replay(self, tree: Tree, zxid: int, first: int, is_last: bool) -> int:
        """Apply the transactions of one log that are not in the tree yet; the next zxid after it."""
        file = self._disk.open(_name(first, ".log"), create=False)
        good = 0
        for transaction, end in transactions_in(memoryview(self._content(file)), first):
            if transaction.zxid >= zxid:
                tree.apply(transaction.changes, transaction.zxid, transaction.wall_ms)
                zxid = transaction.zxid + len(transaction.changes)
            good = end
        if not is_last:
            if good != file.size:
                raise CorruptStore(f"{_name(first, '.log')} is damaged at byte {good}; restore it from a copy")
            file.close()
            return zxid
        self._cut_tail(file, first, good)
        self._file = file
        return zxid

    def _cut_tail(self, file: File, first: int, good: int) -> None:
        if good < file.size:
            logger.warning(
                "%s: cut at byte %d, %d bytes after it were never confirmed",
                _name(first, ".log"),
                good,
                file.size - good,
            )
            file.truncate(good)
            self._disk.sync_now(_name(first, ".log"))

    def _numbers(self, suffix: str) -> list[int]:
        names = self._disk.list(DIRECTORY)
        return sorted(int(name[:20]) for name in names if name[20:] == suffix and name[:20].isdecimal())

    # -- while it runs ---------------------------------------------------------------------------------------------

    def roll(self, next_zxid: int, done: Callable[[Failure | None], None]) -> None:
        """Begin a new log; nothing may be appended before `done`, and the old log is wholly synced already.

        `done` gets a Failure when the device failed. Without room for a new file the old log simply goes on.
        """
        old = self.file
        assert old.durable == old.size, "a log is followed by another one before it is on the disk"
        path = _name(next_zxid, ".log")
        try:
            self._file = self._disk.open(path, create=True)
        except Failure as failure:
            logger.warning("%s cannot be created, the log before it goes on: %s", path, failure)
            self._snapshot_at = old.size + self._snapshot_bytes
            self._disk.unlink_now(path)
            done(failure.as_value() if failure.kind is Kind.IO else None)
            return
        old.close()
        self._disk.sync_dir(DIRECTORY, lambda outcome: done(outcome if isinstance(outcome, Failure) else None))

    def write_snapshot(self, tree: Tree, next_zxid: int) -> None:
        """Write the tree as it is now, and drop what is no longer needed once that is on the disk."""
        content = encode_snapshot(tree, next_zxid)
        self._writing_snapshot = True

        def written(outcome: Failure | None) -> None:
            self._writing_snapshot = False
            if isinstance(outcome, Failure):
                logger.warning("no snapshot of the metadata store: %s", outcome)
                return
            self._snapshot_written(len(content))
            self._drop_old()

        self._disk.replace(_name(next_zxid, ".snapshot"), content, written)

    def _snapshot_written(self, size: int) -> None:
        self._snapshot_at = max(self._snapshot_bytes, 2 * size)

    def _drop_old(self) -> None:
        for name in self._unneeded():
            self._disk.unlink(f"{DIRECTORY}/{name}", _do_nothing)

    def _unneeded(self) -> Iterator[str]:
        snapshots = self._numbers(".snapshot")
        if len(snapshots) < _KEPT_SNAPSHOTS:
            return
        oldest = snapshots[-_KEPT_SNAPSHOTS]
        for number in snapshots[:-_KEPT_SNAPSHOTS]:
            yield f"{number:020d}.snapshot"
        for number in self._numbers(".log"):
            if number < _needed(self._numbers(".log"), oldest)[0]:
                yield f"{number:020d}.log"

    def close(self) -> None:
        """Give the file back."""
        self.file.close()


def _needed(logs: list[int], zxid: int) -> list[int]:
    """The logs that can hold transactions from `zxid` on: the last one that begins at or before it, and all later."""
    before = [first for first in logs if first <= zxid]
    return [first for first in logs if first >= before[-1]] if before else []


def _name(number: int, suffix: str) -> str:
    return f"{DIRECTORY}/{number:020d}{suffix}"
