"""The controller's work queue. One workflow runs at a time, so each knows what the one before decided.

Zone: deterministic. Only the order of the work and its failures; the workflows come from the other modules.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ottla.changes import changes_state
from ottla.cluster.store.workflow import Workflow, contain_defects, run_workflow
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import Purgatory
from ottla.seams import Failure, Kind, MetadataStore

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1000
"""Delay before work without a requester is repeated after the store failed."""
MAX_ASKED: Final = 10_000
"""Limit of waiting requests; more are refused."""


class _Work(NamedTuple):
    name: str
    script: Callable[[], Workflow[Any]]
    done: Callable[[Any], None] | None


class WorkQueue:
    """Workflows in order of arrival; urgent ones (changes of brokers) before all others."""

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
    def is_idle(self) -> bool:
        """Whether no work runs or waits."""
        return self._running is None and not self._waiting and not self._urgent

    def submit_request(self, name: str, script: Callable[[], Workflow[Any]], done: Callable[[Any], None]) -> None:
        """Queue a request. `done` receives its value or an ApiError, in a later turn, exactly once."""
        if self.closed:
            self._later(lambda: done(not_controller_error()))
        elif len(self._waiting) >= MAX_ASKED:
            self._later(
                lambda: done(
                    ApiError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "the controller's queue is full; try again later")
                )
            )
        else:
            self._waiting.append(_Work(name, script, done))
            self._schedule_next()

    @changes_state
    def submit_change(self, name: str, script: Callable[[], Workflow[None]], urgent: bool = False) -> None:
        """Queue a reaction to a change, unless work of the same name is already waiting."""
        if self.closed or name in self._noticed:
            return
        self._noticed[name] = None
        (self._urgent if urgent else self._waiting).append(_Work(name, script, None))
        self._schedule_next()

    def close_queue(self) -> None:
        """Answer all waiting requests NOT_CONTROLLER at the end of the term. Running work fails at its next step."""
        self.closed = True
        waiting = [*self._urgent, *self._waiting]
        self._urgent.clear()
        self._waiting.clear()
        for work in waiting:
            if work.done is not None:
                self._later(lambda done=work.done: done(not_controller_error()))  # type: ignore[misc]

    def _schedule_next(self) -> None:
        """Start the next work as an effect of this turn, never inside the call that queued it."""
        if self._running is None and not self._scheduled and (self._urgent or self._waiting):
            self._scheduled = True
            self._later(self._begin_next)

    def _begin_next(self) -> None:
        self._scheduled = False
        queue = self._urgent or self._waiting
        if self._running is not None or not queue:
            return
        work = self._running = queue.popleft()
        # A change that arrives while this work runs must be queued again: the work may have read too early for it.
        if work.done is None:
            self._noticed.pop(work.name, None)
        script = work.script() if work.done is None else contain_defects(work.name, work.script)
        run_workflow(self._store, script, lambda outcome: self._on_ended(work, outcome))

    def _on_ended(self, work: _Work, outcome: Any) -> None:
        self._running = None
        # 1. The epoch check failed: the term is over. 2. The store failed, and no request waits: repeat the work later.
        # 3. An error of work without a request is only logged; requests receive theirs below.
        if isinstance(outcome, ApiError) and outcome.code is ErrorCode.NOT_CONTROLLER and not self.closed:
            logger.info("controller: %s: %s; ending the term", work.name, outcome.message)
            self._resign()
        elif isinstance(outcome, Failure) and work.done is None:
            self._on_failed(work, outcome)
        elif isinstance(outcome, ApiError) and work.done is None:
            logger.warning("controller: %s failed: %s", work.name, outcome)
        if work.done is not None:
            work.done(client_error_of(outcome) if isinstance(outcome, Failure) else outcome)
        self._schedule_next()

    def _on_failed(self, work: _Work, failure: Failure) -> None:
        if self.closed or failure.kind is Kind.EXPIRED:
            return
        logger.warning("controller: %s failed: %s; retrying", work.name, failure)
        self._purgatory.look_after(RETRY_MS, lambda: self.submit_change(work.name, work.script))


def not_controller_error() -> ApiError:
    """The error for requests whose term ended before they were answered."""
    return ApiError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller any more")


def client_error_of(failure: Failure) -> ApiError:
    """The error for a client whose change the store did not confirm."""
    if failure.kind in (Kind.FULL, Kind.IO):
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the metadata could not be written: {failure}")
    if failure.kind is Kind.EXPIRED:
        return not_controller_error()
    return ApiError(ErrorCode.REQUEST_TIMED_OUT, f"the metadata store did not confirm the change: {failure}")
