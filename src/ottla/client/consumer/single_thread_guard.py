"""Guards a consumer against calls from two threads, from a forked process, and after `close`.

Zone: real.
"""

from __future__ import annotations

import os
import threading
from types import TracebackType

from ottla.client.errors import UsageError


class SingleThreadGuard:
    """A context manager around every call; calls of the same thread may nest (callbacks)."""

    __slots__ = ("_depth", "_owner", "_process", "closed")

    def __init__(self) -> None:
        self.closed = False
        self._process = os.getpid()
        self._owner = 0
        self._depth = 0

    def __enter__(self) -> None:
        """Enter a call. Raises UsageError."""
        if os.getpid() != self._process:
            raise UsageError("this consumer was made before the process forked", "Make a new one in the child process")
        if self.closed:
            raise UsageError("this consumer is closed", "Make a new one")
        me = threading.get_ident()
        if self._owner not in (0, me):
            raise UsageError(
                "another thread is using this consumer",
                "Use one consumer per thread; only wakeup may be called by other threads",
            )
        self._owner = me
        self._depth += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth:
            self._owner = 0
