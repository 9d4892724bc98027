"""What a scheduler does for the mover, and the one that needs nothing else: a heap in memory.

Zone: pure. A scheduler knows when which record is due: a place in the log and a time, never the record itself. It may
forget everything: the log and the group's positions are the truth, and what it says is checked against them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol

from ottla.types import TopicPartition


class Ref(NamedTuple):
    """A record that waits: due (milliseconds since 1970) first, so that they sort by it."""

    due_ms: int
    tp: TopicPartition
    offset: int


class ScheduledRecord(NamedTuple):
    """What a scheduler still knew of a partition."""

    position: int
    """All below it was added."""
    waiting: list[int]
    """Offsets that were added and are not done."""


class Scheduler(Protocol):
    """Calls may raise SchedulerError (nobody knows whether it was done: open again) and SchedulerLostError."""

    def open(self, tp: TopicPartition, low: int, generation: str) -> ScheduledRecord | None:
        """Take over a partition whose committed position and generation are these. None: read the log from `low` on."""

    def generation(self, tp: TopicPartition) -> str:
        """What to commit with positions, so that the state that belongs to them is known again."""

    def close(self, tp: TopicPartition) -> None:
        """It is somebody else's from now on."""

    def add(self, tp: TopicPartition, entries: Sequence[tuple[int, int]], position: int) -> None:
        """Records (offset, due) wait; all of the partition below `position` was added."""

    def claim(self, until_ms: int, limit: int) -> list[Ref]:
        """Those that are due until then, the earliest first, are the caller's now."""

    def release(self, refs: Iterable[Ref]) -> None:
        """They were claimed and wait again."""

    def done(self, refs: Iterable[Ref]) -> None:
        """They were claimed and wait no more."""

    def next_due(self) -> int | None:
        """When the earliest one is due, or some time before that; None: nothing waits."""

    def close_all(self) -> None:
        """Let go of whatever is open."""


_DUE_SHIFT: Final = 96
_SLOT_SHIFT: Final = 64
_OFFSET_MASK: Final = 2**64 - 1
_SLOT_MASK: Final = 2**32 - 1


class EmbeddedScheduler:
    """A heap; about 50 bytes for each that waits. It knows nothing after a restart: the log is read again."""

    def __init__(self) -> None:
        self._heap: list[int] = []
        """due, slot and offset in one number: a tuple would be three times as large."""
        self._slot_of: dict[TopicPartition, int] = {}
        self._place_of: dict[int, TopicPartition] = {}
        self._next_slot = 0

    def open(self, tp: TopicPartition, low: int, generation: str) -> ScheduledRecord | None:  # noqa: ARG002 - the seam's
        """Nothing is known."""
        self.close(tp)
        self._slot_of[tp] = self._next_slot
        self._place_of[self._next_slot] = tp
        self._next_slot += 1
        return None

    def generation(self, tp: TopicPartition) -> str:  # noqa: ARG002 - the seam's
        """There is none."""
        return ""

    def close(self, tp: TopicPartition) -> None:
        """Forget it."""
        slot = self._slot_of.pop(tp, None)
        if slot is None:
            return
        del self._place_of[slot]
        self._heap = [each for each in self._heap if each >> _SLOT_SHIFT & _SLOT_MASK != slot]
        heapq.heapify(self._heap)

    def add(self, tp: TopicPartition, entries: Sequence[tuple[int, int]], position: int) -> None:  # noqa: ARG002
        """Remember them."""
        slot = self._slot_of[tp] << _SLOT_SHIFT
        for offset, due_ms in entries:
            heapq.heappush(self._heap, due_ms << _DUE_SHIFT | slot | offset)

    def claim(self, until_ms: int, limit: int) -> list[Ref]:
        """Take them off."""
        heap, bound = self._heap, (until_ms + 1) << _DUE_SHIFT
        found: list[Ref] = []
        while heap and heap[0] < bound and len(found) < limit:
            packed = heapq.heappop(heap)
            tp = self._place_of[packed >> _SLOT_SHIFT & _SLOT_MASK]
            found.append(Ref(packed >> _DUE_SHIFT, tp, packed & _OFFSET_MASK))
        return found

    def release(self, refs: Iterable[Ref]) -> None:
        """Put them back, unless their partition was closed meanwhile."""
        for each in refs:
            if each.tp in self._slot_of:
                self.add(each.tp, [(each.offset, each.due_ms)], 0)

    def done(self, refs: Iterable[Ref]) -> None:
        """They are off already."""

    def next_due(self) -> int | None:
        """The head's time."""
        return self._heap[0] >> _DUE_SHIFT if self._heap else None

    def close_all(self) -> None:
        """Forget everything."""
        for tp in list(self._slot_of):
            self.close(tp)
