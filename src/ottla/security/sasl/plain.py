"""PLAIN (RFC 4616): user and password in one token.

Zone: deterministic. Only for connections with TLS, because the password is sent as it is.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, Protocol

from ottla.security.sasl.mechanism import Identity, SaslFailure

PLAIN: Final = "PLAIN"
_WRONG: Final = "Authentication failed: Invalid username or password"


class Passwords(Protocol):
    """Knows the passwords of users."""

    def matches_password(self, user: str, password: str) -> bool:
        """Whether this is the password of the user, in a time that does not depend on either."""
        ...


class StaticPasswords:
    """The users of `user_NAME="password"` options in a JAAS line, or of a file."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._digests = {user: _digest_of(password) for user, password in passwords.items()}

    def has_user(self, user: str) -> bool:
        """Whether there is such a user."""
        return user in self._digests

    def matches_password(self, user: str, password: str) -> bool:
        """Whether this is the password of the user. Digests are compared, so the length is not disclosed either."""
        expected = self._digests.get(user)
        matches = hmac.compare_digest(expected or bytes(32), _digest_of(password))
        return matches and expected is not None


def _digest_of(password: str) -> bytes:
    return hashlib.sha256(password.encode(errors="surrogatepass")).digest()


class PlainExchange:
    """One login."""

    def __init__(self, passwords: Passwords) -> None:
        self._passwords = passwords
        self.identity: Identity | None = None

    def accept_token(self, token: bytes, _now_ms: int) -> bytes:
        """The only token: authorization id, NUL, user, NUL, password. Raises SaslFailure, with Kafka's texts."""
        try:
            parts = token.decode().split("\0", 3)
        except UnicodeDecodeError:
            raise SaslFailure(_WRONG, for_client=True) from None
        # 1. The form. 2. Empty names. 3. The password. 4. The authorization id, which may not be another user.
        if len(parts) != 3:
            raise SaslFailure(f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}", for_client=True)
        authorization_id, user, password = parts
        if not user:
            raise SaslFailure("Authentication failed: username not specified", for_client=True)
        if not password:
            raise SaslFailure("Authentication failed: password not specified", for_client=True)
        if not self._passwords.matches_password(user, password):
            raise SaslFailure(_WRONG, for_client=True)
        if authorization_id not in ("", user):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from username",
                for_client=True,
            )
        self.identity = Identity(user)
        return b""
