"""What a turn leaves to be done: the broker's one FIFO of effects.

Zone: deterministic. A turn is one input, run to its end; what it wants done afterwards (answers of others that woke
up, deltas of the cluster image, deliveries of the embedded store) is queued here and drained once the input is through,
so that nothing ever runs nested inside something else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


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
