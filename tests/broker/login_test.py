"""Logins by SASL on a whole broker: every state with every wrong request, by frames.

Zone: real.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.handnode import Asker, Node, Place

from ottla.client.security.login import scram_exchange
from ottla.errors import ErrorCode
from ottla.seams import Gate
from ottla.security.client_login import FAILING_MAX
from ottla.security.sasl.scram_credentials import ScramMechanism, credential_from_password, encode_credential
from ottla.types import Endpoint
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    ApiVersionsRequest,
    InitProducerIdRequest,
    ListGroupsRequest,
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)

SETTINGS = {
    "listeners": "PLAINTEXT://:9092,CLIENT://:9093",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENT:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.client.plain.sasl.jaas.config": 'a.PlainLoginModule required user_ann="ann-secret";',
    "listener.name.client.plain.connections.max.reauth.ms": "0",
    "listener.name.client.scram-sha-256.connections.max.reauth.ms": "60000",
}
RIGHT, WRONG = b"\0ann\0ann-secret", b"\0ann\0ann-guess"
WRONG_TEXT = "Authentication failed: Invalid username or password"


class SecureNode(Node):
    """A broker with a listener for which clients have to log in."""

    def endpoints(self) -> list[Endpoint]:
        return [*super().endpoints(), Endpoint("CLIENT", self.host, 9093, "SASL_PLAINTEXT")]


@pytest.fixture(scope="module")
def shared() -> SecureNode:
    node = SecureNode(SETTINGS)
    texts = {each.title: encode_credential(credential_from_password(each, b"salt", "bob-secret"))
             for each in ScramMechanism}  # fmt: skip
    node.broker.users.on_user_config("bob", texts)
    return node


@pytest.fixture
def node(shared: SecureNode) -> SecureNode:
    shared.network.closed.clear()
    return shared


class Stranger(Asker):
    """A connection at the listener with SASL."""

    listener = "CLIENT"

    def __init__(self, node: Node) -> None:
        self.node = node
        self.frame_bounds = None

    def send(self, request: object, version: int) -> Place:
        return self.node.send(request, version, self)

    def ask(self, request: object, version: int):
        return self.node.answer(self.send(request, version))

    def send_raw(self, frame: bytes) -> Place:
        place = Place(self, -1, -1)

        def turn() -> None:
            place.gate = self.node.broker.on_frame(place, memoryview(bytearray(frame)))

        self.node.process.post_turn(0, "frame", turn)
        self.node.pass_ms(0)
        return place

    def begin(self, mechanism: str = "PLAIN", version: int = 1) -> None:
        assert self.ask(SaslHandshakeRequest(mechanism=mechanism), version).error_code == 0

    def show(self, token: bytes, version: int = 2):
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def log_in(self, token: bytes = RIGHT) -> None:
        self.begin()
        assert self.show(token).error_code == 0

    def log_in_by_scram(self, mechanism: str = "SCRAM-SHA-256", password: str = "bob-secret"):
        self.begin(mechanism)
        exchange = scram_exchange(mechanism[6:].replace("-", "").lower(), "bob", password, "nonce")
        message = next(exchange)
        while True:
            answer = self.show(message)
            if answer.error_code:
                return answer
            try:
                message = exchange.send(bytes(answer.auth_bytes))
            except StopIteration:
                return answer

    @property
    def can_work(self) -> bool:
        return bool(self.ask(MetadataRequest(topics=None), 9).brokers)


# -- logins ------------------------------------------------------------------------------------------------------------


def test_a_login_with_a_password(node) -> None:
    one = Stranger(node)
    assert one.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1"), 3).error_code == 0
    one.begin()
    assert one.principal == "User:ANONYMOUS"
    assert one.show(RIGHT).error_code == 0
    assert one.principal == "User:ann"
    assert one.can_work
    assert node.network.closed == []


def test_a_login_with_tokens_without_headers(node) -> None:
    one = Stranger(node)
    one.begin(version=0)
    assert one.frame_bounds == (0, 65_536), "a token may be shorter than the header of a request"
    place = one.send_raw(RIGHT)
    assert place.parts == [b""]
    assert one.principal == "User:ann"
    assert one.frame_bounds == (8, None)
    assert one.can_work


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_login_with_a_credential_of_the_store(node, mechanism: str) -> None:
    one = Stranger(node)
    answer = one.log_in_by_scram(mechanism)
    assert answer.error_code == 0
    assert one.principal == "User:bob"
    assert one.can_work


def test_other_listeners_need_no_login(node) -> None:
    assert node.ask(MetadataRequest(topics=None), 9).brokers
    answer = node.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    answer = node.ask(SaslAuthenticateRequest(auth_bytes=RIGHT), 2)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert node.peer.principal == "User:ANONYMOUS"
    assert node.network.closed == []


# -- failures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [WRONG, b"\0eve\0ann-secret", b"\0ann\0ann-secre", b"\0ann\0\xff"])
def test_a_wrong_password_is_answered_late_and_ends_the_connection(node, token: bytes) -> None:
    one = Stranger(node)
    one.begin()
    place = one.send(SaslAuthenticateRequest(auth_bytes=token), 2)
    assert place.gate is Gate.WAIT
    node.pass_ms(90)
    assert not place.answered
    assert one.frame_bounds[1] == 0, "nothing else is received"
    answer = node.answer(place)
    assert (answer.error_code, answer.error_message) == (ErrorCode.SASL_AUTHENTICATION_FAILED, WRONG_TEXT)
    assert node.network.closed == [f"authentication failed: {WRONG_TEXT}"]
    assert one.principal == "User:ANONYMOUS"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_proof_of_a_credential(node, mechanism: str) -> None:
    answer = Stranger(node).log_in_by_scram(mechanism, "bob-guess")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == (
        f"Authentication failed during authentication due to invalid credentials with SASL mechanism {mechanism}"
    )


def test_a_wrong_token_without_a_header_has_no_answer(node) -> None:
    one = Stranger(node)
    one.begin(version=0)
    place = one.send_raw(WRONG)
    node.pass_ms(90)
    assert node.network.closed == []
    node.pass_ms(20)
    assert len(node.network.closed) == 1
    assert not place.answered


def test_a_mechanism_that_is_not_enabled(node) -> None:
    one = Stranger(node)
    answer = one.ask(SaslHandshakeRequest(mechanism="GSSAPI"), 1)
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    node.pass_ms(110)
    assert len(node.network.closed) == 1
    assert "GSSAPI" in node.network.closed[0]


def anonymous(_: Stranger) -> None:
    """Nothing was sent."""


def with_versions(one: Stranger) -> None:
    one.ask(ApiVersionsRequest(), 0)


def begun(one: Stranger) -> None:
    one.begin()


def begun_raw(one: Stranger) -> None:
    one.begin(version=0)


def in_scram(one: Stranger) -> None:
    one.begin("SCRAM-SHA-256")
    one.show(next(scram_exchange("sha256", "bob", "bob-secret", "nonce")))


STATES = [anonymous, with_versions, begun, begun_raw, in_scram]
REQUESTS = [
    (ApiVersionsRequest(), 0),
    (MetadataRequest(topics=None), 9),
    (InitProducerIdRequest(transactional_id="t"), 2),
    (ListGroupsRequest(), 3),
    (SaslHandshakeRequest(mechanism="PLAIN"), 1),
    (SaslAuthenticateRequest(auth_bytes=RIGHT), 2),
    (SaslAuthenticateRequest(auth_bytes=b""), 2),
]
ALLOWED = {
    (anonymous, ApiVersionsRequest), (anonymous, SaslHandshakeRequest), (with_versions, SaslHandshakeRequest),
    (begun, SaslAuthenticateRequest), (in_scram, SaslAuthenticateRequest),
}  # fmt: skip


def wrong_steps() -> Iterator[tuple[Callable[[Stranger], None], object, int]]:
    for state in STATES:
        for request, version in REQUESTS:
            if (state, type(request)) not in ALLOWED:
                yield state, request, version


@pytest.mark.parametrize(("state", "request_", "version"), list(wrong_steps()))
def test_every_state_with_every_wrong_request(node, state, request_, version: int) -> None:
    one = Stranger(node)
    state(one)
    place = one.send(request_, version)
    node.pass_ms(200)
    assert len(node.network.closed) == 1
    assert one.principal == "User:ANONYMOUS"
    if place.answered:
        assert state in (begun, in_scram)
        assert node.answer(place).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one not in node.broker.login.served


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize(
    "frame",
    [b"", b"\0", b"\0\x12\0", b"\xff" * 8, b"\0\x12\0\x03\0\0\0\x01", bytes(range(64)), b"\0\x11" + bytes(60_000)],
)
def test_every_state_with_broken_frames(node, state, frame: bytes) -> None:
    one = Stranger(node)
    state(one)
    one.send_raw(frame)
    node.pass_ms(200)
    assert len(node.network.closed) == 1
    assert one.principal == "User:ANONYMOUS"


def test_failed_logins_that_wait_are_bounded(node) -> None:
    for number in range(FAILING_MAX + 5):
        one = Stranger(node)
        one.begin()
        one.send(SaslAuthenticateRequest(auth_bytes=WRONG), 2)
        assert len(node.network.closed) == max(0, number + 1 - FAILING_MAX)
    node.pass_ms(200)
    assert len(node.network.closed) == FAILING_MAX + 5


def test_a_connection_that_ends_is_forgotten(node) -> None:
    login = node.broker.login
    before = len(login.served), len(login._sessions)
    failing, ready, begun_one = Stranger(node), Stranger(node), Stranger(node)
    ready.log_in()
    begun_one.begin()
    failing.begin()
    place = failing.send(SaslAuthenticateRequest(auth_bytes=WRONG), 2)
    for each in (failing, ready, begun_one):
        node.process.post_turn(0, "gone", node.broker.on_gone, each)
    node.pass_ms(200)
    assert not place.answered
    assert node.network.closed == []
    assert (len(login.served), len(login._sessions), len(login._failing)) == (*before, 0)


# -- sessions ----------------------------------------------------------------------------------------------------------


def test_a_session_without_an_end_is_not_judged_again(node) -> None:
    one = Stranger(node)
    one.log_in()
    assert one in node.broker.login.served
    answer = one.show(RIGHT)
    assert answer.error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert one.can_work
    assert node.network.closed == []


def test_a_session_that_has_ended_closes_the_connection_at_the_next_request(node) -> None:
    one = Stranger(node)
    assert one.log_in_by_scram().session_lifetime_ms == 60_000
    node.pass_ms(59_000)
    assert one.can_work
    node.pass_ms(2_000)
    assert node.network.closed == []
    one.send(MetadataRequest(topics=None), 9)
    assert len(node.network.closed) == 1
    assert node.broker.login.counts.expired >= 1


def test_re_authentication(node) -> None:
    one = Stranger(node)
    one.log_in_by_scram()
    node.pass_ms(59_000)
    assert one.log_in_by_scram().session_lifetime_ms == 60_000
    assert one.principal == "User:bob"
    node.pass_ms(59_000)
    assert one.can_work
    one.begin("SCRAM-SHA-256")
    assert one.ask(ListGroupsRequest(), 3).error_code == ErrorCode.ILLEGAL_SASL_STATE, "nothing else in the middle"
    assert len(node.network.closed) == 1


def test_a_re_authentication_with_another_mechanism_fails(node) -> None:
    one = Stranger(node)
    one.log_in_by_scram()
    node.pass_ms(10_000)
    one.begin("PLAIN")
    assert one.show(RIGHT).error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert one.principal == "User:bob"
    assert len(node.network.closed) == 1


def test_metrics_count_logins(node) -> None:
    counts = node.broker.login.counts
    before = counts.succeeded, counts.failed
    Stranger(node).log_in()
    one = Stranger(node)
    one.begin()
    one.show(WRONG)
    assert (counts.succeeded, counts.failed) == (before[0] + 1, before[1] + 1)


def test_apis_of_logins_have_kafkas_versions(node) -> None:
    keys = {each.api_key: each for each in Stranger(node).ask(ApiVersionsRequest(), 0).api_keys}
    handshake, authenticate = keys[ApiKey.SASL_HANDSHAKE], keys[ApiKey.SASL_AUTHENTICATE]
    assert (handshake.min_version, handshake.max_version) == (0, 1)
    assert (authenticate.min_version, authenticate.max_version) == (0, 2)
