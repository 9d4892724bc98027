"""The broker's one FIFO queue of effects, which run at the end of a turn.

Zone: deterministic. A turn is one input, run to its end. Its effects (responses of delayed operations, deltas of the
cluster image, deliveries of the embedded store) are queued here and run after the input, so that no callback runs
nested inside another one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Effects:
    """A queue of functions; effects that they queue run in the same drain, after them."""

    __slots__ = ("_draining", "queue")

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self._draining = False

    def queue_effect(self, effect: Callable[[], None]) -> None:
        """Run `effect` at the end of the present turn."""
        self.queue.append(effect)

    def drain_effects(self) -> None:
        """Run all queued effects, first in first out. Never nested."""
        assert not self._draining, "effects are drained once per turn, by the broker"
        self._draining = True
        try:
            while self.queue:
                self.queue.popleft()()
        finally:
            self._draining = False
