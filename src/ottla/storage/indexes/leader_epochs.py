"""The leader epoch cache of a log: which epoch began at which offset (KIP-101, KIP-279).

Zone: deterministic. A sorted list of `<epoch, start offset>`; replication decides what to do with an answer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import NamedTuple

from ottla.types import NO_EPOCH, NO_OFFSET


class EpochEntry(NamedTuple):
    """A leader epoch and the offset of its first record."""

    epoch: int
    start_offset: int


class LeaderEpochs:
    """Epochs and start offsets, both rising. Every change is passed to `persist`."""

    __slots__ = ("_end_offset", "_entries", "_persist", "latest")

    def __init__(
        self,
        entries: Iterable[EpochEntry],
        end_offset: Callable[[], int],
        persist: Callable[[tuple[EpochEntry, ...]], None],
    ) -> None:
        self._entries: list[EpochEntry] = []
        self._end_offset = end_offset
        self._persist = persist
        self.latest = NO_EPOCH
        """The newest epoch, -1 when there is none. A plain attribute, for the hot path."""
        for entry in entries:
            self._put_entry(EpochEntry(*entry))

    def let_go(self, end_offset: int) -> None:
        """Drop all references to a log that was closed and ended at `end_offset`, and persist no change."""
        self._end_offset = lambda: end_offset
        self._persist = _ignore_entries

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        """All of them, oldest first."""
        return tuple(self._entries)

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that a leader of this epoch writes from `start_offset` on. A repeated epoch adds nothing."""
        assert epoch >= 0
        assert start_offset >= 0
        if self._put_entry(EpochEntry(epoch, start_offset)):
            self._persist(self.entries)

    def expect_epoch(self, epoch: int, start_offset: int) -> bool:
        """Note that a leader of this epoch has begun and written nothing yet; the log ends at `start_offset`.

        Returns whether the file has to be written before its first record. Where epochs that have records change,
        `persist` is called here.
        """
        written = [entry for entry in self._entries if entry.start_offset < start_offset]
        if not self._put_entry(EpochEntry(epoch, start_offset)):
            return False
        if self._entries[:-1] == written:
            return True
        self._persist(self.entries)
        return False

    def _put_entry(self, entry: EpochEntry) -> bool:
        """Add an entry and drop those that contradict it: newer ones, or starting later. Whether anything changed."""
        entries = self._entries
        # The same epoch again changes nothing, unless it begins lower: records of it were found before those known.
        if entries and entries[-1].epoch == entry.epoch and entries[-1].start_offset <= entry.start_offset:
            return False
        while entries and (entries[-1].epoch >= entry.epoch or entries[-1].start_offset >= entry.start_offset):
            entries.pop()
        entries.append(entry)
        self.latest = entry.epoch
        return True

    def end_offset_for(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch ≤ `epoch`; the log end for the latest, (-1, -1) when not known.

        The end offset of an epoch is the start of the next one. For an epoch below the first one, the result is that
        epoch and the first start offset.
        """
        entries = self._entries
        # KIP-101: the asked epoch is newer than any record here, so this log proves nothing about it.
        if epoch == NO_EPOCH or not entries or epoch > entries[-1].epoch:
            return NO_EPOCH, NO_OFFSET
        if epoch == entries[-1].epoch:
            return epoch, self._end_offset()
        above = bisect_right(entries, epoch, key=lambda entry: entry.epoch)
        found = entries[above - 1].epoch if above else epoch
        return found, entries[above].start_offset

    def epoch_of(self, offset: int) -> int:
        """The epoch in which the record at `offset` was written; -1 when not known."""
        above = bisect_right(self._entries, offset, key=lambda entry: entry.start_offset)
        return self._entries[above - 1].epoch if above else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Drop the epochs that start at or above `end_offset`."""
        kept = [entry for entry in self._entries if entry.start_offset < end_offset]
        if len(kept) != len(self._entries):
            self._replace_entries(kept)

    def truncate_from_start(self, start_offset: int) -> None:
        """Drop the epochs that end below `start_offset`; the one that holds it starts there from now on."""
        above = bisect_right(self._entries, start_offset, key=lambda entry: entry.start_offset)
        if above and self._entries[above - 1].start_offset < start_offset:
            first = EpochEntry(self._entries[above - 1].epoch, start_offset)
            self._replace_entries([first, *self._entries[above:]])
        elif above > 1:
            self._replace_entries(self._entries[above - 1 :])

    def replace_all(self, entries: Iterable[EpochEntry]) -> None:
        """Replace all entries by these: those of the log that this one's log is a copy of."""
        self._replace_entries(list(entries))

    def clear_entries(self) -> None:
        """Drop all entries."""
        if self._entries:
            self._replace_entries([])

    def _replace_entries(self, entries: list[EpochEntry]) -> None:
        self._entries = entries
        self.latest = entries[-1].epoch if entries else NO_EPOCH
        self._persist(self.entries)


def _ignore_entries(_: tuple[EpochEntry, ...]) -> None:
    pass
