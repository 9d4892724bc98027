"""Connections to other brokers under TLS.

Zone: real. The handshake's cryptography runs in threads, like that of accepted connections. The certificate of the
other broker has to be valid for the host that this broker connects to (`ssl.endpoint.identification.algorithm`).
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any, Final, cast

from ottla.seams import Failure
from ottla.server.connections.broker_connection import BrokerConnection, ConnectionContext
from ottla.server.connections.broker_handshake import BrokerCredential, NotABroker, prove_to_broker
from ottla.server.connections.tls.reloading import ReloadableContext
from ottla.server.connections.tls.tls_socket import READ, TlsSession, TlsSocket
from ottla.server.loop.completion_queue import CompletionQueue

BYTES: Final = 256 * 1024
"""Most bytes of the other broker in a handshake: its certificates, and the names of all authorities that it trusts."""


class OutgoingTls:
    """Wraps connected sockets."""

    __slots__ = ("_loop", "_received", "_source", "_threads")

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: CompletionQueue, source: ReloadableContext) -> None:
        """threads: where OpenSSL works."""
        self._loop = loop
        self._threads = threads
        self._source = source
        self._received = memoryview(bytearray(READ))

    async def secure_socket(self, sock: socket.socket, host: str) -> TlsSocket:
        """Shake hands. Raises NotABroker when a certificate is refused, OSError; the socket is closed then."""
        session = TlsSession(self._source.context, host)
        try:
            await self._shake_hands(sock, session)
        except ssl.SSLError as error:
            sock.close()
            reason = getattr(error, "verify_message", "") or error.reason or "no reason is known"
            raise NotABroker(f"no TLS session: {reason}") from None
        except BaseException:
            sock.close()
            raise
        return TlsSocket(sock, session, self._received)

    async def _shake_hands(self, sock: socket.socket, session: TlsSession) -> None:
        count = 0
        while True:
            done = await self._take_step(session)
            out = session.outgoing.read()
            if out:
                await self._loop.sock_sendall(sock, out)
            if isinstance(done, ssl.SSLError):
                raise done
            if done:
                return
            data = await self._loop.sock_recv(sock, READ)
            count += len(data)
            if not data or count > BYTES:
                raise ConnectionAbortedError("it ended the TLS handshake" if not data else "its handshake is too long")
            session.incoming.write(data)

    async def _take_step(self, session: TlsSession) -> ssl.SSLError | bool:
        """Continue in a thread, until bytes of the other broker are needed (False) or all is done (True)."""
        result: asyncio.Future[ssl.SSLError | bool] = self._loop.create_future()

        def step() -> ssl.SSLError | bool:
            try:
                session.session.do_handshake()
            except ssl.SSLWantReadError:
                return False
            except ssl.SSLError as error:
                return error
            return True

        def then(outcome: ssl.SSLError | bool | Failure) -> None:
            if not result.done():
                result.set_result(outcome if isinstance(outcome, (bool, ssl.SSLError)) else False)

        self._threads.run_in_thread(step, then)
        return await result


class TlsCalls:
    """The event loop's calls for a plain socket, for a TlsSocket."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def sock_sendall(self, sock: TlsSocket, data: bytes) -> None:
        """Send all bytes. Raises OSError."""
        view = memoryview(data)
        while view:
            try:
                view = view[sock.send(view) :]
            except BlockingIOError:
                await self._wait_ready(self._loop.add_writer, self._loop.remove_writer, sock)

    async def sock_recv(self, sock: TlsSocket, size: int) -> bytes:
        """Receive at most `size` bytes; b"" at the end. Raises OSError."""
        buffer = bytearray(size)
        while True:
            try:
                return bytes(memoryview(buffer)[: sock.recv_into(buffer)])
            except BlockingIOError:
                await self._wait_ready(self._loop.add_reader, self._loop.remove_reader, sock)

    async def _wait_ready(self, add: Any, remove: Any, sock: TlsSocket) -> None:
        ready = asyncio.Event()
        add(sock.fileno(), ready.set)
        try:
            await ready.wait()
        finally:
            remove(sock.fileno())


class TlsBrokerConnection(BrokerConnection):
    """A connection to another broker under TLS."""

    __slots__ = ("_continuing", "_tls")

    def __init__(self, wiring: ConnectionContext, node: int, address: tuple[str, int], tls: OutgoingTls) -> None:
        super().__init__(wiring, node, address)
        self._tls = tls
        self._continuing = False

    async def _secure_socket(self, sock: socket.socket) -> Any:
        return await self._tls.secure_socket(sock, self._address[0])

    async def _log_in(self, sock: Any, secret: bytes | BrokerCredential) -> int:
        return await prove_to_broker(cast("asyncio.AbstractEventLoop", TlsCalls(self._wiring.loop)), sock, secret)

    def _on_readable(self) -> None:
        super()._on_readable()
        # Decrypted bytes may be left, for which the socket has no event.
        sock = cast("TlsSocket | None", self._sock)
        if sock is not None and sock.has_pending and not self._continuing:
            self._continuing = True
            self._wiring.loop.call_soon(self._receive_pending)

    def _receive_pending(self) -> None:
        self._continuing = False
        if self._sock is not None:
            self._on_readable()
