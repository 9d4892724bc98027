"""Checks the two sparse indexes of a segment against its batches in one walk, and builds new ones to replace them.

Zone: deterministic. Entries are read from the bytes of the files; `ottla.storage.indexes.index`, which serves
look-ups, is not used, so that the check does not depend on the code that it checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

from ottla.record.header_fields import BASE_OFFSET, LAST_OFFSET_DELTA, MAX_TIMESTAMP
from ottla.record.validation import HeaderTuple
from ottla.types import NO_TIMESTAMP

OFFSET_ENTRY: Final = Struct(">ii")
TIME_ENTRY: Final = Struct(">qi")


def entries_in(content: bytes, entry: Struct) -> Iterator[tuple[int, ...]]:
    """The entries of an index file, without the zeros at the end of a sparse one."""
    whole = len(content) - len(content) % entry.size
    zeros = bytes(entry.size)
    while whole and content[whole - entry.size : whole] == zeros:
        whole -= entry.size
    yield from entry.iter_unpack(content[:whole])


class OffsetEntries:
    """Checks an offset index, entry by entry."""

    def __init__(self, base: int, content: bytes) -> None:
        self._base = base
        self._entries = list(entries_in(content, OFFSET_ENTRY))
        self._at = 0
        self.wrong = f"{len(content) % OFFSET_ENTRY.size} bytes too many" if len(content) % OFFSET_ENTRY.size else ""
        """The first fault of it; empty: none so far."""

    def check_batch(self, position: int, header: HeaderTuple) -> None:
        """Compare the entries up to this batch with it; called for all batches in order."""
        while self._at < len(self._entries) and self._entries[self._at][1] <= position:
            relative, at = self._entries[self._at]
            last = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
            if at != position:
                self._note_fault(f"entry {self._at} points to byte {at}, where no batch begins")
            elif not header[BASE_OFFSET] <= self._base + relative <= last:
                self._note_fault(f"entry {self._at} has offset {self._base + relative}, the batch ends at {last}")
            elif self._at and self._entries[self._at - 1] >= (relative, at):
                self._note_fault(f"entry {self._at} is not above the one before it")
            self._at += 1

    def _note_fault(self, what: str) -> None:
        self.wrong = self.wrong or what

    def finish_check(self) -> str:
        """Call after all batches; returns the first fault of the index, empty if there is none."""
        if self._at < len(self._entries):
            self._note_fault(f"entry {self._at} points to byte {self._entries[self._at][1]}, after the last batch")
        return self.wrong


class TimeEntries:
    """Checks a time index, entry by entry."""

    def __init__(self, base: int, content: bytes, *, sealed: bool) -> None:
        self._base = base
        self._entries = list(entries_in(content, TIME_ENTRY))
        self._sealed = sealed
        self._at = 0
        self._largest = NO_TIMESTAMP
        self.wrong = f"{len(content) % TIME_ENTRY.size} bytes too many" if len(content) % TIME_ENTRY.size else ""

    def check_batch(self, header: HeaderTuple) -> None:
        """Compare the entries up to this batch with it; called for all batches in order."""
        self._largest = max(self._largest, header[MAX_TIMESTAMP])
        last = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
        while self._at < len(self._entries) and self._base + self._entries[self._at][1] <= last:
            timestamp, relative = self._entries[self._at]
            if relative < 0:
                self._note_fault(f"entry {self._at} has an offset below the segment's first")
            elif timestamp != self._largest:
                self._note_fault(
                    f"entry {self._at} has {timestamp}, the largest timestamp up to there is {self._largest}"
                )
            elif self._at and self._entries[self._at - 1][0] >= timestamp:
                self._note_fault(f"entry {self._at} is not above the one before it")
            self._at += 1

    def _note_fault(self, what: str) -> None:
        self.wrong = self.wrong or what

    def finish_check(self) -> str:
        """Call after all batches; returns the first fault of the index, empty if there is none."""
        if self._at < len(self._entries):
            self._note_fault(f"entry {self._at} points after the last batch")
        newest = self._entries[-1][0] if self._entries else NO_TIMESTAMP
        # The entry with the largest timestamp is written when the segment is sealed; an active one may lack it.
        if self._sealed and newest != self._largest:
            self._note_fault(f"its last entry has {newest}, the largest timestamp of the segment is {self._largest}")
        return self.wrong


class NewIndexes:
    """Builds both indexes of a segment from its batches, as a broker does."""

    def __init__(self, base: int, interval: int = 4096) -> None:
        self._base = base
        self._interval = interval
        self._since = 0
        self._largest, self._offset_of_largest = NO_TIMESTAMP, base
        self._noted = NO_TIMESTAMP
        self.offsets = bytearray()
        self.times = bytearray()

    def add_batch(self, position: int, size: int, header: HeaderTuple) -> None:
        """Index a batch if an entry is due; called for all batches in order."""
        last = header[BASE_OFFSET] + header[LAST_OFFSET_DELTA]
        if header[MAX_TIMESTAMP] > self._largest:
            self._largest, self._offset_of_largest = header[MAX_TIMESTAMP], last
        if self._since > self._interval:
            self._since = 0
            self.offsets += OFFSET_ENTRY.pack(last - self._base, position)
            self._note_time()
        self._since += size

    def _note_time(self) -> None:
        if self._largest > self._noted:
            self._noted = self._largest
            self.times += TIME_ENTRY.pack(self._largest, self._offset_of_largest - self._base)

    def finish_indexes(self) -> None:
        """Call after all batches: appends the largest timestamp, the last entry of a time index."""
        self._note_time()
