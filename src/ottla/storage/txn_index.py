"""The aborted transactions of a segment.

Zone: deterministic. Entries and their file; when a transaction ends is the producer state's matter.

    34 bytes per entry:
    | version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64 |

The file exists only once there is an entry. Last offsets rise from entry to entry.
"""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from struct import Struct
from typing import Final, NamedTuple

from ottla.record.crc import crc32c
from ottla.seams import Disk, Done, File

_ENTRY: Final = Struct(">hqqqq")
VERSION: Final = 0
_last_offset: Final = attrgetter("last_offset")


class AbortedTransaction(NamedTuple):
    """One aborted transaction: its producer's records from first to last offset are not to be seen."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the abort marker."""
    last_stable_offset: int
    """The partition's LSO once the marker was written: no later entry concerns records below it."""


class Sum(NamedTuple):
    """What a file was."""

    size: int
    """In bytes."""
    crc: int
    """CRC-32C of all of it."""


class TxnIndex:
    """A segment's entries, in memory, and the file behind them."""

    __slots__ = ("_disk", "_file", "_written", "dirty", "entries", "path", "sane")

    def __init__(self, disk: Disk, path: str) -> None:
        """Open what is there; nothing is created before the first entry. Raises Failure."""
        self._disk = disk
        self.path = path
        self._file: File | None = None
        self.entries: list[AbortedTransaction] = []
        self._written = 0
        self.dirty = False
        self.sane = True
        if disk.exists(path):
            self._load()

    def _load(self) -> None:
        file = self._file = self._disk.open(self.path, create=False)
        content = bytearray(file.size)
        got = file.read_now(0, memoryview(content)) if content else 0
        whole = got - got % _ENTRY.size
        self.sane = whole == len(content)
        last = -1
        for version, *fields in _ENTRY.iter_unpack(bytes(content[:whole])):
            entry = AbortedTransaction(*fields)
            if version != VERSION or entry.last_offset <= last or entry.first_offset > entry.last_offset:
                self.sane = False
                break
            self.entries.append(entry)
            last = entry.last_offset
        self._written = len(self.entries)

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry whose last offset is above all others; it reaches the file with `write_out`."""
        assert not self.entries or entry.last_offset > self.entries[-1].last_offset, "markers come in offset order"
        self.entries.append(entry)
        self.dirty = True

    def write_out(self) -> None:
        """Bring new entries to the file. Raises Failure; they are kept for the next time."""
        waiting = self.entries[self._written :]
        if not waiting:
            return
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        self._file.append((b"".join(_ENTRY.pack(VERSION, *entry) for entry in waiting),))
        self._written = len(self.entries)

    @property
    def emptied(self) -> bool:
        """Whether there is a file with nothing in it: a cut leaves such a one, and so does damage."""
        return self._file is not None and not self.entries

    @property
    def sum(self) -> Sum | None:
        """Of the file, once all entries are in it; None where there is none. Only of an index that is sane."""
        if self._file is None and not self.entries:
            return None
        content = b"".join(_ENTRY.pack(VERSION, *entry) for entry in self.entries)
        return Sum(len(content), crc32c(content))

    def collect(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions with records in [start, end), and whether later segments need not be asked."""
        found: list[AbortedTransaction] = []
        entries = self.entries
        for slot in range(bisect_left(entries, start, key=_last_offset), len(entries)):
            entry = entries[slot]
            if entry.first_offset < end:
                found.append(entry)
            if entry.last_stable_offset >= end:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose marker lies at or above `offset`."""
        kept = [entry for entry in self.entries if entry.last_offset < offset]
        if len(kept) == len(self.entries) and self.sane:
            return
        self.entries = kept
        self._written = min(self._written, len(kept))
        self.dirty = self.sane = True
        if self._file is not None:
            self._file.truncate(self._written * _ENTRY.size)

    def sync(self, done: Done[int]) -> None:
        """Make what was written out durable; only called when there is a file."""
        assert self._file is not None, "nothing was ever written"
        self.dirty = False
        self._file.sync(done)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
