"""Connections that have more requests than one turn takes: in which order they go on.

Zone: real. How much one turn takes is `ottla.server.connection`'s. Between two passes the loop polls its sockets, so a
request that comes meanwhile waits for one pass at most, however many connections have a backlog.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

SHARE_NS: Final = 2_000_000
"""Time of one connection before the others get their turn."""

_now = time.monotonic_ns


class Resumable(Protocol):
    """A connection that keeps requests which have not started."""

    def resume(self, until: int) -> None:
        """Start them, at least one, and no more after `until` (monotonic, ns)."""
        ...


class Shares:
    """Two queues: of connections that had to wait, and of those that have used up a share."""

    __slots__ = ("_finish", "_late", "_loop", "_planned", "_soon", "share_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, finish: Callable[[], None]) -> None:
        """finish: called at the end of each pass."""
        self.share_ns = SHARE_NS
        self._loop = loop
        self._finish = finish
        self._soon: deque[Resumable] = deque()
        self._late: deque[Resumable] = deque()
        self._planned = False

    def resume_later(self, connection: Resumable, late: bool) -> None:
        """Let a connection go on after the sockets were polled. late: it has used up a share."""
        (self._late if late else self._soon).append(connection)
        self._plan()

    def _plan(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._run_pass)

    def _run_pass(self) -> None:
        """One share for all that had to wait, and one for the first of those that have used up theirs."""
        self._planned = False
        late = self._late.popleft() if self._late else None
        until = _now() + self.share_ns
        for _ in range(len(self._soon)):
            self._soon.popleft().resume(until)
            if _now() >= until:
                break
        if late is not None:
            late.resume(_now() + self.share_ns)
        self._finish()
        if self._soon or self._late:
            self._plan()
