"""The journal of the embedded metadata store: a log of transactions, and snapshots of the whole tree.

Zone: deterministic. Manages the files of `__znodes-0/`: `<first zxid>.log` and `<next zxid>.snapshot`, 20 digits each.
`store` decides when a transaction is durable, and informs the clients.

A new log begins only after the whole log before is synced. So only the last log can have a torn tail, which is cut at
the start. The two newest snapshots are kept, with the logs that the older one needs.
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
"""Named like a partition of an internal topic, as Kafka's metadata log is. The log manager ignores it."""
SNAPSHOT_BYTES: Final = 4 * 1024 * 1024
"""Minimum size of the log for a new snapshot; the log must also have twice the size of the last snapshot."""
_KEPT_SNAPSHOTS: Final = 2


def _do_nothing(_: object) -> None:
    """Ignore the outcome of a deletion: files that are left are deleted after the next snapshot."""


def check_files(contents: Mapping[str, bytes]) -> Iterator[tuple[str, str, bool]]:
    """Check the files of a journal by their names. Yields name, defect, and whether a start repairs it."""
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
            text = f"byte {good}: {size - good} bytes are not complete transactions"
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
        """The current log, which receives appends."""
        assert self._file is not None, "the journal is not loaded"
        return self._file

    @property
    def wants_snapshot(self) -> bool:
        """Whether the log is large enough for a new snapshot."""
        return self.file.size >= self._snapshot_at and not self._writing_snapshot

    # -- loading ---------------------------------------------------------------------------------------------------

    def load_tree(self) -> tuple[Tree, int]:
        """Read all files, blocking. Returns the tree and the next zxid. Raises CorruptStore, or Failure of the disk.

        1. The newest readable snapshot, or an empty tree.
        2. All logs that can hold later transactions, in order. Only the last one may end within a transaction.
        3. A new log, if there is none to append to.
        """
        if not self._disk.exists(DIRECTORY):
            self._disk.make_dir(DIRECTORY)
            self._disk.sync_now("")
        tree, zxid = self._newest_snapshot()
        logs = self._file_numbers(".log")
        needed = _needed_logs(logs, zxid)
        # All logs begin after the snapshot: transactions in between are missing.
        if logs and not needed:
            raise CorruptStore(f"{DIRECTORY} has no log from zxid {zxid} on; restore the directory from a backup")
        for first in needed:
            zxid = self._replay_log(tree, zxid, first, is_last=first == needed[-1])
        if not needed:
            self._file = self._disk.open(_file_path(zxid, ".log"), create=True)
            self._disk.sync_now(DIRECTORY)
        return tree, zxid

    def _newest_snapshot(self) -> tuple[Tree, int]:
        """The newest readable snapshot, or an empty tree if there is none. Raises CorruptStore if all are damaged."""
        numbers = self._file_numbers(".snapshot")
        for number in reversed(numbers):
            try:
                file = self._disk.open(_file_path(number, ".snapshot"), create=False)
                content = self._read_content(file)
                file.close()
                self._on_snapshot_written(len(content))
                return decode_snapshot(memoryview(content))
            except CorruptStore as reason:
                logger.warning("metadata store: ignoring %s: %s", _file_path(number, ".snapshot"), reason)
        # With an empty tree the cluster would begin again from nothing, while a backup may still have its state.
        if numbers:
            raise CorruptStore(f"no snapshot in {DIRECTORY} can be read; restore the directory from a backup")
        return Tree(), 1

    def _read_content(self, file: File) -> bytearray:
        content = bytearray(file.size)
        with memoryview(content) as view:
            got = file.read_now(0, view)
        return content[:got]

    def _replay_log(self, tree: Tree, zxid: int, first: int, is_last: bool) -> int:
        """Apply the transactions of one log that the tree lacks. Returns the next zxid."""
        file = self._disk.open(_file_path(first, ".log"), create=False)
        good = 0
        for transaction, end in transactions_in(memoryview(self._read_content(file)), first):
            if transaction.zxid >= zxid:
                tree.apply(transaction.changes, transaction.zxid, transaction.wall_ms)
                zxid = transaction.zxid + len(transaction.changes)
            good = end
        if not is_last:
            # A log before the last one was synced as a whole, so damage in it is not a torn tail.
            if good != file.size:
                raise CorruptStore(f"{_file_path(first, '.log')} is damaged at byte {good}; restore it from a backup")
            file.close()
            return zxid
        self._cut_tail(file, first, good)
        self._file = file
        return zxid

    def _cut_tail(self, file: File, first: int, good: int) -> None:
        if good < file.size:
            logger.warning(
                "metadata store: cut %s at byte %d; the %d bytes after it were never confirmed",
                _file_path(first, ".log"),
                good,
                file.size - good,
            )
            file.truncate(good)
            self._disk.sync_now(_file_path(first, ".log"))

    def _file_numbers(self, suffix: str) -> list[int]:
        names = self._disk.list(DIRECTORY)
        return sorted(int(name[:20]) for name in names if name[20:] == suffix and name[:20].isdecimal())

    # -- writing ---------------------------------------------------------------------------------------------------

    def begin_log(self, next_zxid: int, done: Callable[[Failure | None], None]) -> None:
        """Begin a new log. Requires that the old log is synced, and that nothing is appended before `done`.

        `done` receives a Failure if the device failed. If the disk is full the old log stays in use.
        """
        old = self.file
        assert old.durable == old.size, "a new log begins before the old one is synced"
        path = _file_path(next_zxid, ".log")
        try:
            self._file = self._disk.open(path, create=True)
        except Failure as failure:
            logger.warning("metadata store: could not create %s: %s; the old log stays in use", path, failure)
            # The next attempt waits until the log has grown as much again.
            self._snapshot_at = old.size + self._snapshot_bytes
            self._disk.unlink_now(path)
            done(failure.as_value() if failure.kind is Kind.IO else None)
            return
        # Nothing is appended before the name of the new log is durable: a power cut would take confirmed changes with
        # it.
        old.close()
        self._disk.sync_dir(DIRECTORY, lambda outcome: done(outcome if isinstance(outcome, Failure) else None))

    def write_snapshot(self, tree: Tree, next_zxid: int) -> None:
        """Write a snapshot of the tree. Deletes the files that are no longer needed once it is on the disk."""
        content = encode_snapshot(tree, next_zxid)
        self._writing_snapshot = True

        def written(outcome: Failure | None) -> None:
            self._writing_snapshot = False
            if isinstance(outcome, Failure):
                logger.warning(
                    "metadata store: could not write a snapshot: %s; retrying when the log has grown", outcome
                )
                return
            self._on_snapshot_written(len(content))
            self._drop_old()

        self._disk.replace_file(_file_path(next_zxid, ".snapshot"), content, written)

    def _on_snapshot_written(self, size: int) -> None:
        self._snapshot_at = max(self._snapshot_bytes, 2 * size)

    def _drop_old(self) -> None:
        for name in self._unneeded_files():
            self._disk.unlink(f"{DIRECTORY}/{name}", _do_nothing)

    def _unneeded_files(self) -> Iterator[str]:
        snapshots = self._file_numbers(".snapshot")
        if len(snapshots) < _KEPT_SNAPSHOTS:
            return
        oldest = snapshots[-_KEPT_SNAPSHOTS]
        for number in snapshots[:-_KEPT_SNAPSHOTS]:
            yield f"{number:020d}.snapshot"
        for number in self._file_numbers(".log"):
            # Logs that the older of the two snapshots needs stay, in case the newer one is damaged.
            if number < _needed_logs(self._file_numbers(".log"), oldest)[0]:
                yield f"{number:020d}.log"

    def close_log(self) -> None:
        """Close the current log."""
        self.file.close()


def _needed_logs(logs: list[int], zxid: int) -> list[int]:
    """The logs that can hold transactions from `zxid` on: the last that begins at or before it, and all later ones."""
    before = [first for first in logs if first <= zxid]
    return [first for first in logs if first >= before[-1]] if before else []


def _file_path(number: int, suffix: str) -> str:
    return f"{DIRECTORY}/{number:020d}{suffix}"
