"""The producer's sender, driven by an asyncio loop instead of a thread.

Zone: real. The sender's selector is itself a file descriptor (epoll, kqueue), which the loop watches like any socket.
When it is readable, a timer fires or the producer wakes the sender, the loop runs one round, which does not wait. So
the core and users' callbacks run in the loop's thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from ottla.client.errors import ClientError
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.core import ProducerCore
from ottla.client.producer.futures import ProducerLock, seconds_left
from ottla.client.producer.network.sender import Sender, closed_early_error, defect_error


class LoopSender(Sender):
    """Runs from `start_in_loop` until it is finished and all batches are decided. All methods run in the loop's
    thread."""

    def __init__(
        self,
        core: ProducerCore,
        shared: ProducerLock,
        on_failed: Callable[[ProducerBatch], None] | None,
        after_round: Callable[[], None],
    ) -> None:
        """after_round: called in the loop after every round, also the last one."""
        super().__init__(core, shared, on_failed)
        self._after_round = after_round
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._has_digested = False
        """Whether the last round ended after it passed on the responses (see `_run_loop_round`)."""
        self.is_over = False
        """Whether the last round has run."""

    def start_in_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        """Watch the selector and run the first round. Called in the loop's thread."""
        self._loop = loop
        self._shared.owner = threading.get_ident()
        loop.add_reader(_selector_fileno(self._selector), self._run_loop_round)
        self._run_loop_round()

    def wake_sender(self) -> None:
        """As `Sender.wake_sender`; in the loop's thread it schedules a round instead of writing to the socket."""
        if self._loop is None or threading.get_ident() != self._shared.owner:
            super().wake_sender()
        elif self.asleep:
            self.asleep = False
            self._loop.call_soon(self._run_loop_round)

    def _run_loop_round(self) -> None:
        if self.is_over:
            return
        assert self._loop is not None
        try:
            self.wait_for_events(0.0)
            if not self._has_digested and self.digest_events():
                # Tasks whose futures are done run before the round prepares new requests: what they send next can be
                # part of these requests. The rest of the round is scheduled right after them.
                self._has_digested = True
                self._loop.call_soon(self._run_loop_round)
                return
            self._has_digested = False
            pause = self.run_round()
        except Exception as failure:  # noqa: BLE001  a defect of ours: fail all batches, so that no task waits for ever
            self._finish_sending(defect_error(failure))
            return
        if pause is None:
            self._finish_sending(closed_early_error())
            return
        self._schedule_round(pause)
        self._after_round()

    def _schedule_round(self, pause: float) -> None:
        assert self._loop is not None
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(pause, self._run_loop_round)

    def _finish_sending(self, error: ClientError) -> None:
        assert self._loop is not None
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(_selector_fileno(self._selector))
        self.end_sending(error)
        self._after_round()


class RoundWaiters:
    """Tasks that wait for something that a round may bring: each checks its condition after every round."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def after_round(self) -> None:
        """Have all waiting tasks check their conditions."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until(self, holds: Callable[[], bool], until: float | None) -> bool:
        """Wait until `holds()` is true. False: the monotonic clock reached `until` first."""
        while not holds():
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            try:
                async with asyncio.timeout(None if until is None else seconds_left(until)):
                    await waiter
            except TimeoutError:
                return holds()
        return True

    async def wait_for_batch(self, batch: ProducerBatch, until: float | None) -> bool:
        """As `wait_until`, for the end of a batch."""
        return await self.wait_until(lambda: batch.is_decided, until)


def _selector_fileno(selector: Any) -> int:
    """The descriptor of the selector: every kind but the oldest (select) has one."""
    number: int = selector.fileno()
    return number
