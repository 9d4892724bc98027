"""Whoever asked the controller for something: answered exactly once, in a turn that is not the one of the asking.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.purgatory.timing_wheel import Timer


class PendingRequest:
    """One answer that is owed. The first outcome counts, later ones are too late."""

    def __init__(self, asks: PendingRequests, done: Callable[[Any], None]) -> None:
        self._asks = asks
        self._done = done
        self._answered = False
        self.timer: Timer | None = None

    def __call__(self, outcome: Any) -> None:
        """Answer."""
        if self._answered:
            return
        self._answered = True
        timer, self.timer = self.timer, None  # they hold each other
        if timer is not None:
            timer.cancel()
        self._asks.on_answered(self)
        self._asks.later(lambda: self._done(outcome))

    def time_out(self) -> None:
        """It took too long; what was begun goes on."""
        self(ApiError(ErrorCode.REQUEST_TIMED_OUT, "it is not done yet, and will be done"))


class PendingRequests:
    """All answers that one controller owes."""

    def __init__(self, purgatory: Purgatory, later: Callable[[Callable[[], None]], None]) -> None:
        self.later = later
        self._purgatory = purgatory
        self._open: dict[PendingRequest, None] = {}
        self._closed: ApiError | None = None

    def new(self, done: Callable[[Any], None], timeout_ms: int | None = None) -> PendingRequest:
        """One more; with a time-out it is answered REQUEST_TIMED_OUT when nothing came until then."""
        asked = PendingRequest(self, done)
        self._open[asked] = None
        if timeout_ms is not None:
            asked.timer = self._purgatory.after(timeout_ms, asked.time_out)
        if self._closed is not None:
            asked(self._closed)
        return asked

    def on_answered(self, asked: PendingRequest) -> None:
        """One less."""
        self._open.pop(asked, None)

    def close(self, why: ApiError) -> None:
        """The office is over: everybody who waits is told why."""
        self._closed = why
        for asked in list(self._open):
            asked(why)
