"""SCRAM (RFC 5802) with SHA-256 or SHA-512, as a client.

Zone: pure. The errors of clients around `ottla.security.sasl.scram_client`.
"""

from __future__ import annotations

from ottla.client.errors import AuthenticationError
from ottla.security.sasl.mechanism import SaslFailure
from ottla.security.sasl.scram_client import ITERATIONS_MAX, Exchange, scram_messages

__all__ = ["ITERATIONS_MAX", "Exchange", "scram_exchange"]


def scram_exchange(algorithm: str, user: str, password: str, nonce: str, *, with_token: bool = False) -> Exchange:
    """One login, as `scram_messages`.

    with_token: user and password are the id and the HMAC of a delegation token (KIP-48).

    Raises AuthenticationError if the broker refuses, breaks the protocol, or cannot prove that it knows the password.
    """
    try:
        yield from scram_messages(algorithm, user, password, nonce, with_token=with_token)
    except SaslFailure as failure:
        hint = "Check user name and password" if failure.for_client else _NOT_A_BROKER
        raise AuthenticationError(str(failure), hint) from None


_NOT_A_BROKER = "Check that this is the right broker: it may be a false one"
