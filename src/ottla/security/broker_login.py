"""SaslHandshake and SaslAuthenticate for brokers that share a secret: identifies the connections of brokers.

Zone: deterministic. The accepting side of the exchange that `broker_proof` describes. A connection that has completed
it gets the principal BROKER_PRINCIPAL; `ottla.broker.dispatch` requires that for requests that only brokers may send.

API 17, version 1: tokens follow in SaslAuthenticate. API 36, versions 0-2.
"""

from __future__ import annotations

from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, handles
from ottla.seams import Entropy, Network, Peer
from ottla.security.broker_proof import (
    BROKER_PRINCIPAL,
    MECHANISM,
    NONCE,
    matches_proof,
    proof_of_accepting,
    proof_of_connecting,
)
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)


class BrokerLogin:
    """Authenticates connections of brokers."""

    def __init__(self, secret: bytes, entropy: Entropy, network: Network) -> None:
        self._secret = secret
        self._entropy = entropy
        self._network = network
        self._begun: dict[Peer, bytes] = {}
        """The proof that a connection has to send next; empty: it has to send its nonce first."""

    @handles(ApiKey.SASL_HANDSHAKE, 1, 1, early=True)
    def begin_login(self, context: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """Agree on the mechanism. Errors: UNSUPPORTED_SASL_MECHANISM."""
        self._begun.pop(context.peer, None)
        if request.mechanism != MECHANISM:
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=[MECHANISM])
        self._begun[context.peer] = b""
        return SaslHandshakeResponse(mechanisms=[MECHANISM])

    @handles(ApiKey.SASL_AUTHENTICATE, 0, 2, early=True)
    def authenticate(self, context: Context, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse | None:
        """Handle one step of the exchange. Raises ApiError ILLEGAL_SASL_STATE before `begin_login`.

        A wrong proof, or a nonce of another size, closes the connection with one log line.
        """
        peer, content = context.peer, bytes(request.auth_bytes)
        expected = self._begun.pop(peer, None)
        if expected is None:
            raise ApiError(ErrorCode.ILLEGAL_SASL_STATE, "send SaslHandshake before SaslAuthenticate")
        # 1. The nonce of the connecting broker. 2. Its proof. 3. Anything else closes the connection.
        if not expected and len(content) == NONCE:
            own = self._entropy.random_bytes("broker logins", NONCE)
            self._begun[peer] = proof_of_connecting(self._secret, content, own)
            return SaslAuthenticateResponse(auth_bytes=own + proof_of_accepting(self._secret, content, own))
        if expected and matches_proof(content, expected):
            peer.principal = BROKER_PRINCIPAL
            return SaslAuthenticateResponse()
        self._network.close_connection(peer, "did not prove that it knows the secret of this cluster's brokers")
        return None

    def on_gone(self, peer: Peer) -> None:
        """Forget the exchange of a connection that has ended."""
        self._begun.pop(peer, None)
