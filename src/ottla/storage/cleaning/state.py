"""The state of a log's compaction, for code that changes the log's segments.

Zone: deterministic. How far the log is clean, whether segments are being exchanged now, and whether the log cannot be
cleaned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.storage.cleaning.cleanable_logs import dirty_start
from ottla.storage.segments.segment import Segment


class OngoingSwap(Protocol):
    """An exchange of segments in progress."""

    def finish_now(self) -> None:
        """Do the remaining renames now, waiting for the disk. Raises Failure."""
        ...


class CleaningState:
    """The state of one log."""

    __slots__ = ("changes", "checkpoint", "closed", "exchange", "on_exchanged", "uncleanable", "until", "worker_losses")

    def __init__(self, on_exchanged: Callable[[Segment], None]) -> None:
        """`on_exchanged` gets the segment that has replaced others."""
        self.on_exchanged = on_exchanged
        self.checkpoint: int | None = None
        """Where the last pass ended (cleaner-offset-checkpoint); None when there was none."""
        self.changes = 0
        """Rises when the log is cut inside the range of a pass: what the pass has read may be outdated."""
        self.until: int | None = None
        """Where the pass in progress has to end; None when there is none."""
        self.closed = False
        """The log is out of service, or its directory was renamed: its files must not be changed any more."""
        self.exchange: OngoingSwap | None = None
        """While it is set, some segments have neither their old names nor their new ones."""
        self.uncleanable: str | None = None
        """Why this log is no longer compacted; None while it is."""
        self.worker_losses = 0
        """Passes in a row over which a worker process died."""

    def clean_until(self, start_offset: int, end_offset: int) -> int:
        """Where the dirty part of a log with these bounds begins."""
        return dirty_start(self.checkpoint, start_offset, end_offset)

    def finish_exchange(self) -> None:
        """Finish an exchange in progress; call it before the segments change. Raises Failure."""
        if self.exchange is not None:
            self.exchange.finish_now()

    def interrupt_pass(self) -> None:
        """End the pass in progress after its exchange, so that the segments do not change. Raises Failure."""
        self.finish_exchange()
        self.changes += 1

    def note_cut(self, offset: int) -> bool:
        """Note that the log will be cut at `offset`; whether the cleaner's checkpoint must be durable before that."""
        # A pass that ends at or below the cut has read nothing of the removed records.
        if self.until is not None and offset < self.until:
            self.changes += 1
        # The damaged batch may be in the part that is cut off: the log gets another chance.
        self.uncleanable = None
        self.worker_losses = 0
        if self.checkpoint is None or self.checkpoint <= offset:
            return False
        self.checkpoint = offset
        return True
