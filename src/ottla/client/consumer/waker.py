"""A pair of sockets that wakes a blocked poll from another thread or a signal handler.

Zone: real.
"""

from __future__ import annotations

import contextlib
import select
import socket


class Waker:
    """Any thread may call `wake_up`. The waiting thread polls `fileno` among its descriptors, and calls
    `clear_wakeups`."""

    __slots__ = ("_reader", "_writer")

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def fileno(self) -> int:
        """A descriptor that is readable if `wake_up` was called after the last `clear_wakeups`."""
        return self._reader.fileno()

    def wake_up(self) -> None:
        """Wake the waiting thread. Safe in signal handlers, and after `close_sockets`."""
        with contextlib.suppress(OSError):  # full: already set; closed: no thread waits
            self._writer.send(b"\0")

    def clear_wakeups(self) -> None:
        """Reset it, so that the next wait blocks."""
        # Several wakeups may be in the buffer; all of them count as one.
        with contextlib.suppress(BlockingIOError):
            while self._reader.recv(4096):
                pass

    def wait_for_wakeup(self, timeout_s: float) -> None:
        """Wait until `wake_up`, or for `timeout_s`."""
        poller = select.poll()
        poller.register(self._reader, select.POLLIN)
        poller.poll(min(max(0, -int(-timeout_s * 1000 // 1)), 2**31 - 1))

    def close_sockets(self) -> None:
        """Close the sockets."""
        self._reader.close()
        self._writer.close()
