"""The two sparse indexes of a segment: offset → position, and timestamp → offset.

Zone: deterministic. Entries, search and their file; the segment decides when an entry is due.

    offset index, 8 bytes per entry:   | relative offset i32 | position i32 |
    time index, 12 bytes per entry:    | timestamp i64 | relative offset i32 |

Big-endian; offsets relative to the segment's base. The offset is that of the batch's *last* record, the position that
of its first byte (files of the 1.0 era hold the base offset instead: a look-up works for both, since it only ever
returns a place at or before the wanted batch).

The index of the active segment is kept in memory and written to its file in lots, a second later at the latest: after
a crash it is rebuilt from the log anyway, so a missing entry on disk costs nothing. The file holds only entries, so
that a tool can read it at any time; an entry is in it only when its batch is in the log. A sealed index is a read-only
view of its file. A file of Apache Kafka that was not closed cleanly ends in zeros up to its limit; they are ignored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from struct import Struct
from typing import Any, ClassVar, Final, NamedTuple, NoReturn

from ottla.seams import Disk, Done, File
from ottla.storage.errors import IndexFull, IndexOverflow, NotMonotonic
from ottla.types import NO_TIMESTAMP

Buffer = bytearray | memoryview
Unpack = Callable[[Buffer, int], tuple[Any, ...]]
"""`Struct.unpack_from` of a key."""

WARM_BYTES: Final = 8192
"""The tail that every look-up near the end of the log touches, and that the page cache therefore keeps."""
MAX_RELATIVE_OFFSET: Final = 2**31 - 1
LOT_BYTES: Final = 4096
"""Entries are written to the file in lots of this many bytes."""


def largest_at_most(unpack: Unpack, view: Buffer, entry: int, shift: int, count: int, target: int, warm: int) -> int:
    """The slot with the largest key ≤ `target`; -1 when there is none. A key lies `shift` bytes into its
    `entry`.

    Bisection over all slots would read pages that nothing else reads, and that are cold just when the index has grown
    by a page. So the last `warm` slots are tried first, and only they are bisected when the target is among them.
    """
    if count == 0:
        return -1
    low = max(0, count - 1 - warm)
    high = count - 1
    least = unpack(view, low * entry + shift)[0]
    if least > target:
        return -1 if low == 0 else _largest_below_warm(unpack, view, entry, shift, low, least, target)
    while low < high:
        middle = (low + high + 1) >> 1
        if unpack(view, middle * entry + shift)[0] > target:
            high = middle - 1
        else:
            low = middle
    return low


def _largest_below_warm(
    unpack: Unpack, view: Buffer, entry: int, shift: int, high: int, above: int, target: int
) -> int:
    """As `largest_at_most`, below the warm section, which begins at slot `high` with the key `above`.

    Entries are spread nearly evenly: linear interpolation guesses a slot, and steps that double from there find two
    slots between which to bisect. With evenly spread entries that reads five keys instead of fifteen.
    """
    low = 0
    least = unpack(view, shift)[0]
    if least > target:
        return -1
    guess = (target - least) * high // (above - least)
    # The guess is either too high or not: step down, or up, until the target is between `low` and `high`.
    step = 1
    if unpack(view, guess * entry + shift)[0] > target:
        high = guess
        while (low := max(0, high - step)) and unpack(view, low * entry + shift)[0] > target:
            high = low
            step += step
    else:
        low, end = guess, high
        while (high := min(end, low + step)) < end and unpack(view, high * entry + shift)[0] <= target:
            low = high
            step += step
    while high - low > 1:
        middle = (low + high) >> 1
        if unpack(view, middle * entry + shift)[0] > target:
            high = middle
        else:
            low = middle
    return low


class Index(ABC):
    """A file of fixed-size entries, sorted; the common part of both kinds."""

    __slots__ = (
        "_buffer",
        "_file",
        "_last",
        "_written",
        "base_offset",
        "dirty",
        "limit",
        "max_entries",
        "path",
        "size",
    )

    ENTRY: ClassVar[int]
    _last: int

    def __init__(self, disk: Disk, path: str, base_offset: int, limit: int, create: bool = False) -> None:
        """Open for reading only (limit 0), or for appending up to `limit` bytes, rounded down to whole entries.

        Raises Failure, NOT_DONE when the file is missing and not to be created.
        """
        self.path = path
        self.base_offset = base_offset
        self.max_entries = limit // self.ENTRY
        self._file: File = disk.open(path, create)
        self._buffer: bytearray | memoryview | None = None
        self.size = self._file.size - self._file.size % self.ENTRY
        """Bytes of the entries."""
        self.limit = self.max_entries * self.ENTRY
        """Bytes at which the next append is refused."""
        self._written = self.size
        self.dirty = False
        if limit:
            self._make_writable()
        else:
            self._trim_zeros()
        self._note_last()

    @abstractmethod
    def _note_last(self) -> None:
        """Remember the last entry, so that an append compares without reading it."""

    # -- the file ------------------------------------------------------------------------------------------------------

    def _make_writable(self) -> None:
        """Read the entries of the file into memory."""
        content = bytearray(self._file.size)
        if content:
            got = self._file.read_now(0, memoryview(content))
            del content[got - got % self.ENTRY :]
            del content[_without_zeros(content, self.ENTRY) :]
        # The file gets exactly the entries: the next append continues at its end, which zeros of a preallocated file
        # would move.
        if self._file.size != len(content):
            self._file.truncate(len(content))
        self._buffer = content
        self.size = self._written = len(content)

    def _trim_zeros(self) -> None:
        """Leave out the zeros of a sparse tail; maps the file only when its last entry is zeros."""
        if not self.size:
            return
        last = bytearray(self.ENTRY)
        self._file.read_now(self.size - self.ENTRY, memoryview(last))
        if not any(last):
            self.size = _without_zeros(self._file.view()[: self.size], self.ENTRY)

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.size // self.ENTRY

    @property
    def is_full(self) -> bool:
        """Whether the next append is refused."""
        return self.size >= self.limit

    def _entries_view(self) -> bytearray | memoryview:
        if self._buffer is None:
            self._buffer = self._file.view()
        return self._buffer

    def write_out(self) -> None:
        """Write the entries that are only in memory to the file. Raises Failure; then the next call tries again."""
        buffer = self._buffer
        if isinstance(buffer, bytearray) and self._written < self.size:
            self._file.append((bytes(buffer[self._written : self.size]),))
            self._written = self.size

    def sync_file(self, done: Done[int]) -> None:
        """Make the written entries durable."""
        self.dirty = False
        self._file.sync(done)

    def seal_file(self) -> None:
        """End appending: write out, trim the file, free the memory."""
        self.write_out()
        self._file.seal()
        self._buffer = None

    def release_file(self) -> None:
        """Free resources of an index that is not used for some time."""
        self._file.rest()

    def close(self) -> None:
        """Close the file."""
        self._buffer = None
        self._file.close()

    def _cut_entries(self, entries: int) -> None:
        """Keep the first `entries`."""
        size = entries * self.ENTRY
        buffer = self._buffer
        if isinstance(buffer, bytearray):
            del buffer[size:]
        else:
            self._buffer = None
        if self._file.size > size:
            self._file.truncate(size)
        self._written = min(self._written, size)
        self.size = size
        self.dirty = True
        self._note_last()

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _raise_refusal(self, offset: int) -> NoReturn:
        """Raise the error for an entry that cannot be appended."""
        if self.size >= self.limit:
            raise IndexFull(f"{self.path} holds its {self.max_entries} entries")
        if not 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET:
            raise IndexOverflow(f"offset {offset} does not fit an index that starts at {self.base_offset}")
        raise NotMonotonic(f"the entry for offset {offset} is not above the last one of {self.path}")

    def _search_slot(self, key: Unpack, shift: int, target: int) -> int:
        """The slot with the largest key ≤ target; the key lies `shift` bytes into an entry."""
        view, entry = self._buffer, self.ENTRY
        if view is None:
            view = self._entries_view()
        return largest_at_most(key, view, entry, shift, self.size // entry, target, WARM_BYTES // entry)


def _without_zeros(content: bytearray | memoryview, entry: int) -> int:
    """Size of `content` without the entries of zeros at its end; bisection finds where they begin, as keys rise."""
    zeros = bytes(entry)
    low, high = 0, len(content) // entry
    while low < high:
        middle = (low + high) // 2
        if bytes(content[middle * entry : (middle + 1) * entry]) == zeros:
            high = middle
        else:
            low = middle + 1
    return low * entry


_INT: Final = Struct(">i").unpack_from
_LONG: Final = Struct(">q").unpack_from
_PAIR: Final = Struct(">ii")
_WARM_PAIRS: Final = WARM_BYTES // 8
_TIMED: Final = Struct(">qi")
_new = tuple.__new__  # a third of the time of the class's own, and every fetch of older records makes one


class OffsetPosition(NamedTuple):
    """An entry of the offset index."""

    offset: int
    position: int


class OffsetIndex(Index):
    """Offset of a batch's last record → position of its first byte."""

    __slots__ = ()

    ENTRY: ClassVar[int] = 8

    def append(self, offset: int, position: int) -> None:
        """Add an entry above all others.

        Raises IndexFull, IndexOverflow out of the segment's range, NotMonotonic for an offset not above the last.
        """
        relative = offset - self.base_offset
        if self.size >= self.limit or not self._last < relative <= MAX_RELATIVE_OFFSET:
            self._raise_refusal(offset)
        buffer = self._buffer
        assert isinstance(buffer, bytearray), "only the active index is appended to"
        buffer += _PAIR.pack(relative, position)
        self._last = relative
        self.size += 8
        self.dirty = True

    def _note_last(self) -> None:
        self._last = self.entry_at_slot(self.size // 8 - 1).offset - self.base_offset if self.size else -1

    def entry_at_slot(self, slot: int) -> OffsetPosition:
        """The entry in a slot, absolute."""
        relative, position = _PAIR.unpack_from(self._entries_view(), slot * 8)
        return OffsetPosition(self.base_offset + relative, position)

    @property
    def last_entry(self) -> OffsetPosition | None:
        """The entry with the largest offset."""
        return self.entry_at_slot(self.size // 8 - 1) if self.size else None

    @property
    def segment_start(self) -> OffsetPosition:
        """The start of the segment, as an entry."""
        return OffsetPosition(self.base_offset, 0)

    def lookup_offset(self, offset: int) -> OffsetPosition:
        """The largest entry ≤ `offset`; the segment's start when there is none."""
        slot = self._search_slot(_INT, 0, offset - self.base_offset)
        return self.entry_at_slot(slot) if slot >= 0 else self.segment_start

    def place_of(self, offset: int) -> tuple[OffsetPosition, int]:
        """`lookup`, and the position in the entry above that one: its batch reaches beyond `offset`. -1: none above."""
        view = self._entries_view() if self._buffer is None else self._buffer
        size = self.size
        slot = largest_at_most(_INT, view, 8, 0, size // 8, offset - self.base_offset, _WARM_PAIRS)
        if slot < 0:
            return self.segment_start, _INT(view, 4)[0] if size else -1
        above = (slot + 1) * 8
        relative, position = _PAIR.unpack_from(view, above - 8)
        floor = _new(OffsetPosition, (self.base_offset + relative, position))
        return floor, _INT(view, above + 4)[0] if above < size else -1

    def floor_of_position(self, position: int) -> int:
        """The largest position in the index ≤ `position`: where a batch begins. 0 when there is none."""
        view = self._entries_view() if self._buffer is None else self._buffer
        slot = largest_at_most(_INT, view, 8, 4, self.size // 8, position, _WARM_PAIRS)
        return int(_INT(view, slot * 8 + 4)[0]) if slot >= 0 else 0

    def offset_from(self, position: int) -> int:
        """The offset of the first entry at or above `position`: no batch before that reaches it. -1: there is none."""
        slot = self._search_slot(_INT, 4, position - 1) + 1
        return self.entry_at_slot(slot).offset if slot < self.entries else -1

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`."""
        self._cut_entries(self._search_slot(_INT, 0, offset - self.base_offset - 1) + 1)

    def is_sane(self, log_size: int) -> bool:
        """Whether file size and last entry are possible for a log of that size."""
        if self._file.size % 8 and self._file.size != self.max_entries * 8:
            return False
        last = self.last_entry
        return last is None or (last.offset >= self.base_offset and 0 <= last.position < max(log_size, 1))


class TimestampOffset(NamedTuple):
    """An entry of the time index; also the result of a look-up by time."""

    timestamp: int
    offset: int


class TimeIndex(Index):
    """Largest timestamp up to a batch → offset of that batch's last record."""

    __slots__ = ("_last_offset",)

    ENTRY: ClassVar[int] = 12

    def __init__(self, disk: Disk, path: str, base_offset: int, limit: int, create: bool = False) -> None:
        """As `Index`; the last slot is kept for the entry that is written at the roll."""
        self._last_offset = base_offset
        super().__init__(disk, path, base_offset, limit, create)
        self.limit -= 12

    def append(self, timestamp: int, offset: int, closing: bool = False) -> None:
        """Add an entry; one with the last timestamp is skipped. `closing` may use the last slot.

        Raises IndexFull, IndexOverflow, NotMonotonic for a smaller timestamp or offset than the last.
        """
        relative = offset - self.base_offset
        limit = self.limit + 12 if closing else self.limit
        low = offset < self._last_offset or timestamp < self._last
        # An empty index takes any first entry: its last one is only the default.
        if self.size >= limit or (low and self.size) or not 0 <= relative <= MAX_RELATIVE_OFFSET:
            self._raise_refusal(offset)
        if timestamp == self._last:
            return
        buffer = self._buffer
        assert isinstance(buffer, bytearray), "only the active index is appended to"
        buffer += _TIMED.pack(timestamp, relative)
        self._last = timestamp
        self._last_offset = offset
        self.size += 12
        self.dirty = True

    def _note_last(self) -> None:
        self._last, self._last_offset = self.last_entry

    def entry_at_slot(self, slot: int) -> TimestampOffset:
        """The entry in a slot, absolute."""
        timestamp, relative = _TIMED.unpack_from(self._entries_view(), slot * 12)
        return TimestampOffset(timestamp, self.base_offset + relative)

    @property
    def last_entry(self) -> TimestampOffset:
        """The entry with the largest timestamp; (-1, base offset) when there is none."""
        return self.entry_at_slot(self.size // 12 - 1) if self.size else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def lookup_timestamp(self, timestamp: int) -> TimestampOffset:
        """The largest entry whose timestamp is ≤ `timestamp`; (-1, base offset) when there is none."""
        slot = self._search_slot(_LONG, 0, timestamp)
        return self.entry_at_slot(slot) if slot >= 0 else TimestampOffset(NO_TIMESTAMP, self.base_offset)

    def truncate_to(self, offset: int) -> None:
        """Drop the entries at or above `offset`."""
        self._cut_entries(self._search_slot(_INT, 8, offset - self.base_offset - 1) + 1)

    def is_sane(self) -> bool:
        """Whether file size, first and last entry are possible for a time index."""
        if self._file.size % 12 and self._file.size != self.max_entries * 12:
            return False
        if not self.size:
            return True
        first, last = self.entry_at_slot(0), self.last_entry
        return first.timestamp <= last.timestamp and first.offset <= last.offset and last.timestamp >= 0
