"""Logins of connections: what a connection on a listener with SASL may send before, during and after its login.

Zone: deterministic. `ottla.broker.dispatch` passes it the frames of connections that are not in `served`. A
connection is added to `served` when none of its requests has to be judged any more: its listener has no SASL, or its
login is complete and does not end. `sasl.session` has the states of one connection.

A login that fails is answered, and its connection closed, after `connection.failed.authentication.delay.ms`, so that
passwords cannot be tried fast. Until then nothing is read from the connection. FAILING_MAX of them may wait; the
connections of others are closed at once, without an answer.

API 17, versions 0 and 1: after version 0 tokens are frames without a header. API 36, versions 0-2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from ottla.errors import ApiError, ErrorCode
from ottla.requests import Context, handles
from ottla.seams import Clock, Gate, Network, Part, Peer, Slot
from ottla.security.broker_login import BrokerLogin
from ottla.security.sasl.mechanism import Identity, SaslExchange
from ottla.security.sasl.session import SaslSession, SaslSettings, State, TokenAnswer, Verdict
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

FAILING_MAX: Final = 256
"""Most failed logins that wait for their answer; each may keep what the shell has received of its connection."""
VERSIONS_MAX: Final = 4
"""The newest version of ApiVersions."""
_HEAD: Final = Struct(">hhi")
"""API key, version, correlation id."""
_REQUEST_MIN: Final = 8
_TOKEN_MIN: Final = 0


Refuse = Callable[[memoryview], Sequence[Part] | None]


class ListenerLogin(NamedTuple):
    """How connections of one listener log in."""

    settings: SaslSettings
    start_exchange: Callable[[str], SaslExchange]
    """Creates the exchange of an enabled mechanism."""


class Delays(Protocol):
    """Calls functions later (`ottla.purgatory.purgatory.Purgatory`)."""

    def look_after(self, delay_ms: int, action: Callable[[], None]) -> object:
        """Call a function after a time, in a millisecond at the earliest."""
        ...


class LoginCounts:
    """Numbers for metrics."""

    __slots__ = ("expired", "failed", "failed_again", "succeeded", "succeeded_again")

    def __init__(self) -> None:
        self.succeeded = self.failed = 0
        self.succeeded_again = self.failed_again = 0
        """Re-authentications."""
        self.expired = 0
        """Connections that were closed because they were used after the end of their session."""


class ClientLogin:
    """The logins of all connections of a broker."""

    def __init__(
        self,
        listeners: Mapping[str, ListenerLogin],
        clock: Clock,
        network: Network,
        delays: Delays,
        delay_ms: int,
        broker_login: BrokerLogin | None = None,
    ) -> None:
        """listeners: those with SASL, by name. broker_login: None if the brokers of this cluster share no secret."""
        self._listeners = listeners
        self._clock = clock
        self._network = network
        self._delays = delays
        self._delay_ms = delay_ms
        self._broker_login = broker_login
        self._sessions: dict[Peer, SaslSession] = {}
        self._failing: dict[Peer, Callable[[], None]] = {}
        """Connections whose login has failed, with the function that answers."""
        self.served: set[Peer] = set()
        """Connections whose requests need not be judged."""
        self.counts = LoginCounts()

    def identity_of(self, peer: Peer) -> Identity | None:
        """Who has logged in on a connection by SASL; None: it has not."""
        session = self._sessions.get(peer)
        return None if session is None else session.identity

    def on_gone(self, peer: Peer) -> None:
        """Forget a connection that has ended."""
        self.served.discard(peer)
        self._sessions.pop(peer, None)
        self._failing.pop(peer, None)
        if self._broker_login is not None:
            self._broker_login.on_gone(peer)

    # -- before the tables of APIs -----------------------------------------------------------------------------------

    def judge_frame(self, slot: Slot, frame: memoryview, refuse: Refuse) -> Gate | None:
        """What the shell may do after this frame; None: the frame is a request to be handled as usual.

        refuse: encodes the response that refuses a request with ILLEGAL_SASL_STATE; None: there is none.
        """
        peer = slot.peer
        session = self._sessions.get(peer) or self._start_session(peer)
        if session is None:
            return None
        now = self._clock.now()
        if session.is_open(now):
            return None
        if session.expects_raw_token:
            return self._on_raw_token(slot, session, bytes(frame))
        if len(frame) < _REQUEST_MIN:
            self._network.close_connection(peer, "sent less than the header of a request")
            return Gate.WAIT
        api_key, version, _ = _HEAD.unpack_from(frame)
        before = session.state
        verdict = session.judge_request(api_key, now)
        if verdict is Verdict.SERVE and before is State.START:
            known = 0 <= version <= VERSIONS_MAX
            session.on_versions_sent(ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION)
        if verdict in (Verdict.SERVE, Verdict.LOGIN):
            return None
        if before is State.COMPLETE:
            self.counts.expired += 1
        if verdict is Verdict.REFUSE:
            parts = refuse(frame)
            self._fail_login(peer, session, None if parts is None else lambda: self._network.send_reply(slot, parts))
        elif peer not in self._failing:
            self._network.close_connection(peer, _why(session))
        return Gate.WAIT

    def _start_session(self, peer: Peer) -> SaslSession | None:
        listener = self._listeners.get(peer.listener)
        if listener is None:
            if peer.listener:  # a call of the broker to itself has no listener, and perhaps a peer of its own
                self.served.add(peer)
            return None
        session = self._sessions[peer] = SaslSession(listener.settings, listener.start_exchange)
        return session

    def _on_raw_token(self, slot: Slot, session: SaslSession, token: bytes) -> Gate:
        answer = session.on_token(token, self._clock.now())
        if answer.close:
            self._fail_login(slot.peer, session, None)
            return Gate.WAIT
        self._on_token_accepted(slot.peer, session, answer)
        self._network.send_reply(slot, [bytes(answer.response.auth_bytes)])
        return Gate.NEXT

    # -- requests ----------------------------------------------------------------------------------------------------

    @handles(ApiKey.SASL_HANDSHAKE, 0, 1, early=True)
    def begin_login(self, context: Context, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        """Agree on the mechanism.

        Errors: UNSUPPORTED_SASL_MECHANISM, which ends the connection; ILLEGAL_SASL_STATE on a listener without SASL,
        and when a re-authentication is not due.
        """
        session = self._sessions.get(context.peer)
        if session is None:
            if self._broker_login is not None:
                return self._broker_login.begin_login(context, request)
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        answer = session.on_handshake(request.mechanism, context.api_version, self._clock.now())
        if answer.close:
            # As in Kafka this answer is not delayed: it contains nothing that depends on a secret.
            self._fail_login(context.peer, session, None)
        else:
            self._on_step(context.peer, session)
        return answer.response

    @handles(ApiKey.SASL_AUTHENTICATE, 0, 2, early=True)
    def authenticate(self, context: Context, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse | None:
        """Handle one token. Errors: SASL_AUTHENTICATION_FAILED, which ends the connection; ILLEGAL_SASL_STATE."""
        session = self._sessions.get(context.peer)
        if session is None:
            if self._broker_login is not None:
                return self._broker_login.authenticate(context, request)
            text = "SaslAuthenticate request received after successful authentication"
            raise ApiError(ErrorCode.ILLEGAL_SASL_STATE, text)
        answer = session.on_token(bytes(request.auth_bytes), self._clock.now())
        if answer.close:
            self._fail_login(context.peer, session, lambda: context.send_reply(answer.response))
            return None
        self._on_token_accepted(context.peer, session, answer)
        return answer.response

    # -- the outcome -------------------------------------------------------------------------------------------------

    def _on_token_accepted(self, peer: Peer, session: SaslSession, answer: TokenAnswer) -> None:
        identity = session.identity
        if answer.completes_login and identity is not None:
            if peer.principal == identity.principal:
                self.counts.succeeded_again += 1
            else:
                self.counts.succeeded += 1
            # Before `_on_step`: from `served` on, requests are handled with the rights of this principal.
            peer.principal = identity.principal
        self._on_step(peer, session)

    def _on_step(self, peer: Peer, session: SaslSession) -> None:
        """Apply a step of a login: how large frames may be, and whether requests are judged."""
        if session.state is State.COMPLETE and not session.has_end:
            self.served.add(peer)
        else:
            self.served.discard(peer)
        least = _TOKEN_MIN if session.expects_raw_token else _REQUEST_MIN
        self._network.set_frame_bounds(peer, least, session.frame_limit)

    def _fail_login(self, peer: Peer, session: SaslSession, answer: Callable[[], None] | None) -> None:
        """Answer and close later. None: no answer, or it was sent already."""
        if session.identity is None:
            self.counts.failed += 1
        else:
            self.counts.failed_again += 1
        self.served.discard(peer)
        if len(self._failing) >= FAILING_MAX:
            self._network.close_connection(peer, _why(session))
            return
        self._failing[peer] = answer or _send_nothing
        self._network.set_frame_bounds(peer, _TOKEN_MIN, 0)
        self._delays.look_after(self._delay_ms, lambda: self._end_failed(peer, _why(session)))

    def _end_failed(self, peer: Peer, why: str) -> None:
        answer = self._failing.pop(peer, None)
        if answer is not None:
            answer()
            self._network.close_connection(peer, why)


def _why(session: SaslSession) -> str:
    return f"authentication failed: {session.failure}"


def _send_nothing() -> None:
    """The answer of a failed login that has none."""
