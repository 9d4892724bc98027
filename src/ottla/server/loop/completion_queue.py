"""Delivers completions to the broker as turns: one at a time, on the loop.

Zone: real. Owns the thread pool and the order of completions. An exception that escapes a turn is a defect: the loop's
exception handler stops the broker (`ottla.server.service`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ottla.seams import Done, Failure
from ottla.server.loop.clock import RealClock
from ottla.server.os_errors import failure_of

T = TypeVar("T")


def _do_nothing() -> None:
    """The end of a turn until a broker is connected."""


THREADS = 8
"""Blocking calls at a time, per log directory: the fsyncs of several files overlap, and a device that hangs blocks
only the threads of its own directory."""


class CompletionQueue:
    """Runs completions as turns on one loop, and blocking work in threads."""

    __slots__ = ("_branches", "_end_turn", "_loop", "_pool", "clock")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: RealClock | None = None, threads: int = THREADS) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="ottla-work")
        self._end_turn: Callable[[], None] = _do_nothing
        self.clock = RealClock(loop) if clock is None else clock
        self._branches: list[CompletionQueue] = []

    def add_branch(self, threads: int = THREADS) -> CompletionQueue:
        """A queue for one more device: the same turns, but threads of its own, which no other device can block."""
        branch = CompletionQueue(self._loop, self.clock, threads)
        branch.set_end_turn(self._end_turn)
        self._branches.append(branch)
        return branch

    def set_end_turn(self, end_turn: Callable[[], None]) -> None:
        """Set the function that is called after every completion (`Inputs.end_turn`)."""
        self._end_turn = end_turn
        for branch in self._branches:
            branch.set_end_turn(end_turn)

    def run_soon(self, done: Done[T], value: T | Failure) -> None:
        """Pass `value` to `done` in a turn of its own, after the turns that were queued before."""
        self._loop.call_soon(self._run_turn, done, value)

    def run_now(self, done: Done[T], value: T) -> None:
        """Pass `value` to `done` now, as a turn; only for callers that the loop calls outside of a turn."""
        self._run_turn(done, value)

    def run_from_thread(self, done: Done[T], value: T) -> None:
        """Pass `value` to `done` in a turn of its own; may be called from any thread, whose calls keep their order."""
        try:
            self._loop.call_soon_threadsafe(self._run_turn, done, value)
        except RuntimeError:  # the loop is closed: no turn will run any more
            return

    def run_in_thread(self, work: Callable[[], T], then: Callable[[T | Failure], None]) -> Future[None]:
        """Run `work` in a thread; `then` gets its result, or the Failure for its OSError, in a turn.

        The returned future is done when that turn has been queued.
        """
        return self._pool.submit(self._run_work, work, then)

    def stop_threads(self) -> None:
        """Wait for the work that runs in threads, then end the threads."""
        for branch in self._branches:
            branch.stop_threads()
        self._pool.shutdown(wait=True)

    def _run_turn(self, done: Done[T], value: T | Failure) -> None:
        self.clock.instant = None
        done(value)
        self._end_turn()

    def _run_work(self, work: Callable[[], T], then: Callable[[T | Failure], None]) -> None:
        self.run_from_thread(then, _outcome_of(work))


def _outcome_of(work: Callable[[], T]) -> T | Failure:
    try:
        return work()
    except OSError as error:
        return failure_of(error)
    except Failure as failure:
        return failure.as_value()


class SerialExecutor:
    """Runs blocking work one at a time, in the order of `submit_work`; completions keep that order."""

    __slots__ = ("_asked_for", "_queue", "_running", "_turns")

    def __init__(self, turns: CompletionQueue) -> None:
        self._turns = turns
        self._asked_for: Future[None] | None = None
        self._queue: deque[tuple[Callable[[], object], Callable[[Failure | None], None]]] = deque()
        self._running = False

    @property
    def is_idle(self) -> bool:
        """Whether no work runs or waits."""
        return not self._running

    def submit_work(self, work: Callable[[], object], then: Callable[[Failure | None], None]) -> None:
        """Queue `work`; `then` gets None or the Failure in a turn."""
        self._queue.append((work, then))
        if not self._running:
            self._start_next()

    def finish_all(self) -> None:
        """Do all submitted work before returning; the completions still come in their turns."""
        # The thread that runs one piece of work must end first; the rest is done in the calling thread, in order.
        if self._running and self._asked_for is not None:
            # The future is done when the turn of its completion is queued: so the completions queued below come after
            # it.
            self._asked_for.result()
        while self._queue:
            work, then = self._queue.popleft()
            outcome = _outcome_of(work)
            self._turns.run_soon(then, outcome if isinstance(outcome, Failure) else None)

    def _start_next(self) -> None:
        self._running = True
        work, then = self._queue.popleft()

        def finished(outcome: object) -> None:
            self._running = False
            # The next work is submitted before the turn of this one, so that the device is not idle meanwhile.
            if self._queue:
                self._start_next()
            then(outcome if isinstance(outcome, Failure) else None)

        self._asked_for = self._turns.run_in_thread(work, finished)
