"""What a turn leaves to be done: the broker's one FIFO of effects.

Zone: deterministic. A turn is one input, run to its end; what it wants done afterwards (answers of others that woke
up, deltas of the cluster image, deliveries of the embedded store) is queued here and drained once the input is through,
so that nothing ever runs nested inside something else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Turn:
    """Whether the present turn has begun to change state: the line between a failed request and a broken broker.

    An exception before the first change costs the request that caused it. One after that leaves state that may be half
    changed, so it stops the broker. `Dispatch` clears the mark when a request begins, and every method that changes
    shared state sets it first: appends, truncations and roles of partitions, fetches of followers, operations that wait
    in the purgatory, orders of the controller. Coordinators of groups and transactions need no mark: what fails in one
    of their shards ends that shard (`coordinator.runner`).
    """

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes = False


class Effects:
    """A queue of thunks; what they queue in turn runs in the same drain, after them."""

    __slots__ = ("_draining", "queue")

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self._draining = False

    def later(self, effect: Callable[[], None]) -> None:
        """Run `effect` when the present input is through."""
        self.queue.append(effect)

    def drain(self) -> None:
        """Run everything queued, first in first out. Never nests."""
        assert not self._draining, "effects are drained once per turn, by the broker"
        self._draining = True
        try:
            while self.queue:
                self.queue.popleft()()
        finally:
            self._draining = False
