"""Turns: how completions come back to the broker, one at a time, on the loop.

Zone: real. The thread pool and the order of completions live here. What escapes a turn is a programmer error: it goes
to the loop's exception handler, which stops the broker (`ottla.server.shell`).
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
    """Stands for the broker until one is connected."""


THREADS = 8
"""Blocking calls at a time, per log directory: fsyncs of several files overlap, and a device that hangs with all of
them holds up no other."""


class CompletionQueue:
    """Runs completions as turns on one loop, and blocking work in threads."""

    __slots__ = ("_branches", "_end_turn", "_loop", "_pool", "clock")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: RealClock | None = None) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="ottla-disk")
        self._end_turn: Callable[[], None] = _do_nothing
        self.clock = RealClock(loop) if clock is None else clock
        self._branches: list[CompletionQueue] = []

    def branch(self) -> CompletionQueue:
        """The same turns with threads of their own: who waits there waits for nobody else's device."""
        branch = CompletionQueue(self._loop, self.clock)
        branch.connect(self._end_turn)
        self._branches.append(branch)
        return branch

    def connect(self, end_turn: Callable[[], None]) -> None:
        """Name what follows every completion (`Inputs.end_turn`)."""
        self._end_turn = end_turn
        for branch in self._branches:
            branch.connect(end_turn)

    def soon(self, done: Done[T], value: T | Failure) -> None:
        """Give `value` to `done` in a turn of its own, after those that were asked for earlier."""
        self._loop.call_soon(self._turn, done, value)

    def run(self, done: Done[T], value: T) -> None:
        """Give `value` to `done` now, as a turn; only for whoever the loop calls outside any turn."""
        self._turn(done, value)

    def from_thread(self, done: Done[T], value: T) -> None:
        """Give `value` to `done` in a turn of its own; from any thread, in the order of that thread's calls."""
        try:
            self._loop.call_soon_threadsafe(self._turn, done, value)
        except RuntimeError:  # the loop was closed by a second signal: nobody waits any more
            return

    def off_loop(self, work: Callable[[], T], then: Callable[[T | Failure], None]) -> Future[None]:
        """Run `work` in a thread; `then` gets its result, or the Failure its OSError means, in a turn.

        What is returned is done when that turn has been asked for.
        """
        return self._pool.submit(self._work, work, then)

    def stop(self) -> None:
        """Wait for what runs in threads, and let them go."""
        for branch in self._branches:
            branch.stop()
        self._pool.shutdown(wait=True)

    def _turn(self, done: Done[T], value: T | Failure) -> None:
        self.clock.instant = None
        done(value)
        self._end_turn()

    def _work(self, work: Callable[[], T], then: Callable[[T | Failure], None]) -> None:
        self.from_thread(then, _outcome_of(work))


def _outcome_of(work: Callable[[], T]) -> T | Failure:
    try:
        return work()
    except OSError as error:
        return failure_of(error)
    except Failure as failure:
        return failure.as_value()


class SerialExecutor:
    """Blocking work in order: one at a time, completions in the order of the requests."""

    __slots__ = ("_asked_for", "_queue", "_running", "_turns")

    def __init__(self, turns: CompletionQueue) -> None:
        self._turns = turns
        self._asked_for: Future[None] | None = None
        self._queue: deque[tuple[Callable[[], object], Callable[[Failure | None], None]]] = deque()
        self._running = False

    @property
    def idle(self) -> bool:
        """Whether nothing runs or waits."""
        return not self._running

    def submit(self, work: Callable[[], object], then: Callable[[Failure | None], None]) -> None:
        """Queue `work`; `then` gets None or the Failure in a turn."""
        self._queue.append((work, then))
        if not self._running:
            self._next()

    def wait(self) -> None:
        """Come to the end of all that was submitted, here and now; completions follow in their turns, as ever."""
        if self._running and self._asked_for is not None:
            self._asked_for.result()
        while self._queue:
            work, then = self._queue.popleft()
            outcome = _outcome_of(work)
            self._turns.soon(then, outcome if isinstance(outcome, Failure) else None)

    def _next(self) -> None:
        self._running = True
        work, then = self._queue.popleft()

        def finished(outcome: object) -> None:
            self._running = False
            if self._queue:
                self._next()
            then(outcome if isinstance(outcome, Failure) else None)

        self._asked_for = self._turns.off_loop(work, finished)
