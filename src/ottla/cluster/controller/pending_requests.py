"""Requests to the controller: each is answered exactly once, in a later turn than the one of the request.

Zone: deterministic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.purgatory.timing_wheel import Timer


class PendingRequest:
    """One request that has no answer yet. Only its first outcome counts."""

    def __init__(self, asks: PendingRequests, done: Callable[[Any], None]) -> None:
        self._asks = asks
        self._done = done
        self._answered = False
        self.timer: Timer | None = None

    def __call__(self, outcome: Any) -> None:
        """Answer the request with this outcome."""
        if self._answered:
            return
        self._answered = True
        timer, self.timer = self.timer, None  # breaks the reference cycle
        if timer is not None:
            timer.cancel()
        self._asks.on_answered(self)
        self._asks.later(lambda: self._done(outcome))

    def time_out(self) -> None:
        """Answer REQUEST_TIMED_OUT. The work that was begun continues."""
        self(
            ApiError(
                ErrorCode.REQUEST_TIMED_OUT, "the controller has not finished the request in time; the work continues"
            )
        )


class PendingRequests:
    """All requests that one controller has not answered."""

    def __init__(self, purgatory: Purgatory, later: Callable[[Callable[[], None]], None]) -> None:
        self.later = later
        self._purgatory = purgatory
        self._open: dict[PendingRequest, None] = {}
        self._closed: ApiError | None = None

    def add_request(self, done: Callable[[Any], None], timeout_ms: int | None = None) -> PendingRequest:
        """Add a request. With `timeout_ms` it is answered REQUEST_TIMED_OUT if no outcome came until then."""
        asked = PendingRequest(self, done)
        self._open[asked] = None
        if timeout_ms is not None:
            asked.timer = self._purgatory.continue_after(timeout_ms, asked.time_out)
        if self._closed is not None:
            asked(self._closed)
        return asked

    def on_answered(self, asked: PendingRequest) -> None:
        """Remove a request that is answered."""
        self._open.pop(asked, None)

    def answer_all(self, why: ApiError) -> None:
        """Answer all requests with this error at the end of the term, and all later ones."""
        self._closed = why
        for asked in list(self._open):
            asked(why)
