"""What others have to know about the compaction of a log before they touch its segments.

Zone: deterministic. How far the log is clean, whether segments are being exchanged right now, and whether the log was
found not to be cleanable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.storage.segments.segment import Segment


class OngoingSwap(Protocol):
    """Segments whose place is being taken by another one."""

    def finish_now(self) -> None:
        """Do what is left of it at once, waiting for the disk. Raises Failure."""
        ...


class CleaningState:
    """The state of one log."""

    __slots__ = ("changes", "checkpoint", "closed", "exchange", "losses", "on_exchanged", "uncleanable", "until")

    def __init__(self, on_exchanged: Callable[[Segment], None]) -> None:
        """`on_exchanged` is told the segment that has taken the place of others."""
        self.on_exchanged = on_exchanged
        self.checkpoint: int | None = None
        """Where the last pass ended (cleaner-offset-checkpoint); None when there was none."""
        self.changes = 0
        """Grows when the log was cut within what a pass has before it: what that has seen of it may be wrong."""
        self.until: int | None = None
        """Where the pass that is under way has to end; None when none is."""
        self.closed = False
        """The log is out of service, or its directory has another name: no more of its files are touched."""
        self.exchange: OngoingSwap | None = None
        """While it is there, the names of some segments are neither the old ones nor the new ones."""
        self.uncleanable: str | None = None
        """Why this log is not compacted any more."""
        self.losses = 0
        """Passes in a row over which a worker process died."""

    def settle(self) -> None:
        """Before the segments change: none of them is half exchanged afterwards. Raises Failure."""
        if self.exchange is not None:
            self.exchange.finish_now()

    def interrupt(self) -> None:
        """End the pass that is under way, its exchange done: segments stay what they are. Raises Failure."""
        self.settle()
        self.changes += 1

    def cut(self, offset: int) -> bool:
        """The log is about to end at `offset`; whether the checkpoint has to say so, durably, before that."""
        if self.until is not None and offset < self.until:
            self.changes += 1
        self.uncleanable = None
        self.losses = 0
        if self.checkpoint is None or self.checkpoint <= offset:
            return False
        self.checkpoint = offset
        return True
