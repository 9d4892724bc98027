"""The thread of an asyncio consumer: calls of the blocking consumer, and polls that a task may abandon.

Zone: real. The blocking consumer is for one thread at a time, so the calls of all tasks run one after the other. A poll
that waits for records is ended for another call, and repeated after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from ottla.client.aio.worker import Worker
from ottla.client.consumer import Consumer as BlockingConsumer
from ottla.client.consumer import ConsumerRecord
from ottla.client.consumer.prefetched_records import PrefetchedRecords, first_of
from ottla.client.errors import UsageError, WakeupError
from ottla.types import TopicPartition

if TYPE_CHECKING:
    import pyarrow as pa

R = TypeVar("R")
OnPartitions = Callable[[list[TopicPartition]], Awaitable[None] | None]
"""A function or a coroutine function that runs in the loop."""
SLICE_S: Final = 1.0
"""How long the thread polls at most in one call: each call shows the group that the application is alive."""


class ConsumerThread:
    """One blocking consumer and the thread that uses it. Methods run in the loop, those "in the thread" in its own."""

    def __init__(self, blocking: BlockingConsumer) -> None:
        self._blocking = blocking
        self.worker = Worker("ottla-consumer")
        self.ahead = PrefetchedRecords()
        """Records that an iteration has not reached."""
        self._busy = False
        """Whether the worker has a poll that is not finished."""
        self._woken = False

    def request_wakeup(self) -> None:
        """Have the waiting call raise WakeupError, or the next one that waits. For any thread or signal handler."""
        self._woken = True
        self._blocking.wakeup()

    def start_call(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Give the worker a call, and wake a waiting poll so that the call need not wait for it."""
        future = self.worker.hand_over(lambda: self._run_despite_wakeups(call))
        if self._busy:
            self._blocking.wakeup()
        return future

    async def run_call(self, call: Callable[[], R]) -> R:
        """Make a call, also while another task waits for records."""
        return await self.start_call(call)

    async def give_back_and_run(self, call: Callable[[], R]) -> R:
        """Make a call that changes what is read next, after giving back the records that an iteration did not reach."""
        self.give_back_records()
        return await self.start_call(call)

    def _run_despite_wakeups(self, call: Callable[[], R]) -> R:
        """In the thread: make a call, and repeat it after a wakeup that `start_call` meant for a poll."""
        while True:
            try:
                return call()
            except WakeupError:
                # `wakeup` of the blocking consumer has two uses: that of the user, which raises here, and that of
                # `start_call`, which ended a poll already and must not end this call.
                self.raise_if_woken()

    def raise_if_woken(self) -> None:
        """In the thread: raise WakeupError once after each `request_wakeup`."""
        if self._woken:
            self._woken = False
            raise WakeupError("wakeup was called", "Close the consumer, or continue polling")

    async def poll_until(
        self, timeout_s: float, read: Callable[[float], R], give_back: Callable[[R], None], nothing: Callable[[], R]
    ) -> R:
        """Repeat `read` until it finds something or the time is over; other calls run between the repetitions."""
        until = time.monotonic() + timeout_s
        while True:
            poll = _Poll(self, read, give_back, nothing, until)
            self._busy = True
            try:
                found = await self.worker.hand_over(poll.read_once)
            except asyncio.CancelledError:
                # The thread may have records already. `abandon_read` gives them back, so that no record is lost.
                self._blocking.wakeup()
                poll.abandon_read()
                raise
            finally:
                self._busy = False
            if len(found) or time.monotonic() >= until:  # type: ignore[arg-type]  # a list or a table
                return found

    def give_back_records(self) -> None:
        """Set the positions back to the records that an iteration did not reach."""
        left = self.ahead.take_all()
        if left:
            self.worker.hand_over(lambda: self.rewind_records(left))

    def rewind_records(self, records: list[ConsumerRecord]) -> None:
        """In the thread: continue from the first of these records in each partition."""
        self._seek_back(first_of(records))

    def rewind_table(self, table: pa.Table) -> None:
        """In the thread: continue from the first of these rows in each partition."""
        first: dict[TopicPartition, int] = {}
        columns = (table.column(name).to_pylist() for name in ("topic", "partition", "offset"))
        for topic, partition, offset in zip(*columns, strict=True):
            first.setdefault(TopicPartition(topic, partition), offset)
        self._seek_back(first)

    def _seek_back(self, first: Mapping[TopicPartition, int]) -> None:
        assigned = self._blocking.assignment()
        for tp, offset in first.items():
            # A rebalance may have taken the partition meanwhile: its next owner begins at the committed position.
            if tp in assigned:
                self._blocking.seek(tp, offset)


class RebalanceCallbacks:
    """The application's callbacks of rebalances, which run in the loop while the thread waits for them."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._running: asyncio.Task[None] | None = None
        """The task that runs a callback, which must not call `poll`, `unsubscribe` or `close`."""

    def in_loop(self, callback: OnPartitions | None) -> Callable[[list[TopicPartition]], None] | None:
        """A callback for the blocking consumer that runs this one in the loop, and waits for it."""
        if callback is None:
            return None
        call: OnPartitions = callback

        async def call_back(partitions: list[TopicPartition]) -> None:
            self._running = asyncio.current_task()
            try:
                result = call(partitions)
                if inspect.isawaitable(result):
                    await result
            finally:
                self._running = None

        return lambda partitions: self._worker.ask_loop(lambda: call_back(partitions))

    def check_outside(self, what: str) -> None:
        """Raise UsageError in a callback: `what` would wait for the end of it."""
        if self._running is not None and asyncio.current_task() is self._running:
            raise UsageError(
                f"{what} in a callback of a rebalance would wait for itself", "Call it outside the callback"
            )


class _Poll(Generic[R]):
    """One read in the consumer's thread, which the awaiting task may abandon."""

    def __init__(
        self,
        thread: ConsumerThread,
        read: Callable[[float], R],
        give_back: Callable[[R], None],
        nothing: Callable[[], R],
        until: float,
    ) -> None:
        self._thread = thread
        self._read = read
        self._give_back = give_back
        self._nothing = nothing
        self._until = until
        self._lock = threading.Lock()
        self._found: R | None = None
        self._abandoned = threading.Event()

    def read_once(self) -> R:
        """In the thread: read, and give the records back if the read was abandoned."""
        if self._abandoned.is_set():
            return self._nothing()
        try:
            found = self._read(min(SLICE_S, max(0.0, self._until - time.monotonic())))
        except WakeupError:
            self._thread.raise_if_woken()
            return self._nothing()
        # The lock orders this against `abandon_read`: exactly one of the two sees both the records and the flag,
        # and gives the records back.
        with self._lock:
            self._found = found
            abandoned = self._abandoned.is_set()
        if abandoned:
            self._give_back(found)
        return found

    def abandon_read(self) -> None:
        """In the loop: the task that asked does not take the result."""
        with self._lock:
            self._abandoned.set()
            found = self._found
        if found is not None:
            give_back = self._give_back
            with contextlib.suppress(UsageError):  # closed meanwhile: there are no positions any more
                self._thread.worker.hand_over(lambda: give_back(found))
