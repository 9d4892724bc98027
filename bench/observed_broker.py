#!/usr/bin/env python3
"""`ottla` that notes when it wakes and when it sends, to measure the part of a latency outside the broker.

    bench/observed_broker.py FILE up --data DIRECTORY …

At SIGUSR2 it writes what it has noted to FILE, a line each: `wake` or `send`, and the time in seconds of the clock that
`time.perf_counter` reads in every process of the machine. Only `bench/run.py` starts it.
"""

from __future__ import annotations

import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ottla.cli.main import main
from ottla.server.connections.response_queue import ResponseQueue
from ottla.server.loop import poller

notes: list[tuple[str, float]] = []


class NotedEpoll:
    """An epoll that notes each return with something ready."""

    def __init__(self) -> None:
        self._epoll = _epoll()

    def poll(self, *arguments: Any) -> list[tuple[int, int]]:
        """Poll, and note the return."""
        events: list[tuple[int, int]] = self._epoll.poll(*arguments)
        if events:
            notes.append(("wake", time.perf_counter()))
        return events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._epoll, name)


def note_sends(opened: Any) -> Any:
    """`ResponseQueue.__init__` of connections that note what they send."""

    def init(self: Any, *arguments: Any) -> None:
        opened(self, *arguments)
        send = self._send

        def noted(data: bytes) -> int:
            notes.append(("send", time.perf_counter()))
            return int(send(data))

        self._send = noted

    return init


def write(path: Path) -> None:
    """Write the notes to the file."""
    path.with_suffix(".tmp").write_text("".join(f"{what} {when!r}\n" for what, when in notes))
    path.with_suffix(".tmp").rename(path)


if __name__ == "__main__":
    _epoll = select.epoll
    poller.select.epoll = NotedEpoll  # type: ignore[misc,assignment]
    ResponseQueue.__init__ = note_sends(ResponseQueue.__init__)  # type: ignore[method-assign]
    target = Path(sys.argv.pop(1))
    signal.signal(signal.SIGUSR2, lambda *_: write(target))
    main()
