"""What the mechanisms have in common: an exchange of tokens that ends with an identity or a failure.

Zone: deterministic.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


class SaslFailure(Exception):
    """The login failed. The text is for the log, and for the client only if it does not disclose which users exist."""

    def __init__(self, message: str, *, for_client: bool = False) -> None:
        super().__init__(message)
        self.for_client = for_client


class Identity(NamedTuple):
    """Who has logged in."""

    user: str
    expires_at_ms: int | None = None
    """When the credential ends, in milliseconds since 1970; None: it does not."""
    by_token: bool = False
    """Whether a delegation token was used. Such a connection may not create tokens."""
    principal_type: str = "User"

    @property
    def principal(self) -> str:
        """The principal as text."""
        return f"{self.principal_type}:{self.user}"


class SaslExchange(Protocol):
    """One login with one mechanism."""

    identity: Identity | None
    """Set by the last token: the login is complete."""

    def accept_token(self, token: bytes, now_ms: int) -> bytes:
        """Handle a token of the client; returns the answer, which may be empty. Raises SaslFailure."""
        ...
