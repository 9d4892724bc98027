"""Connections with TLS and a login by SCRAM, as fast as one process makes them.

    python bench/logins.py PORT AUTHORITY USER PASSWORD SECONDS RATE

Prints how many logins succeeded. Each is a new connection without a TLS session: handshake, SaslHandshake, two
SaslAuthenticate, and the end. The salted password is computed once, as clients do that cache it: 4,096 rounds for each
login would cost this machine more than the broker's part.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
import socket
import ssl
import struct
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from ottla.security.sasl.scram_client import scram_messages
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import (
    ApiVersionsRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from ottla.wire.schema import Message

HOST = "127.0.0.1"
PATIENCE_S = 60
MECHANISM = "SCRAM-SHA-512"


class LoginFailure(Exception):
    """The broker refused a login, or closed the connection."""


def frame_of(request: Message, version: int) -> bytes:
    """The frame of a request, with its length."""
    frame = encode_request_header(request.API_KEY, version, 1, "bench") + encode_bytes(request, version)
    return struct.pack(">i", len(frame)) + frame


def receive(sock: socket.socket) -> bytes:
    """One answer. Raises LoginFailure when the broker closes."""
    (size,) = struct.unpack(">i", _take(sock, 4))
    return _take(sock, size)


def _take(sock: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        piece = sock.recv(size - len(content))
        if not piece:
            raise LoginFailure("closed")
        content += piece
    return content


def ask(sock: socket.socket, request: Message, version: int, response: type[Message]) -> Message:
    """Send a request, and decode its answer."""
    sock.sendall(frame_of(request, version))
    view = memoryview(receive(sock))
    return decode(response, version, view, response_body_pos(request.API_KEY, version, view))[0]


def tls_context(authority: Path) -> ssl.SSLContext:
    """The context of a client that trusts one authority."""
    return ssl.create_default_context(cafile=str(authority))


def connect(port: int, context: ssl.SSLContext | None = None) -> socket.socket:
    """A connection, after its handshake if there is a context."""
    sock = socket.create_connection((HOST, port), PATIENCE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock if context is None else context.wrap_socket(sock, server_hostname=HOST)


def ask_versions(sock: socket.socket) -> None:
    """One ApiVersions: after the answer the broker's part of the handshake is complete as well."""
    sock.sendall(frame_of(ApiVersionsRequest(), 0))
    receive(sock)


def log_in(sock: socket.socket, user: str, password: str) -> None:
    """Log in by SCRAM. Raises LoginFailure, SaslFailure."""
    answer = ask(sock, SaslHandshakeRequest(mechanism=MECHANISM), 1, SaslHandshakeResponse)
    if answer.error_code:  # type: ignore[attr-defined]
        raise LoginFailure(f"SaslHandshake: error {answer.error_code}")  # type: ignore[attr-defined]
    exchange = scram_messages("sha512", user, password, secrets.token_hex(12))
    token = next(exchange)
    try:
        while True:
            given = ask(sock, SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
            if given.error_code:  # type: ignore[attr-defined]
                raise LoginFailure(f"SaslAuthenticate: {given.error_message}")  # type: ignore[attr-defined]
            token = exchange.send(bytes(given.auth_bytes))  # type: ignore[attr-defined]
    except StopIteration:
        return


def repeat_logins(port: int, authority: Path, user: str, password: str, seconds: float, rate: float) -> int:
    """Log in again and again on new connections, at most `rate` times a second. Returns the number."""
    hashlib.pbkdf2_hmac = functools.lru_cache(hashlib.pbkdf2_hmac)  # only in this process
    context = tls_context(authority)
    began, count = time.monotonic(), 0
    while (now := time.monotonic()) < began + seconds:
        if now < (due := began + count / rate):
            time.sleep(due - now)
        with connect(port, context) as sock:
            log_in(sock, user, password)
        count += 1
    return count


if __name__ == "__main__":
    _, port_, authority_, user_, password_, seconds_, rate_ = sys.argv
    print(repeat_logins(int(port_), Path(authority_), user_, password_, float(seconds_), float(rate_)))
