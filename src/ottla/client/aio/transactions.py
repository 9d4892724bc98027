"""The transaction context of the asyncio producer.

Zone: real.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Generic, Protocol, TypeVar

from ottla.client.errors import ClientError


class _TransactionalProducer(Protocol):
    """A producer whose transactions are begun and ended one after the other."""

    @property
    def in_transaction(self) -> bool: ...

    async def begin_transaction(self) -> None: ...

    async def commit_transaction(self) -> None: ...

    async def abort_transaction(self) -> None: ...


P = TypeVar("P", bound=_TransactionalProducer)


class AsyncTransactionContext(Generic[P]):
    """A transaction for `async with`."""

    def __init__(self, producer: P) -> None:
        self._producer = producer

    async def __aenter__(self) -> P:
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
