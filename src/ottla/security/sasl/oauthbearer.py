"""OAUTHBEARER (RFC 7628): a bearer token in one message; a refusal is a message of its own.

Zone: deterministic. The exchange parses the message; `BearerTokens` judges the token. After a refusal, which is JSON,
the client has to send one byte before the broker may end the login with an error.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple, Protocol

from ottla.security.sasl.mechanism import Identity, SaslFailure

OAUTHBEARER: Final = "OAUTHBEARER"
_SEPARATOR: Final = "\x01"
_NAME: Final = re.compile(r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+")
_KEY: Final = re.compile(r"[A-Za-z]+")
_VALUE: Final = re.compile(r"[\x21-\x7e \t\r\n]+")
_TOKEN: Final = re.compile(r"(\w+) +([-_~+/.a-zA-Z0-9]+=*)", re.ASCII)
_PAIRS_MAX: Final = 100
"""Most pairs of a message; all but the token are ignored."""
_FORMAT: Final = "Invalid OAUTHBEARER client first message"


class TokenRefused(Exception):
    """The token is not accepted. The text is for the log; the client learns the status and the scope that it needs."""

    def __init__(self, reason: str, scope: str | None = None) -> None:
        super().__init__(reason)
        self.scope = scope


class ValidToken(NamedTuple):
    """What an accepted token says."""

    user: str
    expires_at_ms: int


class BearerTokens(Protocol):
    """Judges tokens."""

    def check_token(self, token: str, now_ms: int) -> ValidToken:
        """Check signature, lifetime and claims. Raises TokenRefused."""
        ...


class OauthBearerExchange:
    """One login."""

    def __init__(self, tokens: BearerTokens) -> None:
        self._tokens = tokens
        self._refusal = ""
        """The JSON that was sent to the client; empty: nothing was refused."""
        self.identity: Identity | None = None

    def accept_token(self, token: bytes, now_ms: int) -> bytes:
        """Handle the client's first message, or its acknowledgement of a refusal. Raises SaslFailure."""
        if self._refusal:
            # Kafka accepts another token here, any number of times; one login tries one token.
            raise SaslFailure(self._refusal, for_client=True)
        message = _parse_client_first(token)
        try:
            valid = self._tokens.check_token(message.token, now_ms)
        except TokenRefused as error:
            content = {"status": "invalid_token"} | ({} if error.scope is None else {"scope": error.scope})
            self._refusal = json.dumps(content)
            return self._refusal.encode()
        if message.authorization_id not in ("", valid.user):
            raise SaslFailure(
                "Authentication failed: Client requested an authorization id that is different from the token's"
                " principal name",
                for_client=True,
            )
        self.identity = Identity(valid.user, valid.expires_at_ms)
        return b""


class _ClientFirst(NamedTuple):
    authorization_id: str
    token: str


def _parse_client_first(message: bytes) -> _ClientFirst:
    """Parse `n,[a=name],^Aauth=Bearer token^A[key=value^A…]^A`; keys other than `auth` are ignored."""
    try:
        text = message.decode("ascii")
    except UnicodeDecodeError:
        raise SaslFailure(_FORMAT) from None
    header, first_separator, rest = text.partition(_SEPARATOR)
    flag, comma, authorization = header.partition(",")
    if not first_separator or flag != "n" or not comma or not authorization.endswith(","):
        raise SaslFailure(_FORMAT)
    authorization = authorization[:-1]
    if authorization and not (authorization.startswith("a=") and _NAME.fullmatch(authorization[2:])):
        raise SaslFailure(_FORMAT)
    # The message ends with a separator of its last pair and one of its own.
    if not rest.endswith(_SEPARATOR * 2):
        raise SaslFailure(_FORMAT)
    pairs = dict(_parse_pair(pair) for pair in rest[:-2].split(_SEPARATOR, _PAIRS_MAX))
    found = _TOKEN.fullmatch(pairs.get("auth", ""))
    if found is None or found[1].lower() != "bearer":
        raise SaslFailure(f"{_FORMAT}: 'auth' is not a bearer token")
    # The comma first: with the other order `=3D2C`, which is the text `=2C`, would become a comma.
    return _ClientFirst(authorization[2:].replace("=2C", ",").replace("=3D", "="), found[2])


def _parse_pair(pair: str) -> tuple[str, str]:
    key, equals, value = pair.partition("=")
    if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
        raise SaslFailure(_FORMAT)
    return key, value
