"""The exchange of brokers that share a secret: identifies the connections of brokers.

Zone: deterministic. The accepting side of the exchange that `broker_proof` describes. A connection that has completed
it gets the principal BROKER_PRINCIPAL; `ottla.broker.dispatch` requires that for requests that only brokers may send.
On a listener with SASL it is one more mechanism (`client_login`); on others it may begin at any time.
"""

from __future__ import annotations

from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context
from ottla.seams import Entropy, Network, Peer
from ottla.security.broker_proof import (
    BROKER_PRINCIPAL,
    MECHANISM,
    NONCE,
    matches_proof,
    proof_of_accepting,
    proof_of_connecting,
)
from ottla.security.sasl.mechanism import Identity, SaslFailure
from ottla.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

BROKER: Final = Identity(BROKER_PRINCIPAL.partition(":")[2], principal_type=BROKER_PRINCIPAL.partition(":")[0])


class BrokerExchange:
    """One login of a broker."""

    def __init__(self, secret: bytes, entropy: Entropy) -> None:
        self._secret = secret
        self._entropy = entropy
        self._expected = b""
        """The proof that the connection has to send next; empty: it has to send its nonce first."""
        self.identity: Identity | None = None

    def accept_token(self, token: bytes, _now_ms: int) -> bytes:
        """Handle the nonce or the proof. Raises SaslFailure for a wrong proof, and for a nonce of another size."""
        expected = self._expected
        # Once only: a second nonce would be answered with another proof, for as many nonces as a client likes.
        if not expected and len(token) == NONCE:
            own = self._entropy.random_bytes("broker logins", NONCE)
            self._expected = proof_of_connecting(self._secret, token, own)
            return own + proof_of_accepting(self._secret, token, own)
        if expected and matches_proof(token, expected):
            self.identity = BROKER
            return b""
        raise SaslFailure("did not prove that it knows the secret of this cluster's brokers")


class BrokerLogin:
    """Authenticates connections of brokers on listeners without SASL."""

    def __init__(self, secret: bytes, entropy: Entropy, network: Network) -> None:
        self._secret = secret
        self._entropy = entropy
        self._network = network
        self._exchanges: dict[Peer, BrokerExchange] = {}

    def new_exchange(self) -> BrokerExchange:
        """Begin a login."""
        return BrokerExchange(self._secret, self._entropy)

    def begin_login(self, context: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """Agree on the mechanism. Errors: UNSUPPORTED_SASL_MECHANISM."""
        self._exchanges.pop(context.peer, None)
        if request.mechanism != MECHANISM or context.api_version < 1:
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=[MECHANISM])
        self._exchanges[context.peer] = self.new_exchange()
        return SaslHandshakeResponse(mechanisms=[MECHANISM])

    def authenticate(self, context: Context, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse | None:
        """Handle one step of the exchange. Raises ApiError ILLEGAL_SASL_STATE before `begin_login`.

        A wrong proof, or a nonce of another size, closes the connection with one log line.
        """
        peer = context.peer
        exchange = self._exchanges.get(peer)
        if exchange is None:
            raise ApiError(ErrorCode.ILLEGAL_SASL_STATE, "send SaslHandshake before SaslAuthenticate")
        try:
            answer = exchange.accept_token(bytes(request.auth_bytes), 0)
        except SaslFailure as failure:
            del self._exchanges[peer]
            self._network.close_connection(peer, str(failure))
            return None
        if exchange.identity is not None:
            del self._exchanges[peer]
            peer.principal = BROKER_PRINCIPAL
        return SaslAuthenticateResponse(auth_bytes=answer)

    def on_gone(self, peer: Peer) -> None:
        """Forget the exchange of a connection that has ended."""
        self._exchanges.pop(peer, None)
