"""OAUTHBEARER: right logins, every wrong message, and tokens that are refused.

Zone: pure.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from ottla.security.sasl.mechanism import Identity, SaslFailure
from ottla.security.sasl.oauthbearer import OauthBearerExchange, TokenRefused
from ottla.security.sasl.token_claims import CheckedTokens, ClaimRules, UnsecuredTokens

NOW_MS = 1_700_000_000_000
NOW_S = NOW_MS // 1000


def unsecured(claims: object, header: object = None) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part({'alg': 'none'} if header is None else header)}.{part(claims)}."


CLAIMS = {"sub": "ann", "iat": NOW_S, "exp": NOW_S + 60}


def bearer(token: str, header: str = "n,,") -> bytes:
    return f"{header}\x01auth=Bearer {token}\x01\x01".encode()


def tokens_with(**rules: Any) -> CheckedTokens:
    return CheckedTokens(UnsecuredTokens(), ClaimRules(**rules))


@pytest.mark.parametrize(
    "message",
    [
        bearer(unsecured(CLAIMS)),
        bearer(unsecured(CLAIMS), "n,a=ann,"),
        bearer(unsecured(CLAIMS)).replace(b"Bearer ", b"bEARER   "),
        b"n,,\x01traceId=1 2\x01auth=Bearer " + unsecured(CLAIMS).encode() + b"\x01\x01",
    ],
)
def test_oauthbearer(message: bytes) -> None:
    exchange = OauthBearerExchange(tokens_with())
    assert exchange.accept_token(message, NOW_MS) == b""
    assert exchange.identity == Identity("ann", (NOW_S + 60) * 1000)


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"n,,",
        b"n,,\x01\x01",
        b"n,,\x01auth=Bearer abc\x01",
        b"n,,\x01auth=Bearer abc",
        b"n,,auth=Bearer abc\x01\x01",
        b"y,,\x01auth=Bearer abc\x01\x01",
        b"p=x,,\x01auth=Bearer abc\x01\x01",
        b"n,ann,\x01auth=Bearer abc\x01\x01",
        b"n,a=,\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Basic abc\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer a b\x01\x01",
        b"n,,\x01auth=Bearer a=b\x01\x01",
        b"n,,\x01auth\x01\x01",
        b"n,,\x01x=y\x01\x01",
        b"n,,\x01a1=y\x01auth=Bearer abc\x01\x01",
        b"n,,\x01a=\x01auth=Bearer abc\x01\x01",
        b"n,,\x01auth=Bearer \xc3\xa9\x01\x01",
        b"\0ann\0secret",
        b"n,,\x01" + b"a=b\x01" * 10_000,
        b"n,,\x01" + b"a=b\x01" * 101 + b"auth=Bearer abc\x01\x01",
    ],
)
def test_oauthbearer_messages_that_are_malformed(message: bytes) -> None:
    exchange = OauthBearerExchange(tokens_with())
    with pytest.raises(SaslFailure, match="Invalid OAUTHBEARER client first message") as failure:
        exchange.accept_token(message, NOW_MS)
    assert not failure.value.for_client


@pytest.mark.parametrize(
    "claims",
    [
        CLAIMS | {"exp": NOW_S - 30},
        {key: CLAIMS[key] for key in ("sub", "iat")},
        {key: CLAIMS[key] for key in ("sub", "exp")},
        {key: CLAIMS[key] for key in ("exp", "iat")},
        CLAIMS | {"exp": str(NOW_S + 60)},
        CLAIMS | {"exp": True},
        CLAIMS | {"exp": -1},
        CLAIMS | {"exp": 1e300},
        CLAIMS | {"exp": float("inf")},
        CLAIMS | {"exp": float("nan")},
        CLAIMS | {"exp": 10**400},
        CLAIMS | {"exp": None},
        CLAIMS | {"iat": NOW_S + 31},
        CLAIMS | {"nbf": NOW_S + 31},
        CLAIMS | {"nbf": [1]},
        CLAIMS | {"sub": ""},
        CLAIMS | {"sub": "  "},
        CLAIMS | {"sub": 7},
        CLAIMS | {"aud": "others"},
        CLAIMS | {"aud": ["others"]},
        CLAIMS | {"aud": {}},
        [CLAIMS],
        "ann",
        None,
    ],
    ids=range(24),
)
def test_tokens_that_are_refused(claims: object) -> None:
    exchange = OauthBearerExchange(tokens_with())
    assert exchange.accept_token(bearer(unsecured(claims)), NOW_MS) == b'{"status": "invalid_token"}'
    assert exchange.identity is None
    for second in (b"\x01", bearer(unsecured(CLAIMS))):
        with pytest.raises(SaslFailure, match="invalid_token") as failure:
            exchange.accept_token(second, NOW_MS)
        assert failure.value.for_client
    assert exchange.identity is None


@pytest.mark.parametrize(
    "token",
    [
        "abc",
        "a.b.c",
        "..",
        unsecured(CLAIMS)[:-1],
        unsecured(CLAIMS) + "sig",
        unsecured(CLAIMS, {"alg": "HS256"}),
        unsecured(CLAIMS, {"alg": "None"}),
        unsecured(CLAIMS, {}),
        unsecured(CLAIMS, ["none"]),
        base64.urlsafe_b64encode(b"[" * 100_000).decode() + ".e30.",
        base64.urlsafe_b64encode(b'{"alg":"none"}').decode().rstrip("=") + "." + "A" * 60_000 + ".",
    ],
    ids=range(11),
)
def test_tokens_that_are_no_unsecured_tokens(token: str) -> None:
    with pytest.raises(TokenRefused):
        tokens_with().check_token(token, NOW_MS)


def test_rules_about_claims() -> None:
    def accepts(claims: dict[str, object], **rules: Any) -> bool:
        try:
            tokens_with(**rules).check_token(unsecured(CLAIMS | claims), NOW_MS)
        except TokenRefused:
            return False
        return True

    ours = frozenset({"kafka"})
    assert accepts({"aud": "kafka"}, audiences=ours)
    assert accepts({"aud": ["x", "kafka", 1]}, audiences=ours)
    assert not accepts({}, audiences=ours)
    assert not accepts({"aud": "x"}, audiences=ours)
    assert not accepts({"aud": "x"}, audiences=ours, allow_unverified_audience=True)
    assert accepts({"aud": "x"}, allow_unverified_audience=True)
    assert accepts({"iss": "https://i"}, issuer="https://i")
    assert not accepts({"iss": "https://j"}, issuer="https://i")
    assert not accepts({}, issuer="https://i")
    assert accepts({"scope": "a b"}, required_scopes=frozenset({"b"}))
    assert accepts({"scp": ["a", "b"]}, scope_claim="scp", required_scopes=frozenset({"a", "b"}))
    assert not accepts({"scope": "ab"}, required_scopes=frozenset({"b"}))
    for border, strict in (({"exp": NOW_S - 29}, 0), ({"iat": NOW_S + 29}, 0), ({"nbf": NOW_S + 29}, 28)):
        assert accepts(border)
        assert not accepts(border, clock_skew_s=strict)
    assert accepts({"iat": None}, requires_issue_time=False)
    assert not accepts({"iat": None})
    valid = tokens_with(subject_claim="email").check_token(unsecured(CLAIMS | {"email": " a@b "}), NOW_MS)
    assert valid.user == "a@b"
    with pytest.raises(TokenRefused) as refused:
        tokens_with(required_scopes=frozenset({"w", "r"})).check_token(unsecured(CLAIMS), NOW_MS)
    assert refused.value.scope == "r w"


def test_a_token_for_another_authorization_id() -> None:
    exchange = OauthBearerExchange(tokens_with())
    with pytest.raises(SaslFailure, match="different from the token's principal name") as failure:
        exchange.accept_token(bearer(unsecured(CLAIMS), "n,a=bob,"), NOW_MS)
    assert failure.value.for_client
    assert exchange.identity is None
