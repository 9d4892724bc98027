"""One thread that makes the blocking calls of one client for an asyncio loop.

Zone: real. Calls run one after the other, in the order in which they were handed over. The first call starts the
thread, which is a daemon: a program that ends does not wait for it.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from ottla.client.errors import UsageError

R = TypeVar("R")


class Job(Generic[R]):
    """A call, and the future of its result."""

    __slots__ = ("_call", "_future", "_loop")

    def __init__(self, call: Callable[[], R], loop: asyncio.AbstractEventLoop) -> None:
        self._call = call
        self._loop = loop
        self._future: asyncio.Future[R] = loop.create_future()

    @property
    def future(self) -> asyncio.Future[R]:
        """The future of the result, for the loop's thread."""
        return self._future

    def run_call(self) -> None:
        """Make the call, in the worker's thread, and post the result to the loop."""
        try:
            result = self._call()
        except BaseException as error:  # noqa: BLE001  it is raised where the result is awaited
            self._post_outcome(self._set_exception, error)
        else:
            self._post_outcome(self._set_result, result)

    def _post_outcome(self, tell: Callable[[Any], None], outcome: object) -> None:
        # The loop may be closed when a program ends: the result is lost then.
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(tell, outcome)

    def _set_result(self, result: R) -> None:
        if not self._future.done():
            self._future.set_result(result)

    def _set_exception(self, error: BaseException) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class Worker:
    """The thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: queue.SimpleQueue[Job[Any] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    def hand_over(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Queue a call; returns its future. Cancelling it does not stop the call. UsageError: closed, or other loop."""
        loop = asyncio.get_running_loop()
        if self._closed:
            raise UsageError("this client is closed", "Make a new one")
        if self._loop is None:
            self._loop = loop
            self._thread = threading.Thread(target=self._serve_calls, name=self._name, daemon=True)
            self._thread.start()
        elif self._loop is not loop:
            raise other_loop()
        job = Job(call, loop)
        self._jobs.put(job)
        return job.future

    async def finish_call(self, call: Callable[[], R]) -> R:
        """Make a call and wait for it; a cancellation takes effect when the call has ended."""
        return await finish_future(self.hand_over(call))

    def ask_loop(self, make: Callable[[], Awaitable[None]]) -> None:
        """In a call of this thread: run a coroutine in the loop and wait for it. Other calls run meanwhile.

        Raises what the coroutine raises.
        """
        assert self._loop is not None
        outcome: list[BaseException | None] = []
        over = Job(lambda: None, self._loop)

        async def run() -> None:
            try:
                await make()
            except BaseException as error:  # noqa: BLE001  raised below, in the worker's thread
                outcome.append(error)
            else:
                outcome.append(None)
            self._jobs.put(over)

        running = asyncio.run_coroutine_threadsafe(run(), self._loop)
        # The coroutine may await calls of this client, so the queue is served until `over` comes out of it.
        while (job := self._jobs.get()) is not over and job is not None:
            job.run_call()
        if job is None:  # closed during the call: put the end mark back for `_serve_calls`
            running.cancel()
            self._jobs.put(None)
            return
        if outcome[0] is not None:
            raise outcome[0]

    def end_thread(self) -> None:
        """End the thread after the calls handed over so far. Idempotent."""
        if not self._closed:
            self._closed = True
            self._jobs.put(None)

    def _serve_calls(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run_call()


def other_loop() -> UsageError:
    """The error for a client that is used in two loops."""
    return UsageError("this client belongs to another event loop", "Make one per loop")


async def finish_future(future: asyncio.Future[R]) -> R:
    """The result of `future`; a cancellation is raised only when the result is there, in its place."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.cancelled() or future.exception()  # marks the exception as retrieved
        raise cancelled
    return future.result()
