"""Effects that wait for a position of the journal to be committed, in its order, and not for ever.

Zone: pure. A queue; the high watermark and the time are told to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.coordinator.shard import Effect

MAX_PARKED: Final = 100_000
"""Outcomes of one shard that may wait."""


class DeferredEvents(NamedTuple):
    """The effects of one outcome."""

    position: int
    deadline_ns: int
    effects: Sequence[Effect]


class DeferredEventQueue:
    """A queue by position, which is by deadline too: all wait equally long."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[DeferredEvents] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def full(self) -> bool:
        """Whether no more may wait."""
        return len(self._queue) >= MAX_PARKED

    @property
    def deadline_ns(self) -> int | None:
        """When the first one has waited too long."""
        return self._queue[0].deadline_ns if self._queue else None

    def add(self, parked: DeferredEvents) -> None:
        """Wait, behind all others."""
        assert not self._queue or self._queue[-1].position <= parked.position, "positions only grow"
        self._queue.append(parked)

    def committed(self, position: int) -> Iterator[Effect]:
        """Effects that need not wait any more, taken out one outcome at a time."""
        queue = self._queue
        while queue and queue[0].position <= position:
            yield from queue.popleft().effects

    def overdue(self, now_ns: int) -> Iterator[Effect]:
        """Effects that have waited too long, taken out."""
        queue = self._queue
        while queue and queue[0].deadline_ns <= now_ns:
            yield from queue.popleft().effects

    def drain(self) -> Iterator[Effect]:
        """All of them."""
        queue = self._queue
        while queue:
            yield from queue.popleft().effects
