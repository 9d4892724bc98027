"""Handshakes of accepted connections, before they count as connections of the broker.

Zone: real. The loop owns the sockets, threads run OpenSSL's part, which takes a thousand times as long as a small
request. Peers are not trusted: a handshake has HANDSHAKE_S and BYTES bytes, and when HANDSHAKES are under way the one
that has waited longest for its peer ends. A failed one costs one log line at most. One that fails because of the
peer's certificate is answered and closed after `connection.failed.authentication.delay.ms` (KIP-306); until then only
its socket and the alert are kept, and FAILING_MAX of them may wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from ottla.security.certificate_names import subject_of_certificate
from ottla.security.principal_mapping import NoMatchingRule, PrincipalMapper
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.protocol_diagnosis import diagnose_handshake, diagnose_plain_peer
from ottla.server.connections.tls.reloading import ReloadableContext
from ottla.server.connections.tls.tls_connection import TlsConnection
from ottla.server.connections.tls.tls_socket import READ, TlsSession, TlsSocket
from ottla.server.loop.completion_queue import CompletionQueue

log = logging.getLogger(__name__)

HANDSHAKE_S: Final = 10.0
"""Time of a handshake."""
HANDSHAKES: Final = 1024
"""Most handshakes under way."""
BYTES: Final = 64 * 1024
"""Most bytes of a peer in a handshake, certificates included."""
FAILING_MAX: Final = 256
"""Most failed authentications that wait for their end; more are closed at once."""
_CHUNK: Final = 16 * 1024
_TLS_RECORD: Final = 0x16
_HEAD: Final = 16
_UNAUTHENTICATED: Final = ("CERTIFICATE_VERIFY_FAILED", "PEER_DID_NOT_RETURN_A_CERTIFICATE")
"""OpenSSL's reasons of a handshake whose peer has not proved who it is."""


class ListenerTls(NamedTuple):
    """TLS of one listener."""

    source: ReloadableContext
    mapper: PrincipalMapper | None
    """Makes the principal from a client's certificate; None: certificates do not name principals here."""
    delay_ms: int = 0
    """connection.failed.authentication.delay.ms"""


class Handshakes:
    """The handshakes of all listeners of a broker."""

    __slots__ = ("_failing", "_give_back", "_most", "_open", "_received", "_time_s", "threads", "traffic")

    def __init__(
        self,
        traffic: ConnectionManager,
        threads: CompletionQueue,
        give_back: Callable[[str], None],
        *,
        most: int = HANDSHAKES,
        time_s: float = HANDSHAKE_S,
    ) -> None:
        """threads: where OpenSSL works. give_back: called with the address of a connection that will not be opened."""
        self.traffic = traffic
        self.threads = threads
        self._give_back = give_back
        self._most = most
        self._time_s = time_s
        self._open: dict[Handshake, asyncio.TimerHandle] = {}
        """In the order of their beginning."""
        self._failing: dict[Handshake, asyncio.TimerHandle] = {}
        """Failed authentications that wait for their end."""
        self._received = memoryview(bytearray(READ))

    @property
    def under_way(self) -> int:
        """The number of handshakes that have not ended."""
        return len(self._open)

    def begin_handshake(self, sock: socket.socket, listener: str, host: str, tls: ListenerTls) -> None:
        """Shake hands on an accepted, non-blocking socket; then a TlsConnection owns it."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._open))
            # The threads are behind: another handshake would make all of them late.
            if oldest.is_working:
                sock.close()
                self._give_back(host)
                self.traffic.log_bad_peer("%s: connection refused: %d TLS handshakes are under way", host, self._most)
                return
            oldest.end_handshake("it has waited longest of %d for its peer", self._most)
        handshake = Handshake(self, sock, listener, host, tls)
        self._open[handshake] = self.traffic.loop.call_later(
            self._time_s, handshake.end_handshake, "the TLS handshake took more than %g s", self._time_s
        )
        handshake.start_reading()

    def on_failed(self, handshake: Handshake) -> None:
        """Forget a handshake that has failed."""
        self._forget_handshake(handshake)
        self._give_back(handshake.host)

    def delay_end(self, handshake: Handshake, delay_ms: int) -> bool:
        """Plan the end of a failed authentication, which is not under way any more. False: too many wait."""
        if len(self._failing) >= FAILING_MAX:
            return False
        self._open.pop(handshake).cancel()
        self._failing[handshake] = self.traffic.loop.call_later(delay_ms / 1000, handshake.close_socket)
        return True

    def on_finished(self, handshake: Handshake, sock: socket.socket, session: TlsSession, principal: str) -> None:
        """Serve the peer."""
        self._forget_handshake(handshake)
        wrapped = TlsSocket(sock, session, self._received)
        TlsConnection(self.traffic, wrapped, handshake.listener, handshake.host).principal = principal

    def _forget_handshake(self, handshake: Handshake) -> None:
        (self._open if handshake in self._open else self._failing).pop(handshake).cancel()

    def close_all(self) -> None:
        """End all handshakes: the broker stops."""
        for handshake in (*self._open, *self._failing):
            handshake.close_socket()


class Handshake:
    """One handshake. Either the loop or a thread works on it, never both."""

    __slots__ = ("_count", "_ended", "_out", "_owner", "_session", "_sock", "_tls", "host", "is_working", "listener")

    def __init__(self, owner: Handshakes, sock: socket.socket, listener: str, host: str, tls: ListenerTls) -> None:
        self._owner = owner
        self._sock = sock
        self._tls = tls
        self.listener = listener
        self.host = host
        self._session: TlsSession | None = TlsSession(tls.source.context)
        """None: the authentication has failed, and its end is delayed."""
        self._count = 0
        self._out = memoryview(b"")
        self.is_working = self._ended = False
        """is_working: whether a thread works on it."""

    def start_reading(self) -> None:
        """Wait for the peer's next message."""
        self._owner.traffic.watch.watch_read(self._sock.fileno(), self._on_readable)

    def _on_readable(self) -> None:
        try:
            data = self._sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            log.debug("%s: closed by the peer during the TLS handshake", self.host)
            self.close_socket()
        elif not self._count and data[0] != _TLS_RECORD:
            self._refuse_peer(diagnose_plain_peer(data[:_HEAD], self.listener))
        else:
            self._count += len(data)
            if self._count > BYTES:
                self._refuse_peer(f"the peer sent more than {BYTES} bytes in a TLS handshake")
            else:
                self._work_on(data)

    def _work_on(self, data: bytes) -> None:
        """Let a thread handle the peer's bytes."""
        assert self._session is not None, "nothing is read after the end"
        self._owner.traffic.watch.unwatch_read(self._sock.fileno())
        self._session.incoming.write(data)
        self.is_working = True
        self._owner.threads.run_in_thread(partial(self._take_step, self._session), self._on_step)

    @staticmethod
    def _take_step(session: TlsSession) -> ssl.SSLError | bool:
        """Continue until bytes of the peer are needed (False) or all is done (True)."""
        try:
            session.session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            return error
        return True

    def _on_step(self, outcome: object) -> None:
        self.is_working = False
        if self._ended:
            self._sock.close()
            return
        assert self._session is not None, "its end is delayed only here"
        self._out = memoryview(bytes(self._out) + self._session.outgoing.read())
        if isinstance(outcome, bool):
            self._send_rest(outcome)
            return
        error = outcome if isinstance(outcome, ssl.SSLError) else None
        reason, detail = getattr(error, "reason", "") or "", getattr(error, "verify_message", "")
        self._fail_handshake(diagnose_handshake(reason, detail, self.listener), reason in _UNAUTHENTICATED)

    def _send_rest(self, done: bool) -> None:
        """Send the answer, then wait for the next message, or finish."""
        watch, fd = self._owner.traffic.watch, self._sock.fileno()
        try:
            self._out = self._out[self._sock.send(self._out) :] if self._out else self._out
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            log.debug("%s: %s", self.host, error)
            self.close_socket()
            return
        if self._out:
            watch.watch_write(fd, lambda: self._send_rest(done))
            return
        watch.unwatch_write(fd)
        if done:
            self._finish_handshake()
        else:
            self.start_reading()

    def _finish_handshake(self) -> None:
        try:
            principal = self._find_principal()
        except (NoMatchingRule, ValueError) as error:
            self._fail_handshake(f"its certificate names no principal: {error}", True)
            return
        assert self._session is not None, "it has not failed"
        self._ended = True
        self._owner.on_finished(self, self._sock, self._session, principal)

    def _find_principal(self) -> str:
        """The principal in the peer's certificate. Raises NoMatchingRule, ValueError."""
        if self._session is None or self._tls.mapper is None:
            return "User:ANONYMOUS"
        certificate = self._session.session.getpeercert(True)
        if certificate is None:
            return "User:ANONYMOUS"
        return f"User:{self._tls.mapper.map_name(subject_of_certificate(certificate))}"

    # -- ending ----------------------------------------------------------------------------------------------------

    def end_handshake(self, why: str, *arguments: object) -> None:
        """End it for a reason that is not the peer's message, with one log line."""
        self._refuse_peer(why % arguments)

    def _fail_handshake(self, why: str, is_authentication: bool) -> None:
        """Send the alert, which names the reason to the peer, and close; a failed authentication waits before that."""
        self._owner.traffic.log_bad_peer("%s: connection closed: %s", self.host, why)
        delay_ms = self._tls.delay_ms if is_authentication else 0
        self._session = None
        if not delay_ms or not self._owner.delay_end(self, delay_ms):
            self.close_socket()

    def _refuse_peer(self, why: str) -> None:
        self._owner.traffic.log_bad_peer("%s: connection closed: %s", self.host, why)
        self.close_socket()

    def close_socket(self) -> None:
        """Close, unless a thread works on it: then `_on_step` does."""
        if self._ended:
            return
        self._ended = True
        watch, fd = self._owner.traffic.watch, self._sock.fileno()
        watch.unwatch_read(fd)
        watch.unwatch_write(fd)
        if self._session is None:
            self._send_alert()
        if not self.is_working:
            self._sock.close()
        self._owner.on_failed(self)

    def _send_alert(self) -> None:
        """Send the alert of a failed handshake. A socket that is closed with unread bytes would lose it."""
        with contextlib.suppress(OSError):
            self._sock.recv(_CHUNK)
        with contextlib.suppress(OSError):
            self._sock.send(self._out)
