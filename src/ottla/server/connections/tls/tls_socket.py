"""A socket under TLS, used like the non-blocking plain one: `recv_into`, `send`, `close`.

Zone: real. OpenSSL works on two buffers in memory, never on the socket. So one call handles at most READ bytes of the
peer: a flood of key updates or of refused renegotiations, which OpenSSL would read on without returning, is as bounded
as any other. It also lets a handshake run in a thread while the loop owns the socket.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import socket
import ssl
from typing import Any, Final

READ: Final = 32 * 1024
"""Most bytes received at a time. A buffer of OpenSSL stays as large as it was once, so it must not become large."""
PIECE: Final = 64 * 1024
"""Most bytes encrypted at a time: four records, which leave with one system call."""
RECORD: Final = 16 * 1024
"""Largest content of a record."""
REPLIES: Final = 16 * 1024
"""Most bytes that OpenSSL may send by itself (answers to key updates, alerts) before the peer reads them."""


class TlsSession:
    """A session of OpenSSL, and its two buffers of encrypted bytes."""

    __slots__ = ("incoming", "outgoing", "session")

    def __init__(self, context: ssl.SSLContext, host: str | None = None) -> None:
        """host: the host of an outgoing connection; None: an accepted one."""
        self.incoming = ssl.MemoryBIO()
        self.outgoing = ssl.MemoryBIO()
        self.session = context.wrap_bio(self.incoming, self.outgoing, server_side=host is None, server_hostname=host)


class TlsSocket:
    """One end of a TLS connection, after its handshake. It raises no errors of Python's TLS, but those of sockets."""

    __slots__ = ("_ended", "_held", "_incoming", "_out", "_outgoing", "_received", "_session", "_sock")

    def __init__(self, sock: socket.socket, session: TlsSession, received: memoryview) -> None:
        """received: a buffer for READ encrypted bytes. It is empty at the end of each call, so all sockets of a loop
        share it."""
        self._sock = sock
        self._session = session.session
        self._incoming = session.incoming
        self._outgoing = session.outgoing
        self._received = received
        self._out = memoryview(b"")
        """Encrypted bytes that the socket did not take."""
        self._held = 0
        """Bytes of the caller that are encrypted in `_out`, and count as sent when all of it is."""
        self._ended = False
        """Whether the peer has closed the connection."""

    def fileno(self) -> int:
        """The descriptor of the socket."""
        return self._sock.fileno()

    # -- receiving -------------------------------------------------------------------------------------------------

    @property
    def has_pending(self) -> bool:
        """Whether bytes, or the end, may be received without an event of the socket."""
        return bool(self._incoming.pending or self._ended or self._session.pending())

    def recv_into(self, buffer: bytearray | memoryview | mmap.mmap) -> int:
        """Receive; 0 at the end. Raises BlockingIOError, OSError."""
        view = memoryview(buffer)
        filled = self._decrypt_into(view)
        while not self._ended and (not filled or filled + RECORD <= len(view)):
            try:
                count = self._sock.recv_into(self._received)
            except (BlockingIOError, InterruptedError):
                break
            if count:
                self._incoming.write(self._received[:count])
            else:
                self._ended = True
                self._incoming.write_eof()
            filled += self._decrypt_into(view[filled:])
            if count < READ:
                break
        if not filled and not self._ended:
            raise BlockingIOError
        return filled

    def _decrypt_into(self, view: memoryview) -> int:
        """Decrypt the bytes that have come, as far as there is room. Raises ConnectionAbortedError."""
        filled, session = 0, self._session
        try:
            while filled < len(view) and (self._incoming.pending or session.pending()):
                rest: Any = view[filled:]  # typeshed knows bytearray only
                count = int(session.read(len(rest), rest))
                if not count:  # close_notify: a peer may wait for the answer before it closes its socket
                    self._ended = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
            self._ended = True
        except ssl.SSLError as error:
            self._send_replies()
            raise ConnectionAbortedError(errno.ECONNABORTED, f"TLS: {error.reason or error}") from None
        if self._outgoing.pending:
            self._send_replies()
        return filled

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Only for a look (MSG_PEEK): b"" at the end. Raises BlockingIOError, OSError."""
        if self._incoming.pending or self._session.pending():
            return b"\0"
        return b"" if self._ended else self._sock.recv(size, flags)

    # -- sending ---------------------------------------------------------------------------------------------------

    def send(self, data: bytes | bytearray | memoryview, _flags: int = 0) -> int:
        """Send the first bytes; returns how many. Raises BlockingIOError, OSError.

        After BlockingIOError, or fewer bytes than given, the next call has to begin with the bytes that were not sent:
        TLS has encrypted some of them already.
        """
        view = memoryview(data)
        sent = self.flush_encrypted()
        while sent < len(view):
            piece = view[sent : sent + PIECE]
            self._encrypt_bytes(piece)
            self._held = len(piece)
            try:
                sent += self.flush_encrypted()
            except BlockingIOError:
                break
        if view and not sent:
            raise BlockingIOError
        return sent

    def flush_encrypted(self) -> int:
        """Send encrypted bytes; returns the bytes of the caller that are sent by that. Raises BlockingIOError until
        all are sent, OSError."""
        while self._out:
            self._out = self._out[self._sock.send(self._out) :]
        held, self._held = self._held, 0
        return held

    def _encrypt_bytes(self, piece: memoryview) -> None:
        try:
            self._session.write(piece)
        except ssl.SSLError as error:
            raise ConnectionAbortedError(errno.ECONNABORTED, f"TLS: {error.reason or error}") from None
        self._out = memoryview(self._outgoing.read())

    def _send_replies(self) -> None:
        """Send what OpenSSL sends by itself, behind the bytes that wait. Raises ConnectionAbortedError."""
        self._out = memoryview(bytes(self._out) + self._outgoing.read())
        if len(self._out) > REPLIES + (PIECE + RECORD if self._held else 0):
            raise ConnectionAbortedError(errno.ECONNABORTED, "TLS: the peer does not read the answers that it causes")
        with contextlib.suppress(OSError):
            while self._out and not self._held:
                self._out = self._out[self._sock.send(self._out) :]

    # -- ending ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close, with close_notify if nothing is left to send before it."""
        if not self._out:
            with contextlib.suppress(OSError, ValueError):
                with contextlib.suppress(ssl.SSLError):
                    self._session.unwrap()
                self._sock.send(self._outgoing.read())
        self._sock.close()
