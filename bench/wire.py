"""A small client of the wire protocol: one request at a time on a connection, thousands of connections at once.

What it does to a broker is written as *scripts*: generators that yield `(request, version)` and get the response, or
yield seconds and get None when these have passed. A script that ends with a `return` hands that value to `Crowd.run`.
"""

from __future__ import annotations

import heapq
import itertools
import resource
import select
import socket
import struct
import time
from collections.abc import Callable, Generator, Iterable
from typing import Any

from testbench.apache_kafka.packages import BenchError
from testbench.ports import HOST

from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.schema import Message

Script = Generator[Any, Any, Any]
"""Yields (request message, version) or seconds; gets the response message, or None."""
Taker = Callable[[bytes], None]
"""Gets the frame of an answer, header included."""

RECEIVE = 256 * 1024
_size_at = struct.Struct(">i").unpack_from


def frame_of(request: Message, version: int) -> bytes:
    """A whole request with its length prefix."""
    frame = encode_request_header(request.API_KEY, version, 7, "bench") + encode_bytes(request, version)
    return struct.pack(">i", len(frame)) + frame


def answer_of(request: Message, version: int, frame: bytes) -> Any:
    """The response message in a frame."""
    key = request.API_KEY
    message, _ = decode(API_TABLE[key].response, version, frame, response_body_pos(key, version, frame))
    return message


def allow_connections(count: int) -> None:
    """Raise the limit of open files to that number. Raises BenchError when the system refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 200
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            raise BenchError(f"this needs {wanted} open files; `ulimit -Hn` is {hard}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class Connection:
    """One connection of a crowd, with at most one request in flight."""

    __slots__ = ("_kept", "fd", "sock", "taker")

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection((HOST, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setblocking(False)
        self.fd = self.sock.fileno()
        self.taker: Taker | None = None
        self._kept = b""

    @property
    def busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self.taker is not None

    def send(self, frame: bytes, taker: Taker) -> None:
        """Send a whole request, with its length prefix; `taker` gets the answer."""
        assert self.taker is None, "one request at a time"
        self.taker = taker
        sent = self.sock.send(frame)
        assert sent == len(frame), "a frame that a socket does not take at once is too large for this client"

    def on_readable(self) -> None:
        """Handle received bytes. Raises BenchError when the broker has closed the connection."""
        data = self.sock.recv(RECEIVE)
        if not data:
            raise BenchError("the broker closed a connection")
        if self._kept:
            data = self._kept + data
        if len(data) < 4 or len(data) - 4 < _size_at(data)[0]:
            self._kept = data
            return
        self._kept = b""
        taker, self.taker = self.taker, None
        assert taker is not None, "an answer without a request"
        taker(data[4:])


class Crowd:
    """Connections of one process, driven by one epoll."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._connections: dict[int, Connection] = {}
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    def connect(self, port: int) -> Connection:
        """Open one more connection."""
        connection = Connection(port)
        self._connections[connection.fd] = connection
        self._epoll.register(connection.fd, select.EPOLLIN)
        return connection

    def close(self) -> None:
        """Close all."""
        for connection in self._connections.values():
            connection.sock.close()
        self._connections.clear()
        self._timers.clear()
        self._epoll.close()

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Schedule an action at a time of `time.perf_counter`."""
        heapq.heappush(self._timers, (when, next(self._numbers), action))

    def turn(self, longest_s: float) -> None:
        """Wait for answers or for the next timer, and handle them."""
        timers = self._timers
        if timers:
            longest_s = min(longest_s, timers[0][0] - time.perf_counter())
        for fd, _ in self._epoll.poll(max(0.0, longest_s), 1024):
            connection = self._connections.get(fd)
            if connection is not None:
                connection.on_readable()
        now = time.perf_counter()
        while timers and timers[0][0] <= now:
            heapq.heappop(timers)[2]()

    def wait(self, done: Callable[[], bool], longest_s: float, what: str) -> None:
        """Run the loop until `done()`. Raises BenchError when that takes too long."""
        deadline = time.perf_counter() + longest_s
        while not done():
            if time.perf_counter() > deadline:
                raise BenchError(f"{what}: not done after {longest_s:g} s")
            self.turn(0.05)

    def start(self, connection: Connection, script: Script, ended: Callable[[Any], None]) -> None:
        """Run a script on a connection; `ended` is called with its result."""
        self._step(connection, script, ended, None)

    def _step(self, connection: Connection, script: Script, ended: Callable[[Any], None], value: Any) -> None:
        try:
            wish = script.send(value)
        except StopIteration as stop:
            ended(stop.value)
            return
        if isinstance(wish, tuple):
            request, version = wish
            connection.send(
                frame_of(request, version),
                lambda frame: self._step(connection, script, ended, answer_of(request, version, frame)),
            )
        else:
            self.at(time.perf_counter() + wish, lambda: self._step(connection, script, ended, None))

    def run(self, parts: Iterable[tuple[Connection, Script]], longest_s: float, what: str) -> list[Any]:
        """Run scripts concurrently to their ends; returns their results, in order. Raises BenchError."""
        started = list(parts)
        results: dict[int, Any] = {}
        for at, (connection, script) in enumerate(started):
            self.start(connection, script, lambda value, at=at: results.__setitem__(at, value))  # type: ignore[misc]
        self.wait(lambda: len(results) == len(started), longest_s, what)
        return [results[at] for at in range(len(started))]


def run_one(port: int, script: Script, longest_s: float = 60, what: str = "a script") -> Any:
    """Run one script on a new connection; returns its result. Raises BenchError."""
    crowd = Crowd()
    try:
        return crowd.run([(crowd.connect(port), script)], longest_s, what)[0]
    finally:
        crowd.close()
