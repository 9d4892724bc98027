"""A client's connection under TLS: the parts of a plain one, with the differences of the transport.

Zone: real. A subclass is chosen when the connection begins, so a plain connection pays for none of this. Two things
differ: decrypted bytes may wait without an event of the socket, and files are read and encrypted, as sendfile cannot.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ottla.seams import Part, Region
from ottla.server.connections.connection import Connection
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.connection_state import CLOSED, ConnectionState
from ottla.server.connections.request_reader import RequestReader
from ottla.server.connections.response_queue import ResponseQueue
from ottla.server.connections.send_buffer import SendBuffer, StaleRegion, current_descriptor
from ottla.server.connections.tls.tls_socket import PIECE, TlsSocket


class TlsSendBuffer(SendBuffer):
    """Reads large regions a piece at a time into the shared buffer."""

    __slots__ = ()

    def _send_file(self, sock: Any, region: Region) -> int:
        fd = current_descriptor(region)
        # Bytes that were encrypted before count first: while the socket is full nothing is read from the file.
        sent: int = sock.flush_encrypted()
        if not sent:
            view = self._scratch.view[: min(region.size, PIECE)]
            count = os.preadv(fd, [view], region.pos)
            if count == 0:
                raise StaleRegion("the file ended before the region")
            sent = sock.send(view[:count])
        self._count_sent(region, sent)
        return sent


class TlsResponseQueue(ResponseQueue):
    """Sends large regions through the outbox."""

    outbox_class = TlsSendBuffer

    __slots__ = ()

    def _prepare_sendfile(self, size: int, parts: Sequence[Part]) -> bool:  # noqa: ARG002 - never
        return False


class TlsRequestReader(RequestReader):
    """Continues with bytes for which the socket has no event: OpenSSL has them already."""

    __slots__ = ("_continuing", "_tls_socket")

    def __init__(
        self, connection: ConnectionState, manager: ConnectionManager, sock: Any, responses: ResponseQueue
    ) -> None:
        super().__init__(connection, manager, sock, responses)
        self._tls_socket: TlsSocket = sock
        self._continuing = False

    def start_reading(self) -> None:
        """Receive from now on; the peer's first request may have come with the end of the handshake."""
        super().start_reading()
        self._continue_pending()

    def on_readable(self) -> None:
        """Receive, and run each complete request as a turn."""
        super().on_readable()
        self._continue_pending()

    def run_backlog(self, until: int) -> None:
        """Continue with the own buffer, and read again."""
        super().run_backlog(until)
        self._continue_pending()

    def _continue_pending(self) -> None:
        """Receive what is left after another poll of the sockets: other connections get their turn before."""
        if self._continuing or self._paused or self._connection.blocked & CLOSED:
            return
        if self._tls_socket.has_pending:
            self._continuing = True
            self._manager.loop.call_soon(self._receive_pending)

    def _receive_pending(self) -> None:
        self._continuing = False
        if not self._paused and not self._connection.blocked & CLOSED:
            self.on_readable()
            self._manager.send_answers()


class TlsConnection(Connection):
    """A peer on a `TlsSocket`."""

    reader_class = TlsRequestReader
    responses_class = TlsResponseQueue

    __slots__ = ()
