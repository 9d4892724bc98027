"""The aborted transactions of a segment.

Zone: deterministic. Entries and their file; the producer state decides when a transaction has ended.

    34 bytes per entry:
    | version i16 = 0 | producer id i64 | first offset i64 | last offset i64 | last stable offset i64 |

The file exists only once there is an entry. Last offsets rise from entry to entry.
"""

from __future__ import annotations

from bisect import bisect_left
from struct import Struct
from typing import Final, NamedTuple

from ottla.record.crc import crc32c
from ottla.seams import Disk, Done, File

_ENTRY: Final = Struct(">hqqqq")
VERSION: Final = 0
_LAST_OFFSET: Final = Struct(">q")
_LAST_OFFSET_POS: Final = 18


class AbortedTransaction(NamedTuple):
    """One aborted transaction: read_committed consumers skip its producer's records from first to last offset."""

    producer_id: int
    first_offset: int
    last_offset: int
    """Offset of the abort marker."""
    last_stable_offset: int
    """The partition's LSO after the marker was written: no later entry concerns records below it."""


class IndexChecksum(NamedTuple):
    """Size and checksum of a finished index file."""

    size: int
    """In bytes."""
    crc: int
    """CRC-32C of all of it."""


class TxnIndex:
    """A segment's entries, in memory in the format of the file, and the file."""

    __slots__ = ("_content", "_disk", "_file", "_written", "dirty", "path", "sane")

    def __init__(self, disk: Disk, path: str) -> None:
        """Open an existing file; none is created before the first entry. Raises Failure."""
        self._disk = disk
        self.path = path
        self._file: File | None = None
        self._content = bytearray()
        self._written = 0
        """Bytes of it that are in the file."""
        self.dirty = False
        self.sane = True
        if disk.exists(path):
            self._load_entries()

    def _load_entries(self) -> None:
        file = self._file = self._disk.open(self.path, create=False)
        content = self._content = bytearray(file.size)
        got = file.read_now(0, memoryview(content)) if content else 0
        right = _valid_size(memoryview(content)[: got - got % _ENTRY.size])
        self.sane = right == len(content)
        del content[right:]
        self._written = right

    def __len__(self) -> int:
        return len(self._content) // _ENTRY.size

    @property
    def entries(self) -> list[AbortedTransaction]:
        """All of them."""
        return [self._entry_at_slot(slot) for slot in range(len(self))]

    def _entry_at_slot(self, slot: int) -> AbortedTransaction:
        return AbortedTransaction(*_ENTRY.unpack_from(self._content, slot * _ENTRY.size)[1:])

    def _last_offset(self, slot: int) -> int:
        offset: int = _LAST_OFFSET.unpack_from(self._content, slot * _ENTRY.size + _LAST_OFFSET_POS)[0]
        return offset

    def _first_from(self, offset: int) -> int:
        """The slot of the first entry whose marker is at or above `offset`."""
        return bisect_left(range(len(self)), offset, key=self._last_offset)

    def append(self, entry: AbortedTransaction) -> None:
        """Add an entry whose last offset is above all others; it reaches the file with `write_out`."""
        assert not self._content or entry.last_offset > self._last_offset(len(self) - 1), "markers come in offset order"
        self._content += _ENTRY.pack(VERSION, *entry)
        self.dirty = True

    def write_out(self) -> None:
        """Write new entries to the file. Raises Failure; then they are kept for the next time."""
        if self._written == len(self._content):
            return
        if self._file is None:
            self._file = self._disk.open(self.path, create=True)
        self._file.append((bytes(memoryview(self._content)[self._written :]),))
        self._written = len(self._content)

    @property
    def is_emptied(self) -> bool:
        """Whether there is an empty file, as a cut leaves it, or damage."""
        return self._file is not None and not self._content

    @property
    def file_checksum(self) -> IndexChecksum | None:
        """Size and checksum of the file once all entries are in it; None without a file. Only for a sane index."""
        if self._file is None and not self._content:
            return None
        return IndexChecksum(len(self._content), crc32c(self._content))

    def reaches_offset(self, offset: int) -> bool:
        """Whether there is an entry with its marker at or above `offset`."""
        content = self._content
        return (
            bool(content)
            and _LAST_OFFSET.unpack_from(content, len(content) - _ENTRY.size + _LAST_OFFSET_POS)[0] >= offset
        )

    def collect_aborted(self, start: int, end: int) -> tuple[list[AbortedTransaction], bool]:
        """Transactions with records in [start, end), and whether later segments cannot have more of them."""
        found: list[AbortedTransaction] = []
        for slot in range(self._first_from(start), len(self)):
            entry = self._entry_at_slot(slot)
            if entry.first_offset < end:
                found.append(entry)
            # Below that offset no transaction was open when this marker was written: later markers are of later
            # records.
            if entry.last_stable_offset >= end:
                return found, True
        return found, False

    def truncate_to(self, offset: int) -> None:
        """Drop the entries whose marker lies at or above `offset`."""
        kept = self._first_from(offset) * _ENTRY.size
        if kept == len(self._content) and self.sane:
            return
        del self._content[kept:]
        self._written = min(self._written, kept)
        self.dirty = self.sane = True
        if self._file is not None:
            self._file.truncate(self._written)

    def sync_file(self, done: Done[int]) -> None:
        """Make the written entries durable; only called when there is a file."""
        assert self._file is not None, "nothing was ever written"
        self.dirty = False
        self._file.sync(done)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def _valid_size(content: memoryview) -> int:
    """The size of the valid entries at the beginning, in bytes: up to the first entry that is impossible."""
    last, right = -1, 0
    for version, _, first_offset, last_offset, _ in _ENTRY.iter_unpack(content):
        if version != VERSION or last_offset <= last or first_offset > last_offset:
            break
        last = last_offset
        right += _ENTRY.size
    return right
