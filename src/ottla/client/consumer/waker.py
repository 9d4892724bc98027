"""A pair of sockets by which threads and signal handlers end somebody's waiting.

Zone: real.
"""

from __future__ import annotations

import contextlib
import select
import socket


class Waker:
    """`set` from anywhere; whoever waits has `fileno` among what it waits for, and calls `clear`."""

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """Readable when somebody has called `set` since `clear`."""
        return self._reader.fileno()

    def set(self) -> None:
        """End the waiting. Safe in signal handlers, and after `close`."""
        with contextlib.suppress(OSError):  # full: it is set; closed: nobody waits
            self._writer.send(b"\0")

    def clear(self) -> None:
        """Wait again."""
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def wait(self, timeout_s: float) -> None:
        """Wait until `set`, or for `timeout_s`."""
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        poller.poll(min(max(0, -int(-timeout_s * 1000 // 1)), 2**31 - 1))

    def close(self) -> None:
        """Give the sockets back."""
        self._reader.close()
        self._writer.close()
