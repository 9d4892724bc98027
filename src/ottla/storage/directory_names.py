"""The names of the directories of logs: renames when a log is moved or removed, and names that are used again.

Zone: deterministic. A log that leaves service keeps its files under another name for a while, so that its own name is
free for a new log. The checkpoints have entries by partition, not by directory: a new log must not inherit them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ottla.seams import Failure
from ottla.storage.layout import ROOT, delete_dir_name, stray_dir_name
from ottla.storage.log import Log
from ottla.storage.log_dir_context import LogDirContext
from ottla.storage.offset_checkpoints import OffsetCheckpoints
from ottla.types import TopicPartition

GHOSTS_KEPT: Final = 1000
"""Deleted partitions that are remembered until they are removed from the checkpoints."""


class DirectoryNames:
    """The directories of one log directory's logs, by name."""

    __slots__ = ("_deleted", "_home", "_offsets")

    def __init__(self, home: LogDirContext, offsets: OffsetCheckpoints) -> None:
        self._home = home
        self._offsets = offsets
        self._deleted: set[TopicPartition] = set()
        """Partitions that have no log here any more but may have entries in a checkpoint."""

    def note_deleted(self, tps: Iterable[TopicPartition]) -> None:
        """Remember partitions that have no log here, but entries in a checkpoint."""
        self._deleted.update(tps)

    def rename_directory(self, directory: str, target: str) -> None:
        """Rename a log's directory. Raises Failure."""
        try:
            self._home.disk.rename(directory, target)
        except Failure as failure:
            self._home.on_failed(failure.as_value())
            raise

    def set_aside(self, log: Log, done: Callable[[object], None]) -> None:
        """Rename its directory to `…-delete`, to be removed later; `done` when the name is durable. Raises Failure."""
        # Before the rename: a compaction pass that then misses its files ends as one of a closed log (CONFLICT).
        # Otherwise it would take the directory offline.
        log.cleaning.closed = True
        target = delete_dir_name(log.tp, self._random_suffix())
        self._leave_name(log, target, done)
        self._home.unlink_later(target, log.config.file_delete_delay_ms)

    def set_aside_as_stray(self, log: Log) -> str:
        """Rename the directory of another topic's log to `…-stray`, which is kept; returns the name. Raises Failure."""
        target = stray_dir_name(log.tp, self._random_suffix())
        self._leave_name(log, target, self._home.note_failure)
        return target

    def forget_deleted_log(self, tp: TopicPartition) -> None:
        """Before a log is created: remove an earlier log of the same name from the checkpoints. Raises Failure."""
        # Up to four blocking writes are the price of a creation after a deletion, so other creations skip them. A set
        # that has grown to its limit is emptied by the same writes.
        if tp in self._deleted or len(self._deleted) > GHOSTS_KEPT:
            self._offsets.forget_deleted_logs()
            self._deleted.clear()

    def _leave_name(self, log: Log, target: str, done: Callable[[object], None]) -> None:
        self.rename_directory(log.metadata.directory, target)
        self._deleted.add(log.tp)
        self._home.on_log_changed(log.tp)
        self._home.disk.sync_dir(ROOT, done)

    def _random_suffix(self) -> str:
        return self._home.entropy.random_bytes("deleted-log", 16).hex()
