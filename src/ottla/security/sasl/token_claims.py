"""Which bearer tokens are accepted: rules about the claims of a JSON Web Token, and tokens without a signature.

Zone: deterministic. A signature is checked by a library (`SignedTokens`), which returns the claims; nothing here
computes a signature. The claims are checked here, so that a token's lifetime is compared with the broker's clock, and
with the same rules whatever the library is.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, NamedTuple, Protocol

from ottla.security.sasl.oauthbearer import TokenRefused, ValidToken

Claims = Mapping[str, Any]
_EXPIRES_MAX: Final = 2**53
"""Seconds; a larger number is a mistake or an attack, and no float has its exact value."""


class SignedTokens(Protocol):
    """Checks signatures with the keys of the issuer. It refuses the algorithm `none`, and tokens of unknown keys."""

    def claims_of(self, token: str) -> Claims:
        """The claims of a token whose signature is right. Raises TokenRefused."""
        ...


class UnsecuredTokens:
    """Tokens without a signature, for development: everyone who can connect can be anyone."""

    def claims_of(self, token: str) -> Claims:
        """The claims of a token. Raises TokenRefused."""
        parts = token.split(".")
        if len(parts) != 3 or parts[2]:
            raise TokenRefused("the token is not an unsecured one: three parts, the last of them empty")
        header, claims = _decode_part(parts[0]), _decode_part(parts[1])
        if header.get("alg") != "none":
            raise TokenRefused("the algorithm of an unsecured token is not none")
        return claims


def _decode_part(part: str) -> dict[str, Any]:
    try:
        # JSON Web Tokens leave the padding out (RFC 7515).
        value = json.loads(base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise TokenRefused("a part of the token is not JSON in base64") from None
    if not isinstance(value, dict):
        raise TokenRefused("a part of the token is not a JSON object")
    return value


class ClaimRules(NamedTuple):
    """The settings `sasl.oauthbearer.*` about claims."""

    audiences: frozenset[str] = frozenset()
    """Accepted audiences; empty: a token that names an audience is refused, because it may be meant for others."""
    issuer: str | None = None
    """The accepted issuer; None: the issuer is not checked."""
    allow_unverified_audience: bool = False
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    required_scopes: frozenset[str] = frozenset()
    clock_skew_s: int = 30
    requires_issue_time: bool = True


class CheckedTokens:
    """Accepts tokens whose signature and claims are right."""

    def __init__(self, source: SignedTokens, rules: ClaimRules) -> None:
        self._source = source
        self._rules = rules

    def check_token(self, token: str, now_ms: int) -> ValidToken:
        """Check signature, lifetime and claims. Raises TokenRefused."""
        claims = self._source.claims_of(token)
        rules = self._rules
        expires = _check_times(claims, now_ms / 1000, rules)
        if rules.issuer is not None and claims.get("iss") != rules.issuer:
            raise TokenRefused("the token is of another issuer")
        _check_audience(claims.get("aud"), rules)
        missing = rules.required_scopes - _scopes_of(claims.get(rules.scope_claim))
        if missing:
            raise TokenRefused("the token lacks a required scope", scope=" ".join(sorted(rules.required_scopes)))
        subject = claims.get(rules.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise TokenRefused(f"the claim {rules.subject_claim} is not the name of a user")
        return ValidToken(subject.strip(), int(expires * 1000))


def _check_times(claims: Claims, now_s: float, rules: ClaimRules) -> float:
    """Check exp, iat and nbf; returns exp. A boundary counts as in Kafka: expired is `now - skew >= exp`."""
    expires = _seconds_at(claims, "exp")
    issued, begins = _seconds_at(claims, "iat"), _seconds_at(claims, "nbf")
    if expires is None or (issued is None and rules.requires_issue_time):
        raise TokenRefused("the token has no time of expiry, or none of issue")
    if now_s - rules.clock_skew_s >= expires:
        raise TokenRefused("the token has expired")
    if any(time is not None and time > now_s + rules.clock_skew_s for time in (issued, begins)):
        raise TokenRefused("the token is not valid yet")
    return expires


def _seconds_at(claims: Claims, name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    # `true` would be the number 1 in Python.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TokenRefused(f"the claim {name} is not a number")
    if not 0 <= value <= _EXPIRES_MAX or not isfinite(value):
        raise TokenRefused(f"the claim {name} is not a time")
    return float(value)


def _check_audience(audience: object, rules: ClaimRules) -> None:
    if audience is None and not rules.audiences:
        return
    named = [audience] if isinstance(audience, str) else audience if isinstance(audience, list) else []
    if not rules.audiences and rules.allow_unverified_audience:
        return
    if not any(isinstance(each, str) and each in rules.audiences for each in named):
        raise TokenRefused("the token is for another audience")


def _scopes_of(value: object) -> frozenset[str]:
    if isinstance(value, str):
        return frozenset(value.split())
    if isinstance(value, list):
        return frozenset(each.strip() for each in value if isinstance(each, str))
    return frozenset()
