"""The checkpoint file of a log's leader epochs, and when it is written.

Zone: deterministic. The batches of a log carry their leader epochs, and recovery reads all batches above the recovery
point. So a file that only lacks the newest epochs loses nothing, as long as they are written before the recovery point
passes their records: the flush waits for that (`write_jobs`). Until the next flush or stop the file is *due*: writing
it at the first append would cost two syncs per log, and one request can append to thousands of logs. A file that
contradicts its log is written at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable

from ottla.seams import Failure
from ottla.storage.checkpoints import format_epochs
from ottla.storage.indexes.leader_epochs import EpochEntry
from ottla.storage.layout import TEMPORARY
from ottla.storage.log_dir_context import CoalescingWriter, LogDirContext

Entries = tuple[EpochEntry, ...]


class EpochsFile:
    """The file of one log."""

    __slots__ = ("_content", "_due", "_file", "_home", "_path")

    def __init__(self, home: LogDirContext, path: Callable[[], str]) -> None:
        self._home = home
        self._path = path
        self._file = CoalescingWriter(home, path)
        self._content: Entries | None = ()
        """The content of the file once the write in progress has ended; None when it is not known."""
        self._due: Entries | None = None
        """The content that is due to be written; None when none is."""

    def let_go(self) -> None:
        """Drop all references to a log that was closed, and write nothing more."""
        path, self._due = self._path(), None
        self._path = lambda: path
        self._file.let_go()

    def take_stored(self, stored: Iterable[EpochEntry]) -> None:
        """Note the entries that were read from the file."""
        self._content = tuple(stored)

    def save_entries(self, entries: Entries) -> None:
        """Write the epochs to the file: with the next flush if the file only lags, else at once."""
        # Entries that were cut off must not stay in the file: they would be taken for those of later records.
        if self._content is not None and lags_behind(self._due or self._content, entries):
            self._due = entries
        else:
            self.write_entries(entries)

    def write_entries(self, entries: Entries) -> None:
        """Begin to write the epochs to the file."""
        self._content, self._due = entries, None
        self._file.write_soon(format_epochs(entries))
        self.when_idle(self._on_written)

    def write_entries_now(self, entries: Entries) -> None:
        """Write the epochs to the file, blocking. Raises Failure."""
        # Set before the write: if it raises, the content of the file is not known, and the entries are still due.
        self._content, self._due = None, entries
        self._file.write_now(format_epochs(entries))
        self._content, self._due = entries, None

    def write_due(self) -> bool:
        """Begin to write the file if it is due; returns whether it was."""
        if self._due is None:
            return False
        self.write_entries(self._due)
        return True

    def write_beside(self) -> bool:
        """Write a due file under a temporary name, unsynced. False: it is not due, or another write is in progress.

        A sync of the whole directory follows, then `rename_beside`, then another sync. Raises Failure.
        """
        if self._due is None or self._file.is_writing:
            return False
        beside = self._home.disk.open(self._path() + TEMPORARY, create=True)
        try:
            beside.truncate(0)
            beside.append((memoryview(format_epochs(self._due)),))
        finally:
            beside.close()
        return True

    def rename_beside(self) -> None:
        """Rename the temporary file to the name of the old one. Raises Failure."""
        self._home.disk.rename(self._path() + TEMPORARY, self._path())
        self._content, self._due = self._due, None

    @property
    def is_due(self) -> bool:
        """Whether the file has to be written."""
        return self._due is not None

    def write_jobs(self, begin: bool = True) -> list[Callable[[Callable[[object], None]], None]]:
        """The jobs that a flush waits for, so that the recovery point passes no record whose epoch is not in the file.

        Without `begin`, only a write in progress.
        """
        if begin:
            self.write_due()
        return [self.when_idle] if self._file.is_writing else []

    @property
    def is_writing(self) -> bool:
        """Whether a write is in progress."""
        return self._file.is_writing

    def when_idle(self, tell: Callable[[object], None]) -> None:
        """Call back with the outcome once no write is in progress; only allowed while busy."""
        self._file.when_idle(lambda _: tell(self._file.failure))

    def _on_written(self, outcome: object) -> None:
        """Make the content due again after a failed write: the next flush, stop or change retries it."""
        if isinstance(outcome, Failure) and self._due is None:
            self._content, self._due = None, self._content


def lags_behind(content: Entries, entries: Entries) -> bool:
    """Whether a file with `content` lacks only the newest entries, and has extra ones only below the log start."""
    if not entries:
        return not content
    start = entries[0].start_offset
    above = bisect_right(content, start, key=lambda entry: entry.start_offset)
    if above:
        content = (EpochEntry(content[above - 1].epoch, start), *content[above:])
    return entries[: len(content)] == content
