"""The transaction context of the asyncio producer.

Zone: real.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING

from ottla.client.errors import ClientError

if TYPE_CHECKING:
    from ottla.client.aio.producer import Producer


class AsyncTransactionContext:
    """A transaction for `async with`."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    async def __aenter__(self) -> Producer:
        try:
            await self._producer.begin_transaction()
        except asyncio.CancelledError as error:
            await self._abort_if_open(error)
            raise
        return self._producer

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            await self._abort_if_open(error)
            return
        try:
            await self._producer.commit_transaction()
        except (ClientError, asyncio.CancelledError) as failure:
            await self._abort_if_open(failure)
            raise

    async def _abort_if_open(self, error: BaseException) -> None:
        """Abort, unless a commit has begun: one that ran out of time may have succeeded."""
        if not self._producer.in_transaction:
            return
        try:
            await self._producer.abort_transaction()
        except ClientError as failure:
            error.add_note(f"the transaction could not be aborted: {failure}")
