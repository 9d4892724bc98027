"""SaslHandshake (key 17) and SaslAuthenticate (key 36): authentication inside Kafka frames.

Zone: pure. Declarations only: what bytes there are in which version.
"""

from __future__ import annotations

from ottla.wire.schema import Message, array, int16, int64, nullable_string, octets, string


class SaslHandshakeRequest(Message, api_key=17, versions="0-1"):
    """The SASL mechanism the client wants.

    v0: raw SASL packets follow. v1: they follow in SaslAuthenticate (KIP-152).
    """

    mechanism: str = string("0+")


class SaslHandshakeResponse(Message, api_key=17, versions="0-1"):
    """The mechanisms the broker has, and an error when the wanted one is not among them."""

    error_code: int = int16("0+")
    mechanisms: list[str] = array("0+", "string")


class SaslAuthenticateRequest(Message, api_key=36, versions="0-2", flexible="2+"):
    """One SASL message of the client (KIP-152)."""

    auth_bytes: bytes = octets("0+")


class SaslAuthenticateResponse(Message, api_key=36, versions="0-2", flexible="2+"):
    """One SASL message of the broker. v1: lifetime of the session (KIP-368)."""

    error_code: int = int16("0+")
    error_message: str | None = nullable_string("0+", "0+", "")
    auth_bytes: bytes = octets("0+")
    session_lifetime_ms: int = int64("1+")
