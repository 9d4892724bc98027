"""The connection to one other broker: sends requests, receives answers in the order of the requests.

Zone: real. Opened on use, and opened again after it broke, or before the other broker ends it (KIP-368). A Kafka broker
answers the requests of a connection in their order, so an answer belongs to the oldest outstanding call. When the
deadline of a call passes, the connection is closed: the late answer would be taken for the answer to the next call.

A large answer (a replica's fetch) is received straight into a buffer of its own, which goes back to the pool when
`done` has returned; small ones are cut from the buffer that all connections share.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import struct
import time
from collections import deque
from typing import Any, Final, NamedTuple

from ottla.seams import Done, Failure, Kind
from ottla.server.connections.broker_handshake import BrokerCredential, NotABroker, prove_to_broker
from ottla.server.connections.buffers import BufferPool
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import Watch

log = logging.getLogger(__name__)

SETUP_S: Final = 2.0
"""Time to connect and log in. Shorter than the kernel's retries: after a lost SYN a new attempt is faster."""
AT_ONCE: Final = 16 * 1024 * 1024
"""An answer up to this size gets its whole buffer when it begins; a larger one `GROWTH` times the bytes received."""
GROWTH: Final = 4
RENEWED_AT: Final = 0.85
"""The part of a connection's lifetime after which the next call opens another one."""

_size_of = struct.Struct(">i").pack
_size_at = struct.Struct(">i").unpack_from


Info = tuple[int, int, int, str, tuple[str, int] | tuple[str, int, int, int] | tuple[int, bytes]]
"""An address as socket.getaddrinfo gives it."""


class BrokerCall(NamedTuple):
    """A request that waits to be sent or answered."""

    frame: bytes
    deadline_ns: int
    done: Done[memoryview]


class ConnectionContext(NamedTuple):
    """The objects that all connections to other brokers share."""

    loop: asyncio.AbstractEventLoop
    watch: Watch
    turns: CompletionQueue
    pool: BufferPool
    scratch: memoryview
    """The buffer that answers are received into; a connection is done with it when its callback returns."""
    secret: bytes | BrokerCredential | None = None
    """The secret by which brokers recognize each other, or this broker's credential; None: they do not log in."""


class BrokerConnection:
    """One ordered connection to one broker."""

    __slots__ = (
        "_address",
        "_buffer",
        "_filled",
        "_node",
        "_opening",
        "_out",
        "_renewed_ns",
        "_sent",
        "_size",
        "_sock",
        "_timer",
        "_unsent",
        "_view",
        "_wiring",
    )

    def __init__(self, wiring: ConnectionContext, node: int, address: tuple[str, int]) -> None:
        self._wiring = wiring
        self._node = node
        self._address = address
        self._sock: socket.socket | None = None
        self._opening: asyncio.Task[None] | None = None
        self._unsent: deque[BrokerCall] = deque()
        self._sent: deque[BrokerCall] = deque()
        self._out = memoryview(b"")
        self._renewed_ns: int | None = None
        """When the next call opens another connection; None: this one has no end."""
        self._timer: asyncio.TimerHandle | None = None
        self._buffer: bytearray | None = None
        self._forget_buffer()

    def submit_call(self, call: BrokerCall) -> None:
        """Queue a call after the earlier ones."""
        self._unsent.append(call)
        self._watch_deadline(call.deadline_ns)
        if self._renewed_ns is not None and self._is_over:
            self._close_socket()
        if self._sock is not None:
            self._send_queued()
        elif self._opening is None:
            self._opening = self._wiring.loop.create_task(self._open_connection())

    @property
    def _is_over(self) -> bool:
        """Whether the connection is near its end, and no answer is outstanding that would be lost with it."""
        return not self._sent and self._renewed_ns is not None and time.monotonic_ns() >= self._renewed_ns

    # -- opening and closing ---------------------------------------------------------------------------------------

    async def _open_connection(self) -> None:
        try:
            async with asyncio.timeout(SETUP_S):
                sock = await self._connect_socket()
        except NotABroker as error:
            # Logged as an error, because a wrong secret needs a person. A broker that is down is an ordinary event,
            # which the callers report.
            log.error("cannot log in to broker %d at %s:%d, its calls fail: %s", self._node, *self._address, error)
            self._opening = None
            self._fail_pending(f"broker {self._node} did not log in: {error}")
            return
        except (OSError, TimeoutError) as error:
            self._opening = None
            self._fail_pending(f"broker {self._node} cannot be reached: {str(error) or 'no answer'}")
            return
        self._opening = None
        self._sock = sock
        self._wiring.watch.watch_read(sock.fileno(), self._on_readable)
        self._send_queued()

    async def _connect_socket(self) -> Any:
        """Open a connection and log in, if there is a secret. Raises OSError, NotABroker."""
        secret = self._wiring.secret
        sock = await self._secure_socket(await _connect_host(self._wiring.loop, *self._address))
        if secret is not None:
            try:
                begun_ns = time.monotonic_ns()
                lifetime_ms = await self._log_in(sock, secret)
                self._renewed_ns = begun_ns + int(lifetime_ms * 1_000_000 * RENEWED_AT) if lifetime_ms else None
            # A time-out of the set-up cancels this task, and CancelledError is no Exception: the socket would stay
            # open.
            except BaseException:
                sock.close()
                raise
        return sock

    async def _secure_socket(self, sock: socket.socket) -> Any:
        """Begin TLS; a plain connection has none. Raises OSError, NotABroker, and then closes the socket."""
        return sock

    async def _log_in(self, sock: Any, secret: bytes | BrokerCredential) -> int:
        return await prove_to_broker(self._wiring.loop, sock, secret)

    def fail_calls(self, why: str) -> None:
        """Close, and fail all calls; the outcome of those that were sent is unknown."""
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None
        self._close_socket()
        self._fail_pending(f"broker {self._node}: {why}")

    def _on_lost(self, error: OSError | None) -> None:
        self._close_socket()
        self._fail_pending(f"broker {self._node}: connection lost{f': {error}' if error else ''}")

    def _close_socket(self) -> None:
        sock, self._sock = self._sock, None
        self._renewed_ns = None
        if sock is not None:
            self._wiring.watch.unwatch_read(sock.fileno())
            self._wiring.watch.unwatch_write(sock.fileno())
            sock.close()
        self._out = memoryview(b"")
        self._forget_buffer()

    def _fail_pending(self, why: str) -> None:
        sent, unsent = self._sent, self._unsent
        self._sent, self._unsent = deque(), deque()
        # A request that was sent may have been carried out: the caller must not assume that nothing has happened.
        for call in sent:
            self._wiring.turns.run_soon(call.done, Failure(Kind.UNKNOWN, why))
        for call in unsent:
            self._wiring.turns.run_soon(call.done, Failure(Kind.NOT_DONE, why))

    # -- out ---------------------------------------------------------------------------------------------------------

    def _send_queued(self) -> None:
        """Send all queued calls with one system call; bytes that the socket does not take are sent when it has
        room."""
        parts: list[bytes | memoryview] = [self._out] if self._out else []
        while self._unsent:
            call = self._unsent.popleft()
            parts += (_size_of(len(call.frame)), call.frame)
            self._sent.append(call)
        # If bytes wait for the socket already, the watch calls `_flush_out` when there is room.
        waited = bool(self._out)
        self._out = memoryview(b"".join(parts))
        if not waited:
            self._flush_out()

    def _flush_out(self) -> None:
        assert self._sock is not None, "send on a closed connection"
        try:
            count = self._sock.send(self._out)
        except (BlockingIOError, InterruptedError):
            count = 0
        except OSError as error:
            self._on_lost(error)
            return
        self._out = self._out[count:]
        if self._out:
            self._wiring.watch.watch_write(self._sock.fileno(), self._flush_out)
        else:
            self._wiring.watch.unwatch_write(self._sock.fileno())

    # -- in ----------------------------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        assert self._sock is not None, "read from a closed connection"
        into = self._wiring.scratch if self._buffer is None else self._view[self._filled :]
        try:
            count = self._sock.recv_into(into)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._on_lost(error)
            return
        if not count:
            self._on_lost(None)
        elif self._buffer is None:
            self._split_responses(count)
        else:
            self._filled += count
            if self._filled == len(self._view):
                self._on_buffer_full()

    def _split_responses(self, end: int) -> None:
        """Deliver the complete answers in the shared buffer; the beginning of the next one moves to its own."""
        view = self._wiring.scratch
        pos = 0
        while end - pos >= 4:
            size = int(_size_at(view, pos)[0])
            stop = pos + 4 + size
            if not self._check_expected(size):
                return
            if stop > end:
                self._begin_response(size, view[pos + 4 : end])
                return
            # A copy, because the receiver may keep the answer and the buffer is shared.
            self._deliver_response(memoryview(bytes(view[pos + 4 : stop])))
            if self._sock is None:  # the receiver's turn may have closed this connection
                return
            pos = stop
        if pos < end:
            self._begin_header(view[pos:end])

    def _check_expected(self, size: int) -> bool:
        if size >= 0 and self._sent:
            return True
        self.fail_calls("it sent an answer without a request" if size >= 0 else f"it sent an answer of {size} bytes")
        return False

    def _deliver_response(self, answer: memoryview) -> None:
        self._wiring.turns.run_now(self._sent.popleft().done, answer)

    def _begin_header(self, have: memoryview) -> None:
        """Keep the first bytes of an answer's length prefix."""
        self._size = -1
        self._keep_partial(bytearray(4), 4, have)

    def _begin_response(self, size: int, have: memoryview) -> None:
        """Keep the part of an answer that has come; the rest is received after it."""
        self._size = size
        # The length is a claim of the peer: a buffer of its size at once would let four bytes cost up to 2 GiB.
        room = min(size, max(AT_ONCE, GROWTH * len(have)))
        self._keep_partial(self._wiring.pool.take_buffer(room), room, have)

    def _keep_partial(self, buffer: bytearray, room: int, have: memoryview) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)[:room]
        self._filled = len(have)
        self._view[: self._filled] = have

    def _on_buffer_full(self) -> None:
        """Continue when the own buffer is full."""
        buffer, view, size = self._buffer, self._view, self._size
        assert buffer is not None
        # 1. It held a length prefix: receive the answer next.
        if size < 0:
            size = int(_size_at(buffer, 0)[0])
            self._forget_buffer()
            if not self._check_expected(size):
                return
            if size:
                self._begin_response(size, memoryview(b""))
            else:
                self._deliver_response(memoryview(b""))
        # 2. It holds the part of a large answer that it had room for: continue in a larger buffer.
        elif self._filled < size:
            self._begin_response(size, view)
            self._wiring.pool.give_buffer(buffer)
        # 3. It holds a whole answer. The buffer is forgotten first, because the receiver's turn may send and close.
        else:
            self._forget_buffer()
            self._deliver_response(view)
            self._wiring.pool.give_buffer(buffer)

    def _forget_buffer(self) -> None:
        self._buffer = None
        self._view = memoryview(b"")
        self._filled = 0
        self._size = -1

    # -- time --------------------------------------------------------------------------------------------------------

    def _watch_deadline(self, deadline_ns: int) -> None:
        """Keep one timer, for the earliest deadline; a timer that fires too early is set to the next deadline."""
        when = deadline_ns / 1e9
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._wiring.loop.call_at(when, self._expire_calls)

    def _expire_calls(self) -> None:
        self._timer = None
        now = time.monotonic_ns()
        # Sent calls may have been carried out; unsent ones certainly were not.
        late = [call for call in self._sent if call.deadline_ns <= now]
        never = [call for call in self._unsent if call.deadline_ns <= now]
        turns = self._wiring.turns
        for call in late:
            turns.run_soon(call.done, Failure(Kind.TIMEOUT, f"broker {self._node} did not answer in time"))
        for call in never:
            turns.run_soon(call.done, Failure(Kind.NOT_DONE, f"broker {self._node} was not reached in time"))
        self._sent = deque(call for call in self._sent if call.deadline_ns > now)
        self._unsent = deque(call for call in self._unsent if call.deadline_ns > now)
        # A late answer cannot be distinguished from the answer to the next call: the connection has to be closed.
        if late:
            self.fail_calls("an earlier call was not answered in time")
        elif self._sent or self._unsent:
            self._watch_deadline(min(call.deadline_ns for call in (*self._sent, *self._unsent)))


async def _connect_host(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Connect to the first address of the host that answers. Raises OSError."""
    last: OSError | None = None
    for family, kind, protocol, _, address in await _resolve_host(loop, host, port):
        sock = socket.socket(family, kind, protocol)
        with contextlib.ExitStack() as undo:
            undo.callback(sock.close)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, address)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            except OSError as error:
                last = error
                continue
            undo.pop_all()
            return sock
    raise last or OSError(f"{host} has no address")


async def _resolve_host(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[Info]:
    """The addresses of a host by socket.getaddrinfo; a numeric one is not looked up, which would take a thread."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
    except OSError:
        return list(await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (host, port))]
