"""The supervisor's end of the fork server: starts its process, sends orders, receives news.

Zone: real. Lines of JSON (`ottla.server.supervisor.fork_server`); `ottla.server.supervisor.supervisor` interprets the
news.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

_WAIT_S: Final = 5.0
"""Time for the process to end after its socket was closed; after that it is killed."""


class ForkServerClient:
    """One fork server. `on_news` gets each of its lines; `on_lost` is called after it and all its brokers have
    ended."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inherited: Sequence[int],
        on_news: Callable[[Mapping[str, Any]], None],
        on_lost: Callable[[ForkServerClient], None],
    ) -> None:
        """Start the process. `inherited`: descriptors that its brokers inherit."""
        self._loop = loop
        self._on_news = on_news
        self._on_lost = on_lost
        self._received = bytearray()
        self._channel, theirs = socket.socketpair()
        self._channel.setblocking(False)
        with theirs:
            words = [
                sys.executable,
                "-m",
                "ottla.server.supervisor.fork_server",
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            # A process group of its own: the terminal sends Ctrl-C to the supervisor only, which stops the brokers.
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno(), *inherited], process_group=0
            )
        loop.add_reader(self._channel, self._on_readable)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def send_order(self, **words: Any) -> None:
        """Send an order; does nothing when the process has ended."""
        with contextlib.suppress(OSError):
            self._channel.setblocking(True)
            self._channel.sendall(json.dumps(words).encode() + b"\n")
        self._channel.setblocking(False)

    def _on_readable(self) -> None:
        try:
            data = self._channel.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._received += data
        while (end := self._received.find(b"\n")) >= 0:
            news = json.loads(self._received[:end])
            del self._received[: end + 1]
            self._on_news(news)
        if not data:
            self.end_process()
            self._on_lost(self)

    def kill_process(self) -> None:
        """Kill it, and with it all its brokers, at once."""
        self._process.kill()

    def end_process(self) -> None:
        """Close the socket: the process kills its brokers, if any are left, and ends."""
        self._loop.remove_reader(self._channel)
        self._channel.close()
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
