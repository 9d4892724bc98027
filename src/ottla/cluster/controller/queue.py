"""The controller's work, one piece after another: what one decides, the next one knows.

Zone: deterministic. The order of the work and what becomes of its failures; what it does stands elsewhere.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.changes import changes_state
from ottla.cluster.store.workflow import Workflow, contained, run
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Failure, Kind, MetadataStore

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1000
"""Wait before work that nobody waits for is tried again, when the store could not do it."""
MAX_ASKED: Final = 10_000
"""Pieces of work that somebody asked for and that wait; more are refused."""


class _Work(NamedTuple):
    name: str
    script: Callable[[], Workflow[Any]]
    done: Callable[[Any], None] | None


class WorkQueue:
    """Scripts in order of arrival; urgent ones (brokers came or went) before all others."""

    def __init__(
        self,
        store: MetadataStore,
        purgatory: Purgatory,
        later: Callable[[Callable[[], None]], None],
        resign: Callable[[], None],
    ) -> None:
        self._store = store
        self._purgatory = purgatory
        self._later = later
        self._resign = resign
        self._waiting: deque[_Work] = deque()
        self._urgent: deque[_Work] = deque()
        self._noticed: dict[str, None] = {}
        self._running: _Work | None = None
        self._scheduled = False
        self.closed = False

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return self._running is None and not self._waiting and not self._urgent

    def submit_request(self, name: str, script: Callable[[], Workflow[Any]], done: Callable[[Any], None]) -> None:
        """Do what somebody waits for; `done` gets the script's value or an ApiError, in a later turn, exactly once."""
        if self.closed:
            self._later(lambda: done(not_controller()))
        elif len(self._waiting) >= MAX_ASKED:
            self._later(
                lambda: done(ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the controller has too much to do"))
            )
        else:
            self._waiting.append(_Work(name, script, done))
            self._schedule()

    @changes_state
    def notice(self, name: str, script: Callable[[], Workflow[None]], urgent: bool = False) -> None:
        """Do something because the world changed; the same name that waits already is once."""
        if self.closed or name in self._noticed:
            return
        self._noticed[name] = None
        (self._urgent if urgent else self._waiting).append(_Work(name, script, None))
        self._schedule()

    def close(self) -> None:
        """The office is over: whoever waits is told NOT_CONTROLLER; what runs finds out by itself."""
        self.closed = True
        waiting = [*self._urgent, *self._waiting]
        self._urgent.clear()
        self._waiting.clear()
        for work in waiting:
            if work.done is not None:
                self._later(lambda done=work.done: done(not_controller()))  # type: ignore[misc]

    def _schedule(self) -> None:
        """The next piece begins as an effect of this turn, never inside the call that asked for it."""
        if self._running is None and not self._scheduled and (self._urgent or self._waiting):
            self._scheduled = True
            self._later(self._begin_next)

    def _begin_next(self) -> None:
        self._scheduled = False
        queue = self._urgent or self._waiting
        if self._running is not None or not queue:
            return
        work = self._running = queue.popleft()
        if work.done is None:
            self._noticed.pop(work.name, None)
        script = work.script() if work.done is None else contained(work.name, work.script)
        run(self._store, script, lambda outcome: self._on_ended(work, outcome))

    def _on_ended(self, work: _Work, outcome: Any) -> None:
        self._running = None
        if isinstance(outcome, ApiError) and outcome.code is ErrorCode.NOT_CONTROLLER and not self.closed:
            logger.info("%s: %s", work.name, outcome.message)
            self._resign()
        elif isinstance(outcome, Failure) and work.done is None:
            self._on_failed(work, outcome)
        elif isinstance(outcome, ApiError) and work.done is None:
            logger.warning("%s: %s", work.name, outcome)
        if work.done is not None:
            work.done(as_refusal(outcome) if isinstance(outcome, Failure) else outcome)
        self._schedule()

    def _on_failed(self, work: _Work, failure: Failure) -> None:
        if self.closed or failure.kind is Kind.EXPIRED:
            return
        logger.warning("%s could not be done, it will be tried again: %s", work.name, failure)
        self._purgatory.look_after(RETRY_MS, lambda: self.notice(work.name, work.script))


def not_controller() -> ApiError:
    """What is answered when the office was lost."""
    return ApiError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller any more")


def as_refusal(failure: Failure) -> ApiError:
    """What a client is told when the store did not do it."""
    if failure.kind in (Kind.FULL, Kind.IO):
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata could not be written: {failure}")
    if failure.kind is Kind.EXPIRED:
        return not_controller()
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata store did not confirm the change: {failure}")
