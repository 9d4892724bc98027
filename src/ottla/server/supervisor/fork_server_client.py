"""The supervisor's end of the nursery: its process, orders to it, news from it.

Zone: real. Lines of JSON (`ottla.server.supervisor.fork_server`); what news mean is
`ottla.server.supervisor.supervisor`'s.
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
"""For a process that has nothing more to do."""


class ForkServerClient:
    """One nursery. `on_news` gets each of its lines; `on_lost` follows when it and all its brokers are gone."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        inherited: Sequence[int],
        on_news: Callable[[Mapping[str, Any]], None],
        on_lost: Callable[[ForkServerClient], None],
    ) -> None:
        """Start the process. `inherited`: descriptors that brokers get."""
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
            # A group of its own: Ctrl-C in the terminal is for the supervisor, which then stops the brokers in order.
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno(), *inherited], process_group=0
            )
        loop.add_reader(self._channel, self._on_readable)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def order(self, **words: Any) -> None:
        """Tell it to do something; nothing happens when it is gone."""
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
            self.close()
            self._on_lost(self)

    def kill(self) -> None:
        """End it and all its brokers at once."""
        self._process.kill()

    def close(self) -> None:
        """Let it go: it ends, and so does whoever it looked after."""
        self._loop.remove_reader(self._channel)
        self._channel.close()
        try:
            self._process.wait(_WAIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
