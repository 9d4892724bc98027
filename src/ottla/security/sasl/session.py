"""The login of one connection: which request is accepted in which state, re-authentication, the end of a session.

Zone: deterministic. The states, as in Kafka (KIP-43, KIP-152, KIP-368):

1. START: ApiVersions, once, or SaslHandshake. Nothing else is read further than its API key.
2. VERSIONS_SENT: SaslHandshake.
3. EXCHANGE: tokens. After SaslHandshake 1 they come in SaslAuthenticate; after version 0 as frames of their own.
4. COMPLETE: every request. SaslHandshake begins a re-authentication, if the session has a lifetime, at most once per
   second. Until it is complete the connection has the old identity, and sends nothing else.
5. FAILED: the connection is closed. The shell delays that, and the answer, by
   `connection.failed.authentication.delay.ms`.

A session that has ended accepts only SaslHandshake; any other request closes the connection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, NamedTuple

from ottla.config.sasl_listeners import FRAME_MAX
from ottla.errors import ErrorCode
from ottla.seams import Instant
from ottla.security.sasl.mechanism import Identity, SaslExchange, SaslFailure
from ottla.security.sasl.oauthbearer import OAUTHBEARER
from ottla.wire.apis import ApiKey
from ottla.wire.messages import SaslAuthenticateResponse, SaslHandshakeResponse

_REAUTH_INTERVAL_NS: Final = 1_000_000_000
_MS: Final = 1_000_000


class State(Enum):
    """States of a login."""

    START = "start"
    VERSIONS_SENT = "versions sent"
    EXCHANGE = "exchange"
    OTHER_MECHANISM = "other mechanism"
    """A re-authentication named another mechanism: its first token is refused, as in Kafka."""
    COMPLETE = "complete"
    FAILED = "failed"


class Verdict(Enum):
    """What to do with a request."""

    SERVE = "serve"
    LOGIN = "login"
    """Pass it to this session: SaslHandshake or SaslAuthenticate."""
    REFUSE = "refuse"
    """Answer with ILLEGAL_SASL_STATE, and close the connection."""
    CLOSE = "close"


class SaslSettings(NamedTuple):
    """The settings of a listener."""

    mechanisms: Sequence[str]
    """`sasl.enabled.mechanisms`."""
    max_receive_size: int = 524_288
    """`sasl.server.max.receive.size`."""
    max_reauth_ms: Mapping[str, int] = {}
    """`connections.max.reauth.ms` by mechanism; absent or 0: a session ends only with its credential."""


class HandshakeAnswer(NamedTuple):
    """The answer to SaslHandshake."""

    response: SaslHandshakeResponse
    close: bool = False


class TokenAnswer(NamedTuple):
    """The answer to a token; raw tokens are answered with the response's `auth_bytes`, and failures not at all."""

    response: SaslAuthenticateResponse
    close: bool = False
    completes_login: bool = False
    """Whether this was the last token of a login, or of a re-authentication."""


class SaslSession:
    """The state of one connection."""

    def __init__(self, settings: SaslSettings, start_exchange: Callable[[str], SaslExchange]) -> None:
        """start_exchange: creates the exchange of an enabled mechanism, with a nonce of its own."""
        self._settings = settings
        self._start_exchange = start_exchange
        self._exchange: SaslExchange | None = None
        self._mechanism = ""
        self._is_raw = False
        self._begun_ns: int | None = None
        """When the last re-authentication began."""
        self._ends_ns: int | None = None
        """When the session ends, on the monotonic clock; None: it does not."""
        self.state = State.START
        self.identity: Identity | None = None
        """Who the connection is; None before the login."""
        self.failure = ""
        """Why the login failed, for the audit log."""

    # -- what a connection may send ----------------------------------------------------------------------------------

    @property
    def expects_raw_token(self) -> bool:
        """Whether the next frame is a token without a header (SaslHandshake 0)."""
        return self.state is State.EXCHANGE and self._is_raw

    @property
    def frame_limit(self) -> int | None:
        """The largest frame that is accepted now; None: as after a login."""
        if self.state is State.COMPLETE:
            return None
        expects_bearer = self.state is State.EXCHANGE and self._mechanism == OAUTHBEARER
        return self._settings.max_receive_size if expects_bearer else min(FRAME_MAX, self._settings.max_receive_size)

    def judge_request(self, api_key: int, now: Instant) -> Verdict:
        """What to do with a request, by its API key alone."""
        is_handshake, is_token = api_key == ApiKey.SASL_HANDSHAKE, api_key == ApiKey.SASL_AUTHENTICATE
        match self.state:
            case State.START if api_key == ApiKey.API_VERSIONS:
                verdict = Verdict.SERVE
            case State.START | State.VERSIONS_SENT if is_handshake:
                verdict = Verdict.LOGIN
            case State.EXCHANGE if not self._is_raw:
                verdict = Verdict.LOGIN if is_token else Verdict.REFUSE
            case State.OTHER_MECHANISM if is_token:
                verdict = Verdict.LOGIN
            case State.COMPLETE if not self._has_ended(now) or (is_handshake and self._may_reauthenticate(now)):
                verdict = Verdict.LOGIN if is_handshake or is_token else Verdict.SERVE
            case _:
                verdict = Verdict.CLOSE
        if verdict in (Verdict.CLOSE, Verdict.REFUSE):
            self._fail(f"a request of API {api_key} in the state {self.state.value!r}")
        return verdict

    def on_versions_sent(self, error: ErrorCode) -> None:
        """ApiVersions was answered; after an error the client may send it once more, in another version."""
        if self.state is State.START and error is ErrorCode.NONE:
            self.state = State.VERSIONS_SENT

    @property
    def has_end(self) -> bool:
        """Whether the session ends at some time."""
        return self._ends_ns is not None

    def is_open(self, now: Instant) -> bool:
        """Whether every request is served."""
        return self.state is State.COMPLETE and not self._has_ended(now)

    def _has_ended(self, now: Instant) -> bool:
        return self._ends_ns is not None and now.mono_ns > self._ends_ns

    def _may_reauthenticate(self, now: Instant) -> bool:
        recently = self._begun_ns is not None and now.mono_ns - self._begun_ns < _REAUTH_INTERVAL_NS
        return self._ends_ns is not None and not recently

    # -- the login ---------------------------------------------------------------------------------------------------

    def on_handshake(self, mechanism: str, version: int, now: Instant) -> HandshakeAnswer:
        """Handle SaslHandshake, which `judge_request` has let pass."""
        enabled = list(self._settings.mechanisms)
        is_again = self.state is State.COMPLETE
        # 1. A re-authentication that is not due is an error, but not the end. 2. A mechanism that is not enabled ends
        # the connection. 3. Another mechanism than before: Kafka answers without an error and refuses the token.
        if is_again and not self._may_reauthenticate(now):
            return HandshakeAnswer(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=enabled))
        if mechanism not in enabled:
            self._fail(f"Unsupported SASL mechanism {mechanism[:100]!r}")
            code = ErrorCode.UNSUPPORTED_SASL_MECHANISM
            return HandshakeAnswer(SaslHandshakeResponse(error_code=code, mechanisms=enabled), close=True)
        if is_again:
            self._begun_ns = now.mono_ns
        if is_again and mechanism != self._mechanism:
            self.state = State.OTHER_MECHANISM
        else:
            self.state, self._mechanism, self._is_raw = State.EXCHANGE, mechanism, version == 0
            self._exchange = self._start_exchange(mechanism)
        return HandshakeAnswer(SaslHandshakeResponse(mechanisms=enabled))

    def on_token(self, token: bytes, now: Instant) -> TokenAnswer:
        """Handle a token, raw or of SaslAuthenticate."""
        if self.state is State.COMPLETE:
            code = ErrorCode.ILLEGAL_SASL_STATE
            text = "SaslAuthenticate request received after successful authentication"
            return TokenAnswer(SaslAuthenticateResponse(error_code=code, error_message=text))
        try:
            if self._exchange is None or self.state is not State.EXCHANGE:
                raise SaslFailure(
                    f"the mechanism of a re-authentication must be that of the login, {self._mechanism}",
                    for_client=True,
                )
            answer = self._exchange.accept_token(token, now.wall_ms)
            identity = self._exchange.identity
            if identity is None:
                return TokenAnswer(SaslAuthenticateResponse(auth_bytes=answer))
            return TokenAnswer(self._complete(identity, answer, now), completes_login=True)
        except SaslFailure as error:
            return self._refuse_token(error)

    def _complete(self, identity: Identity, answer: bytes, now: Instant) -> SaslAuthenticateResponse:
        if self.identity is not None and identity.principal != self.identity.principal:
            raise SaslFailure(
                f"Cannot change principals during re-authentication from {self.identity.principal}:"
                f" {identity.principal}",
                for_client=True,
            )
        self.identity, self.state, self._exchange = identity, State.COMPLETE, None
        lifetime_ms = self._lifetime_ms(identity, now)
        self._ends_ns = None if lifetime_ms is None else now.mono_ns + lifetime_ms * _MS
        return SaslAuthenticateResponse(auth_bytes=answer, session_lifetime_ms=lifetime_ms or 0)

    def _lifetime_ms(self, identity: Identity, now: Instant) -> int | None:
        """The lifetime of the session: that of the credential, or the configured one, whichever is shorter."""
        limits = []
        if identity.expires_at_ms is not None:
            limits.append(identity.expires_at_ms - now.wall_ms)
        configured = self._settings.max_reauth_ms.get(self._mechanism, 0)
        if configured > 0:
            limits.append(configured)
        return max(0, min(limits)) if limits else None

    def _refuse_token(self, error: SaslFailure) -> TokenAnswer:
        again = "authentication" if self.identity is None else "re-authentication"
        text = (
            str(error)
            if error.for_client
            else f"Authentication failed during {again} due to invalid credentials with SASL mechanism"
            f" {self._mechanism}"
        )
        self._fail(str(error))
        code = ErrorCode.SASL_AUTHENTICATION_FAILED
        return TokenAnswer(SaslAuthenticateResponse(error_code=code, error_message=text), close=True)

    def _fail(self, reason: str) -> None:
        self.state, self.failure, self._exchange = State.FAILED, reason, None
