"""Effects that wait until a position of the journal is committed, in the order of the journal, up to a deadline.

Zone: pure. A queue; callers pass the high watermark and the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from ottla.coordinator.shard import Effect

MAX_PARKED: Final = 100_000
"""The most decisions of one shard that may wait at a time."""


class DeferredEvents(NamedTuple):
    """The effects of one decision, and what they wait for."""

    position: int
    """The position of the journal that must be committed before the effects are performed."""
    deadline_ns: int
    """Monotonic time after which the effects are dropped with an error."""
    effects: Sequence[Effect]


class DeferredEventQueue:
    """A queue in the order of positions. That is also the order of deadlines, because all entries wait equally long."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[DeferredEvents] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Whether the limit of waiting decisions is reached."""
        return len(self._queue) >= MAX_PARKED

    @property
    def deadline_ns(self) -> int | None:
        """The deadline of the first entry; None when the queue is empty."""
        return self._queue[0].deadline_ns if self._queue else None

    def add_events(self, parked: DeferredEvents) -> None:
        """Append an entry to the queue."""
        assert not self._queue or self._queue[-1].position <= parked.position, "positions only grow"
        self._queue.append(parked)

    def pop_committed(self, position: int) -> Iterator[Effect]:
        """Remove and return effects whose position is committed, one decision at a time."""
        # The queue is popped before the effects are performed: an effect may add to it, or drain it.
        queue = self._queue
        while queue and queue[0].position <= position:
            yield from queue.popleft().effects

    def pop_overdue(self, now_ns: int) -> Iterator[Effect]:
        """Remove and return effects whose deadline has passed."""
        queue = self._queue
        while queue and queue[0].deadline_ns <= now_ns:
            yield from queue.popleft().effects

    def drain_effects(self) -> Iterator[Effect]:
        """Remove and return all effects."""
        queue = self._queue
        while queue:
            yield from queue.popleft().effects
