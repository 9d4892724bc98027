"""Tasks of an asyncio producer that wait for something that a round of the sender may bring.

Zone: real. All methods run in the loop's thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.futures import seconds_left


class RoundWaiters:
    """Each waiting task checks its condition after every round."""

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
