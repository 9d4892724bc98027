"""SASL on a connection: the mechanism, its exchange, and the lifetime of the session.

Zone: real. Uses messages of the protocol (SaslHandshake v1, SaslAuthenticate: KIP-152, KIP-368); `connection` has the
sockets.
"""

from __future__ import annotations

import base64
import os
import time
from typing import TYPE_CHECKING, Final

from ottla.client.errors import AuthenticationError, UnsupportedVersionError, error_code
from ottla.client.retry import Deadline
from ottla.client.security.settings import SecurityConfig
from ottla.client.security.tokens import token_source
from ottla.errors import ErrorCode
from ottla.security.sasl.mechanism import SaslFailure
from ottla.security.sasl.scram_client import Exchange, scram_messages
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

if TYPE_CHECKING:
    from ottla.client.connections.connection import Connection

_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_NOT_A_BROKER: Final = "Check that this is the right broker: it may be a false one"
_USED: Final = 0.85
"""The part of a session's lifetime after which an idle connection is replaced, as in Kafka (KIP-368)."""


def log_in(connection: Connection, config: SecurityConfig, deadline: Deadline) -> float:
    """Authenticate. Returns when the connection must be replaced, on the monotonic clock; infinity: never.

    Raises AuthenticationError, and what a request raises.
    """
    _agree_mechanism(connection, config.sasl_mechanism, deadline)
    exchange = _start_exchange(config, deadline)
    version = connection.choose_version(ApiKey.SASL_AUTHENTICATE)
    message, lifetime_ms = next(exchange), 0
    while True:
        request = SaslAuthenticateRequest(auth_bytes=message)
        answer = connection.wait_for_response(
            connection.send_request(request, version, SaslAuthenticateResponse), deadline
        )
        if answer.error_code:
            raise _login_error(connection, config, answer)
        lifetime_ms = answer.session_lifetime_ms
        try:
            message = exchange.send(bytes(answer.auth_bytes))
        except StopIteration:
            return time.monotonic() + _USED * lifetime_ms / 1000 if lifetime_ms > 0 else float("inf")


def _agree_mechanism(connection: Connection, mechanism: str, deadline: Deadline) -> None:
    try:
        # Version 0 would be followed by raw SASL bytes instead of SaslAuthenticate requests (KIP-152).
        version = connection.choose_version(ApiKey.SASL_HANDSHAKE, at_least=1)
    except UnsupportedVersionError as error:
        raise AuthenticationError(
            f"{connection.address} does not support SASL", "Leave SASL_ out of security.protocol"
        ) from error
    call = connection.send_request(SaslHandshakeRequest(mechanism=mechanism), version, SaslHandshakeResponse)
    answer = connection.wait_for_response(call, deadline)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationError(
            f"{connection.address} does not offer {mechanism}",
            f"Set sasl.mechanism to one of: {', '.join(answer.mechanisms) or 'none'}",
        )
    if answer.error_code:
        raise AuthenticationError(
            f"{connection.address} refuses SASL: {error_code(answer.error_code).name}",
            "Use a listener with SASL, or leave SASL_ out of security.protocol",
        )


def _login_error(
    connection: Connection, config: SecurityConfig, answer: SaslAuthenticateResponse
) -> AuthenticationError:
    said = answer.error_message or error_code(answer.error_code).name
    return AuthenticationError(
        f"{connection.address} refuses the login with {config.sasl_mechanism}: {said}",
        "Check the token" if config.sasl_mechanism == "OAUTHBEARER" else "Check user name and password",
    )


def _start_exchange(config: SecurityConfig, deadline: Deadline) -> Exchange:
    if config.sasl_mechanism == "OAUTHBEARER":
        return _bearer_exchange(config, deadline)
    user, password = config.login
    if config.sasl_mechanism == "PLAIN":
        return _plain_exchange(user, password)
    nonce = base64.b64encode(os.urandom(24)).decode()
    with_token = config.jaas.get("tokenauth", "").lower() == "true"
    return scram_exchange(_HASHES[config.sasl_mechanism], user, password, nonce, with_token=with_token)


def scram_exchange(algorithm: str, user: str, password: str, nonce: str, *, with_token: bool = False) -> Exchange:
    """One login with SCRAM (RFC 5802), as `scram_messages`.

    with_token: user and password are the id and the HMAC of a delegation token (KIP-48).

    Raises AuthenticationError if the broker refuses, breaks the protocol, or cannot prove that it knows the password.
    """
    try:
        yield from scram_messages(algorithm, user, password, nonce, with_token=with_token)
    except SaslFailure as failure:
        hint = "Check user name and password" if failure.for_client else _NOT_A_BROKER
        raise AuthenticationError(str(failure), hint) from None


def _plain_exchange(user: str, password: str) -> Exchange:
    """RFC 4616; the broker's answer has no content."""
    yield f"\0{user}\0{password}".encode()


def _bearer_exchange(config: SecurityConfig, deadline: Deadline) -> Exchange:
    """RFC 7628: the client must acknowledge a refusal (in JSON) before the broker ends the exchange with an error."""
    token = token_source(config).valid_token(deadline.remaining_s())
    more = "".join(f"{name}={value}\x01" for name, value in (token.extensions or {}).items())
    said = yield f"n,,\x01auth=Bearer {token.value}\x01{more}\x01".encode()
    if said:
        yield b"\x01"
        text = said.decode("utf-8", "replace")[:500]
        raise AuthenticationError(f"the broker refuses the token: {text}", "Check the token")
