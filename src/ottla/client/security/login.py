"""SASL on a connection: which mechanism, the exchange of it, and how long the session lasts.

Zone: real. Messages of the protocol only (SaslHandshake v1, SaslAuthenticate: KIP-152, KIP-368); sockets belong to
`connection`.
"""

from __future__ import annotations

import base64
import os
import time
from typing import TYPE_CHECKING, Final

from ottla.client.errors import AuthenticationError, UnsupportedVersionError, error_code
from ottla.client.retry import Deadline
from ottla.client.security.scram import Exchange, scram
from ottla.client.security.settings import SecurityConfig
from ottla.client.security.tokens import token_source
from ottla.errors import ErrorCode
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
_USED: Final = 0.85
"""Part of a session's life after which a connection is given up when it is idle, as in Kafka (KIP-368)."""


def log_in(connection: Connection, config: SecurityConfig, deadline: Deadline) -> float:
    """Authenticate. Returns until when the connection is to be used, on the monotonic clock; infinite: for ever.

    Raises AuthenticationError, and what a request raises.
    """
    _agree(connection, config.sasl_mechanism, deadline)
    exchange = _exchange(config, deadline)
    version = connection.version(ApiKey.SASL_AUTHENTICATE)
    message, lifetime_ms = next(exchange), 0
    while True:
        request = SaslAuthenticateRequest(auth_bytes=message)
        answer = connection.result(connection.send(request, version, SaslAuthenticateResponse), deadline)
        if answer.error_code:
            raise _refused(connection, config, answer)
        lifetime_ms = answer.session_lifetime_ms
        try:
            message = exchange.send(bytes(answer.auth_bytes))
        except StopIteration:
            return time.monotonic() + _USED * lifetime_ms / 1000 if lifetime_ms > 0 else float("inf")


def _agree(connection: Connection, mechanism: str, deadline: Deadline) -> None:
    try:
        version = connection.version(ApiKey.SASL_HANDSHAKE, at_least=1)
    except UnsupportedVersionError as error:
        raise AuthenticationError(
            f"{connection.address} knows no SASL", "Leave SASL_ out of security.protocol"
        ) from error
    call = connection.send(SaslHandshakeRequest(mechanism=mechanism), version, SaslHandshakeResponse)
    answer = connection.result(call, deadline)
    if answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM:
        raise AuthenticationError(
            f"{connection.address} does not offer {mechanism}",
            f"Set sasl.mechanism to one of: {', '.join(answer.mechanisms) or 'none'}",
        )
    if answer.error_code:
        raise AuthenticationError(
            f"{connection.address} refuses SASL: {error_code(answer.error_code).name}",
            "Is it a listener with SASL? Else leave SASL_ out of security.protocol",
        )


def _refused(connection: Connection, config: SecurityConfig, answer: SaslAuthenticateResponse) -> AuthenticationError:
    said = answer.error_message or error_code(answer.error_code).name
    return AuthenticationError(
        f"{connection.address} refuses the login with {config.sasl_mechanism}: {said}",
        "Check the token" if config.sasl_mechanism == "OAUTHBEARER" else "Check user name and password",
    )


def _exchange(config: SecurityConfig, deadline: Deadline) -> Exchange:
    if config.sasl_mechanism == "OAUTHBEARER":
        return _bearer(config, deadline)
    user, password = config.login
    if config.sasl_mechanism == "PLAIN":
        return _plain(user, password)
    nonce = base64.b64encode(os.urandom(24)).decode()
    return scram(_HASHES[config.sasl_mechanism], user, password, nonce)


def _plain(user: str, password: str) -> Exchange:
    """RFC 4616; what the broker answers says nothing."""
    yield f"\0{user}\0{password}".encode()


def _bearer(config: SecurityConfig, deadline: Deadline) -> Exchange:
    """RFC 7628: a refusal comes as JSON, and is acknowledged before the broker ends the exchange with an error."""
    token = token_source(config).token(deadline.remaining_s())
    more = "".join(f"{name}={value}\x01" for name, value in (token.extensions or {}).items())
    said = yield f"n,,\x01auth=Bearer {token.value}\x01{more}\x01".encode()
    if said:
        yield b"\x01"
        text = said.decode("utf-8", "replace")[:500]
        raise AuthenticationError(f"the broker refuses the token: {text}", "Check the token")
