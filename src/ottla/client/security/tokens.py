"""Bearer tokens for OAUTHBEARER: from a function, from a token endpoint, or unsecured ones for development.

Zone: real. The only module of the clients that uses HTTP (OAuth 2.0 client credentials, RFC 6749 section 4.4).
"""

from __future__ import annotations

import base64
import http.client
import json
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from functools import lru_cache
from typing import Final

from ottla.client.errors import AuthenticationError, UnreachableError
from ottla.client.security.settings import SecurityConfig, Token

_FRESH: Final = 0.8
"""The part of a token's lifetime after which a new one is fetched, as in Kafka."""
_ANSWER_MAX: Final = 1 << 20
_UNSECURED_S: Final = 3600


class TokenSource:
    """The tokens of one configuration; may be used from any thread."""

    def __init__(self, config: SecurityConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._renew_at = 0.0

    def valid_token(self, timeout_s: float) -> Token:
        """A valid token. Raises AuthenticationError, UnreachableError."""
        with self._lock:
            now = time.time()
            if self._token is None or now >= self._renew_at:
                self._token = self._fetch_token(timeout_s)
                # An infinite lifetime gives an infinite time of renewal.
                self._renew_at = now + _FRESH * max(0.0, self._token.expires_at - now)
            return self._token

    def _fetch_token(self, timeout_s: float) -> Token:
        provider = self._config.sasl_login_callback_handler_class
        if provider is not None:
            return _checked_token(provider())
        if self._config.sasl_oauthbearer_token_endpoint_url:
            return _from_endpoint(self._config, timeout_s)
        return _unsecured_token(self._config.unsecured_subject)


@lru_cache(maxsize=64)
def token_source(config: SecurityConfig) -> TokenSource:
    """The source for a configuration: one for each, so that connections share tokens."""
    return TokenSource(config)


def _checked_token(token: object) -> Token:
    if isinstance(token, str):
        return Token(token)
    if not isinstance(token, Token):
        raise AuthenticationError(
            f"sasl.login.callback.handler.class returned {type(token).__name__}",
            "Return an ottla.client Token, or a string",
        )
    return token


def _from_endpoint(config: SecurityConfig, timeout_s: float) -> Token:
    url = config.sasl_oauthbearer_token_endpoint_url
    user, secret, scope = config.client_credentials
    form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
    login = base64.b64encode(f"{urllib.parse.quote(user)}:{urllib.parse.quote(secret)}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Accept": "application/json"}
    try:
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError("neither http nor https")
        request = urllib.request.Request(url, urllib.parse.urlencode(form).encode(), headers)  # noqa: S310  as checked
        with urllib.request.urlopen(request, timeout=max(0.001, timeout_s)) as answer:  # noqa: S310
            return _parse_grant(url, answer.read(_ANSWER_MAX))
    except urllib.error.HTTPError as error:
        with error:
            told = error.read(500).decode("utf-8", "replace")
        message = f"{url} did not return a token: {error.code} {told}"
        # A server error may pass, so it is retriable; any other status is about the credentials.
        if error.code >= 500:
            raise UnreachableError(message) from error
        raise AuthenticationError(message, "Check the client id, its secret and the scope") from error
    except (OSError, http.client.HTTPException) as error:
        raise UnreachableError(f"the request for a token to {url} failed: {error}") from error
    except ValueError as error:
        raise AuthenticationError(f"{url} is not a URL of a token endpoint: {error}") from error


def _parse_grant(url: str, body: bytes) -> Token:
    try:
        answer = json.loads(body)
        value, seconds = answer["access_token"], float(answer.get("expires_in", 300))
    except (ValueError, KeyError, TypeError, AttributeError):
        value, seconds = None, 0.0
    if not isinstance(value, str) or not value or not seconds > 0:
        raise AuthenticationError(
            f"{url} answered without an access_token", "Check that it is a token endpoint of OAuth 2.0"
        )
    return Token(value, time.time() + seconds)


def _unsecured_token(subject: str) -> Token:
    now = int(time.time())  # brokers round to milliseconds, and refuse a token from the future
    claims = {"sub": subject, "iat": now, "exp": now + _UNSECURED_S}
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in ({"alg": "none"}, claims)]
    return Token(b".".join([*parts, b""]).decode(), now + _UNSECURED_S)
