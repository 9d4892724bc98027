"""The login of a connection: every state with every message.

Zone: pure.
"""

from __future__ import annotations

from typing import Any

import pytest

from ottla.config.sasl_listeners import FRAME_MAX
from ottla.errors import ErrorCode
from ottla.seams import Instant
from ottla.security.sasl.mechanism import Identity, SaslFailure
from ottla.security.sasl.session import SaslSession, SaslSettings, State, Verdict
from ottla.wire.apis import ApiKey

SECOND = 1_000_000_000
AT = Instant(mono_ns=5 * SECOND, wall_ms=1_000_000)
MECHANISMS = ("PLAIN", "OAUTHBEARER")


class Steps:
    """An exchange of two tokens: b"first", then the name of a user, with the lifetime of its credential in ms."""

    def __init__(self) -> None:
        self.identity: Identity | None = None

    def accept_token(self, token: bytes, now_ms: int) -> bytes:
        if token == b"first":
            return b"continue"
        name, _, lifetime = token.decode().partition(" ")
        if name in ("wrong", "public"):
            raise SaslFailure("no such user", for_client=name == "public")
        self.identity = Identity(name, now_ms + int(lifetime) if lifetime else None)
        return b"welcome"


def later(seconds: float) -> Instant:
    return Instant(AT.mono_ns + int(seconds * SECOND), AT.wall_ms + int(seconds * 1000))


def session(reauth_ms: int = 0) -> SaslSession:
    settings = SaslSettings(MECHANISMS, max_reauth_ms={"PLAIN": reauth_ms})
    return SaslSession(settings, lambda _mechanism: Steps())


def in_state(name: str, reauth_ms: int = 0) -> SaslSession:
    made = session(reauth_ms)
    if name == "start":
        return made
    made.judge_request(ApiKey.API_VERSIONS, AT)
    made.on_versions_sent(ErrorCode.NONE)
    if name == "versions":
        return made
    made.judge_request(ApiKey.SASL_HANDSHAKE, AT)
    made.on_handshake("PLAIN", 0 if name == "raw" else 1, AT)
    if name in ("exchange", "raw"):
        return made
    made.on_token(b"wrong" if name == "failed" else b"ann", AT)
    if name in ("complete", "failed"):
        return made
    made.judge_request(ApiKey.SASL_HANDSHAKE, AT)
    made.on_handshake("OAUTHBEARER" if name == "other" else "PLAIN", 1, AT)
    return made


APIS = [ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE, ApiKey.METADATA, ApiKey.PRODUCE, 9999, -1]
SERVE, LOGIN, REFUSE, CLOSE = Verdict.SERVE, Verdict.LOGIN, Verdict.REFUSE, Verdict.CLOSE


@pytest.mark.parametrize(
    ("state", "verdicts"),
    [
        ("start", [SERVE, LOGIN, CLOSE, CLOSE, CLOSE, CLOSE, CLOSE]),
        ("versions", [CLOSE, LOGIN, CLOSE, CLOSE, CLOSE, CLOSE, CLOSE]),
        ("exchange", [REFUSE, REFUSE, LOGIN, REFUSE, REFUSE, REFUSE, REFUSE]),
        ("raw", [CLOSE, CLOSE, CLOSE, CLOSE, CLOSE, CLOSE, CLOSE]),
        ("complete", [SERVE, LOGIN, LOGIN, SERVE, SERVE, SERVE, SERVE]),
        ("failed", [CLOSE, CLOSE, CLOSE, CLOSE, CLOSE, CLOSE, CLOSE]),
        ("again", [REFUSE, REFUSE, LOGIN, REFUSE, REFUSE, REFUSE, REFUSE]),
        ("other", [CLOSE, CLOSE, LOGIN, CLOSE, CLOSE, CLOSE, CLOSE]),
    ],
)
def test_every_state_with_every_request(state: str, verdicts: list[Verdict]) -> None:
    for api, expected in zip(APIS, verdicts, strict=True):
        made = in_state(state, reauth_ms=3_600_000)
        before = made.state
        assert made.judge_request(api, AT) is expected, api
        if expected in (CLOSE, REFUSE):
            assert made.state is State.FAILED
            assert made.failure
            assert {made.judge_request(each, AT) for each in APIS} == {CLOSE}
        else:
            assert made.state is before


@pytest.mark.parametrize("state", ["start", "versions", "other", "failed"])
def test_a_token_out_of_turn_fails(state: str) -> None:
    made = in_state(state, reauth_ms=3_600_000)
    answer = made.on_token(b"ann", AT)
    assert answer.close
    assert answer.response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert made.state is State.FAILED


def test_versions_may_be_asked_again_after_an_error() -> None:
    made = session()
    made.on_versions_sent(ErrorCode.UNSUPPORTED_VERSION)
    assert made.judge_request(ApiKey.API_VERSIONS, AT) is SERVE
    made.on_versions_sent(ErrorCode.NONE)
    assert made.judge_request(ApiKey.API_VERSIONS, AT) is CLOSE


def test_a_login() -> None:
    made = in_state("exchange")
    first = made.on_token(b"first", AT)
    assert (first.response.error_code, bytes(first.response.auth_bytes), first.close) == (0, b"continue", False)
    assert made.identity is None
    last = made.on_token(b"ann", AT)
    assert (last.response.error_code, bytes(last.response.auth_bytes)) == (0, b"welcome")
    assert last.response.session_lifetime_ms == 0
    assert made.identity == Identity("ann")
    assert made.state is State.COMPLETE
    assert made.judge_request(ApiKey.PRODUCE, later(10**6)) is SERVE


def test_a_login_with_raw_tokens() -> None:
    made = in_state("raw")
    assert made.expects_raw_token
    assert bytes(made.on_token(b"first", AT).response.auth_bytes) == b"continue"
    made.on_token(b"ann", AT)
    assert not made.expects_raw_token
    assert made.identity == Identity("ann")


def test_a_mechanism_that_is_not_enabled() -> None:
    for name in ("GSSAPI", "plain", "", "x" * 10_000):
        made = session()
        answer = made.on_handshake(name, 1, AT)
        assert answer.close
        assert answer.response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert answer.response.mechanisms == list(MECHANISMS)
        assert made.state is State.FAILED
        assert len(made.failure) < 200


@pytest.mark.parametrize(
    ("token", "text"),
    [
        (b"public", "no such user"),
        (b"wrong", "Authentication failed during authentication due to invalid credentials with SASL mechanism PLAIN"),
    ],
)
def test_a_failure_discloses_only_what_it_may(token: bytes, text: str) -> None:
    made = in_state("exchange")
    answer = made.on_token(token, AT)
    assert answer.close
    assert answer.response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.response.error_message == text
    assert made.failure == "no such user"
    assert made.identity is None


@pytest.mark.parametrize(
    ("reauth_ms", "token", "lifetime_ms"),
    [
        (0, b"ann", 0),
        (60_000, b"ann", 60_000),
        (0, b"ann 30000", 30_000),
        (60_000, b"ann 30000", 30_000),
        (60_000, b"ann 90000", 60_000),
        (60_000, b"ann -5", 0),
    ],
)
def test_the_lifetime_of_a_session(reauth_ms: int, token: bytes, lifetime_ms: int) -> None:
    made = in_state("exchange", reauth_ms)
    assert made.on_token(token, AT).response.session_lifetime_ms == lifetime_ms
    ends = reauth_ms or b" " in token
    assert made.judge_request(ApiKey.FETCH, later(lifetime_ms / 1000)) is SERVE
    assert made.judge_request(ApiKey.FETCH, later(lifetime_ms / 1000 + 0.001)) is (CLOSE if ends else SERVE)


def reauthenticate(made: SaslSession, at: Instant, token: bytes, mechanism: str = "PLAIN") -> Any:
    assert made.judge_request(ApiKey.SASL_HANDSHAKE, at) is LOGIN
    handshake = made.on_handshake(mechanism, 1, at)
    assert (handshake.response.error_code, handshake.close) == (0, False)
    assert made.judge_request(ApiKey.SASL_AUTHENTICATE, at) is LOGIN
    return made.on_token(token, at)


def test_re_authentication_extends_the_session_even_after_its_end() -> None:
    made = in_state("complete", reauth_ms=60_000)
    assert reauthenticate(made, later(50), b"ann").response.session_lifetime_ms == 60_000
    assert made.judge_request(ApiKey.FETCH, later(109)) is SERVE
    assert reauthenticate(made, later(200), b"ann").response.error_code == 0
    assert made.judge_request(ApiKey.FETCH, later(259)) is SERVE
    assert made.judge_request(ApiKey.FETCH, later(261)) is CLOSE


def test_re_authentication_as_another_user_fails() -> None:
    made = in_state("complete", reauth_ms=60_000)
    answer = reauthenticate(made, later(1), b"bob")
    assert answer.close
    assert answer.response.error_message == "Cannot change principals during re-authentication from User:ann: User:bob"
    assert made.identity == Identity("ann")
    assert made.state is State.FAILED


def test_re_authentication_with_wrong_credentials_fails() -> None:
    answer = reauthenticate(in_state("complete", reauth_ms=60_000), later(1), b"wrong")
    assert answer.close
    assert answer.response.error_message == (
        "Authentication failed during re-authentication due to invalid credentials with SASL mechanism PLAIN"
    )


def test_re_authentication_with_another_mechanism_fails_at_its_token() -> None:
    answer = reauthenticate(in_state("complete", reauth_ms=60_000), later(1), b"ann", "OAUTHBEARER")
    assert answer.close
    assert answer.response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED


def test_re_authentication_that_is_not_due_is_an_error_without_an_end() -> None:
    endless = in_state("complete")
    assert endless.judge_request(ApiKey.SASL_HANDSHAKE, AT) is LOGIN
    answer = endless.on_handshake("PLAIN", 1, AT)
    assert (answer.response.error_code, answer.close) == (ErrorCode.ILLEGAL_SASL_STATE, False)
    assert endless.judge_request(ApiKey.FETCH, AT) is SERVE

    made = in_state("complete", reauth_ms=60_000)
    reauthenticate(made, later(10), b"ann")
    answer = made.on_handshake("PLAIN", 1, later(10.9))
    assert (answer.response.error_code, answer.close) == (ErrorCode.ILLEGAL_SASL_STATE, False)
    reauthenticate(made, later(11), b"ann")

    token = made.on_token(b"ann", later(12))
    assert (token.response.error_code, token.close) == (ErrorCode.ILLEGAL_SASL_STATE, False)
    assert made.state is State.COMPLETE


def test_an_ended_session_that_re_authenticated_a_moment_ago_is_closed() -> None:
    made = in_state("exchange")
    made.on_token(b"ann 100", AT)
    reauthenticate(made, later(1), b"ann 100")
    assert made.judge_request(ApiKey.SASL_HANDSHAKE, later(1.5)) is CLOSE


def test_a_frame_is_small_until_the_login_is_complete() -> None:
    made = session()
    assert made.frame_limit == FRAME_MAX == 65_536
    made.on_handshake("OAUTHBEARER", 1, AT)
    assert made.frame_limit == 524_288
    made.on_token(b"ann", AT)
    assert made.frame_limit is None
    assert in_state("exchange").frame_limit == FRAME_MAX
    small = SaslSession(SaslSettings(MECHANISMS, max_receive_size=1_000), lambda _mechanism: Steps())
    assert small.frame_limit == 1_000
