"""The interface of the mover's schedulers, and the embedded one: a heap in memory.

Zone: pure. A scheduler has the place in the log and the due time of each waiting record, never the record itself. It
may lose its state: the log and the group's positions are the source of truth, and its answers are checked against them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.types import TopicPartition


class Ref(NamedTuple):
    """A waiting record; its due time (milliseconds since 1970) is first, so that they sort by it."""

    due_ms: int
    tp: TopicPartition
    offset: int


class ScheduledRecord(NamedTuple):
    """The state of a partition that a scheduler had kept."""

    position: int
    """All records below this offset were added."""
    waiting: list[int]
    """Offsets that were added, and are not done."""


class Scheduler(Protocol):
    """Calls may raise SchedulerError (the call may have taken effect: open again) and SchedulerLostError."""

    def open(self, tp: TopicPartition, low: int, generation: str) -> ScheduledRecord | None:
        """Take over a partition with this committed position and generation. None: read the log from `low` on."""

    def generation(self, tp: TopicPartition) -> str:
        """The generation to commit with positions; by it, the state that belongs to them is recognized."""

    def close(self, tp: TopicPartition) -> None:
        """Give up a partition."""

    def add(self, tp: TopicPartition, entries: Sequence[tuple[int, int]], position: int) -> None:
        """Add waiting records (offset, due); all records below `position` were added."""

    def claim(self, until_ms: int, limit: int) -> list[Ref]:
        """Claim the records due until then, the earliest first."""

    def release(self, refs: Iterable[Ref]) -> None:
        """Put claimed records back."""

    def done(self, refs: Iterable[Ref]) -> None:
        """Remove claimed records, which need not wait any more."""

    def next_due(self) -> int | None:
        """When the earliest record is due, or some time before; None: no record waits."""

    def close_all(self) -> None:
        """Give up all partitions, and close connections."""


# An entry: due time in ms, from bit 96 on · slot of the partition, 32 bits · offset, 64 bits. It sorts by due time.
_DUE_SHIFT: Final = 96
_SLOT_SHIFT: Final = 64
_OFFSET_MASK: Final = 2**64 - 1
_SLOT_MASK: Final = 2**32 - 1


class EmbeddedScheduler:
    """A heap: about 50 bytes per waiting record, and empty after a restart, when the log is read again."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        """Due time, slot and offset in one number: a tuple would be three times as large."""
        self._slot_of: dict[TopicPartition, int] = {}
        self._place_of: dict[int, TopicPartition] = {}
        self._next_slot = 0

    def open(self, tp: TopicPartition, low: int, generation: str) -> ScheduledRecord | None:  # noqa: ARG002
        """Returns None: there is no state from before."""
        self.close(tp)
        self._slot_of[tp] = self._next_slot
        self._place_of[self._next_slot] = tp
        self._next_slot += 1
        return None

    def generation(self, tp: TopicPartition) -> str:  # noqa: ARG002
        """Empty: the state does not survive."""
        return ""

    def close(self, tp: TopicPartition) -> None:
        """Remove a partition with its records."""
        slot = self._slot_of.pop(tp, None)
        if slot is None:
            return
        del self._place_of[slot]
        self._heap = [each for each in self._heap if each >> _SLOT_SHIFT & _SLOT_MASK != slot]
        heapq.heapify(self._heap)

    def add(self, tp: TopicPartition, entries: Sequence[tuple[int, int]], position: int) -> None:  # noqa: ARG002
        """Push records."""
        slot = self._slot_of[tp] << _SLOT_SHIFT
        for offset, due_ms in entries:
            heapq.heappush(self._heap, due_ms << _DUE_SHIFT | slot | offset)

    def claim(self, until_ms: int, limit: int) -> list[Ref]:
        """Pop the due records."""
        # Above every entry that is due at `until_ms`, for any slot and offset.
        heap, bound = self._heap, (until_ms + 1) << _DUE_SHIFT
        found: list[Ref] = []
        while heap and heap[0] < bound and len(found) < limit:
            packed = heapq.heappop(heap)
            tp = self._place_of[packed >> _SLOT_SHIFT & _SLOT_MASK]
            found.append(Ref(packed >> _DUE_SHIFT, tp, packed & _OFFSET_MASK))
        return found

    def release(self, refs: Iterable[Ref]) -> None:
        """Push records back, unless their partition was closed meanwhile."""
        for each in refs:
            if each.tp in self._slot_of:
                self.add(each.tp, [(each.offset, each.due_ms)], 0)

    def done(self, refs: Iterable[Ref]) -> None:
        """Does nothing: claimed records were popped already."""

    def next_due(self) -> int | None:
        """The due time of the heap's head."""
        return self._heap[0] >> _DUE_SHIFT if self._heap else None

    def close_all(self) -> None:
        """Remove all partitions."""
        for tp in list(self._slot_of):
            self.close(tp)
