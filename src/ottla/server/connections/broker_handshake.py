"""The connecting side of the logins of brokers to each other, and the source of their secret.

Zone: real. Brokers that share a secret prove that (`ottla.security.broker_proof` describes the exchange); others log in
by PLAIN or SCRAM, as `sasl.mechanism.inter.broker.protocol` states.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import stat
from typing import Any, Final, NamedTuple

from ottla.config.sasl_listeners import PLAIN
from ottla.errors import ErrorCode
from ottla.seams import Failure, Kind
from ottla.security.broker_proof import (
    MECHANISM,
    NONCE,
    PROOF,
    SECRET_MIN,
    matches_proof,
    proof_of_accepting,
    proof_of_connecting,
)
from ottla.security.sasl.mechanism import SaslFailure
from ottla.security.sasl.scram_client import Exchange, scram_messages
from ottla.security.sasl.scram_credentials import MECHANISMS
from ottla.server.os_errors import failure_of
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import SaslAuthenticateRequest, SaslHandshakeRequest
from ottla.wire.schema import Message

log = logging.getLogger(__name__)

ANSWER_MAX: Final = 1024
"""Most bytes of an answer of the exchange."""
SECRET_MAX: Final = 4096
"""Most bytes of a file with a secret."""
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2


class NotABroker(Exception):
    """The other end did not prove that it knows the secret, or did not accept this broker's login; the text names the
    reason."""


class BrokerCredential(NamedTuple):
    """What this broker logs in to others with."""

    mechanism: str
    """PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512."""
    user: str
    password: str

    def __repr__(self) -> str:
        """Without the password."""
        return f"BrokerCredential({self.mechanism}, {self.user!r})"


def new_secret() -> bytes:
    """Make a secret for the brokers of one supervisor."""
    return secrets.token_bytes(32)


def read_secret(path: str) -> bytes:
    """Read the secret in a file, without the white space around it.

    Raises Failure when the file cannot be read or holds less than SECRET_MIN or more than SECRET_MAX bytes.
    """
    try:
        with open(path, "rb") as file:
            content = file.read(SECRET_MAX + 1)
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise failure_of(error, path) from None
    if mode & 0o077:
        log.warning("%s: other users can read the secret of the brokers; run chmod 600 %s", path, path)
    secret = content.strip()
    if len(content) > SECRET_MAX or len(secret) < SECRET_MIN:
        raise Failure(
            Kind.NOT_DONE,
            f"ottla.inter.broker.secret.file {path} has {len(secret)} bytes; a secret has {SECRET_MIN} to {SECRET_MAX}",
        )
    return secret


async def prove_to_broker(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, secret: bytes | BrokerCredential
) -> int:
    """Authenticate a new connection to a broker, before any other request. Raises NotABroker, OSError.

    Returns after how many milliseconds the other broker ends it (KIP-368, connections.max.reauth.ms); 0: never.
    """
    if isinstance(secret, BrokerCredential):
        return await _log_in(loop, sock, secret)
    # 1. The other broker has to offer the mechanism.
    answer = await _exchange_request(loop, sock, SaslHandshakeRequest(mechanism=MECHANISM), _HANDSHAKE_VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise NotABroker(f"it does not offer the mechanism {MECHANISM}")
    # 2. This broker sends a nonce; the other one answers with its own nonce and the proof that it knows the secret.
    own = secrets.token_bytes(NONCE)
    answer = await _exchange_request(loop, sock, SaslAuthenticateRequest(auth_bytes=own), _AUTHENTICATE_VERSION)
    content = bytes(answer.auth_bytes)
    theirs, proof = content[:NONCE], content[NONCE:]
    if len(proof) != PROOF or not matches_proof(proof, proof_of_accepting(secret, own, theirs)):
        raise NotABroker("it does not know this cluster's secret")
    # 3. Only now this broker proves the same, so that no other program receives a proof to work with.
    proof = proof_of_connecting(secret, own, theirs)
    answer = await _exchange_request(loop, sock, SaslAuthenticateRequest(auth_bytes=proof), _AUTHENTICATE_VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise NotABroker("it did not accept this broker's proof")
    return int(answer.session_lifetime_ms)


async def _log_in(loop: asyncio.AbstractEventLoop, sock: socket.socket, credential: BrokerCredential) -> int:
    mechanism = credential.mechanism
    answer = await _exchange_request(loop, sock, SaslHandshakeRequest(mechanism=mechanism), _HANDSHAKE_VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise NotABroker(f"it does not offer the mechanism {mechanism}")
    messages = _messages_of(credential)
    message = next(messages)
    while True:
        request = SaslAuthenticateRequest(auth_bytes=message)
        answer = await _exchange_request(loop, sock, request, _AUTHENTICATE_VERSION)
        if answer.error_code != ErrorCode.NONE:
            raise NotABroker(f"it did not accept the user {credential.user!r}: {answer.error_message}")
        try:
            message = messages.send(bytes(answer.auth_bytes))
        except StopIteration:
            return int(answer.session_lifetime_ms)
        except SaslFailure as failure:
            raise NotABroker(str(failure)) from None


def _messages_of(credential: BrokerCredential) -> Exchange:
    if credential.mechanism == PLAIN:
        return _plain_message(credential)
    algorithm = MECHANISMS[credential.mechanism].algorithm
    return scram_messages(algorithm, credential.user, credential.password, secrets.token_urlsafe(NONCE))


def _plain_message(credential: BrokerCredential) -> Exchange:
    # RFC 4616: authorization identity (empty: that of the user), NUL, user, NUL, password.
    yield f"\0{credential.user}\0{credential.password}".encode()


async def _exchange_request(
    loop: asyncio.AbstractEventLoop, sock: socket.socket, request: Message, version: int
) -> Any:
    """Send one request and return its answer. Raises NotABroker, OSError."""
    key = request.API_KEY
    frame = encode_request_header(key, version, 0, "broker login") + encode_bytes(request, version)
    await loop.sock_sendall(sock, len(frame).to_bytes(4, "big") + frame)
    size = int.from_bytes(await _receive_bytes(loop, sock, 4), "big")
    if size > ANSWER_MAX:
        raise NotABroker(f"it sent an answer of {size} bytes")
    answer = memoryview(await _receive_bytes(loop, sock, size))
    try:
        response, _ = decode(API_TABLE[key].response, version, answer, response_body_pos(key, version, answer))
    except MalformedMessage as error:
        raise NotABroker(f"its answer cannot be read: {error}") from None
    return response


async def _receive_bytes(loop: asyncio.AbstractEventLoop, sock: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = await loop.sock_recv(sock, size - len(content))
        if not more:
            raise NotABroker(
                "it closed the connection; do all brokers have the same ottla.inter.broker.secret.file, or the same "
                "sasl.mechanism.inter.broker.protocol?"
            )
        content += more
    return content
