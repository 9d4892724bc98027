"""Logins by SASL over real sockets: the limits of frames, the file of users, real clients, and no secret in a log.

Zone: real.
"""

from __future__ import annotations

import logging
import struct
import sys
from pathlib import Path

import pytest
from tests.server.served import FramedSocket

from ottla.errors import ErrorCode
from ottla.seams import Failure
from ottla.security.sasl.scram_credentials import ScramMechanism, credential_from_password, encode_credential
from ottla.server.embedded import EmbeddedBroker
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import (
    MetadataRequest,
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

SECRET = "Correct-Horse-42"
KEPT = encode_credential(credential_from_password(ScramMechanism.SCRAM_SHA_512, b"salt", SECRET))


def listening(**more: str) -> dict[str, str]:
    return {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "connection.failed.authentication.delay.ms": "1",
        **more,
    }


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.properties"
    path.write_text(f"ann={SECRET}\nkept=SCRAM-SHA-512=[{KEPT}]\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def broker(users_file: Path):
    settings = {"ottla.sasl.users.file": str(users_file), "listener.name.sasl_plaintext.connections.max.reauth.ms": "0"}
    with EmbeddedBroker(config=listening(**settings)) as running:
        yield running


class Raw(FramedSocket):
    """A client on a plain socket."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        host, _, port = broker.bootstrap.rpartition(":")
        super().__init__(host, int(port))

    def ask(self, request: object, version: int, response_type: type):
        key = request.API_KEY
        self.send(encode_request_header(key, version, 1, "raw") + encode_bytes(request, version))
        frame = self.receive()
        assert frame is not None
        content = memoryview(frame)
        return decode(response_type, version, content, response_body_pos(key, version, content))[0]

    def begin(self, mechanism: str = "PLAIN", version: int = 1) -> None:
        answer = self.ask(SaslHandshakeRequest(mechanism=mechanism), version, SaslHandshakeResponse)
        assert answer.error_code == 0

    @property
    def ended(self) -> bool:
        return self.receive() is None


@pytest.fixture
def raw(broker):
    made = Raw(broker)
    yield made
    made.sock.close()


@pytest.mark.parametrize("size", [65_537, 1 << 20, 100 << 20])
def test_a_large_frame_before_the_login_closes_the_connection_at_its_length(raw, caplog, size: int) -> None:
    with caplog.at_level(logging.WARNING):
        raw.sock.sendall(struct.pack(">i", size))
        assert raw.ended
    assert "the limit before the login is complete" in caplog.text


def test_frames_are_large_after_the_login(raw) -> None:
    raw.begin()
    answer = raw.ask(SaslAuthenticateRequest(auth_bytes=f"\0ann\0{SECRET}".encode()), 2, SaslAuthenticateResponse)
    assert answer.error_code == 0
    topics = [MetadataRequest.MetadataRequestTopic(name="x" * 200)] * 500
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    raw.send(encode_request_header(3, 4, 1, "raw") + encode_bytes(request, 4))
    assert raw.receive() is not None


def test_tokens_without_headers_may_be_shorter_than_a_header(raw) -> None:
    raw.begin(version=0)
    raw.send(b"\0a\0b")
    assert raw.ended, "the password is wrong"


def test_a_login_in_one_packet(broker) -> None:
    """Requests that were sent before the answers, as kafka's protocol allows: a large one follows the login."""
    raw = Raw(broker)
    topics = [MetadataRequest.MetadataRequestTopic(name="x" * 200)] * 400
    frames = [
        encode_request_header(17, 0, 1, "raw") + encode_bytes(SaslHandshakeRequest(mechanism="PLAIN"), 0),
        f"\0ann\0{SECRET}".encode(),
        encode_request_header(3, 4, 3, "raw")
        + encode_bytes(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 4),
    ]
    raw.sock.sendall(b"".join(struct.pack(">i", len(each)) + each for each in frames))
    assert len(raw.receive() or b"") > 4
    assert raw.receive() == b""
    assert len(raw.receive() or b"") > 100
    raw.sock.close()


def test_junk_after_a_failed_login_is_not_read(broker, caplog) -> None:
    raw = Raw(broker)
    raw.begin()
    request = SaslAuthenticateRequest(auth_bytes=b"\0ann\0guess")
    frame = encode_request_header(36, 2, 1, "raw") + encode_bytes(request, 2)
    raw.sock.sendall(struct.pack(">i", len(frame)) + frame + bytes(200_000))
    answered = raw.receive()
    assert answered is None or len(answered) > 4
    assert answered is None or raw.ended
    raw.sock.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"ann=\n", "no name or no password"),
        (b"\xff=x\n", "not a file of properties"),
        (b"a=SCRAM-SHA-256=[salt=c2FsdA==]\n", "fields"),
        (b"x=y\n" + b"#" * (1 << 20), "more than 1048576 bytes"),
        (b"".join(b"u%d=pass-word\n" % number for number in range(1001)), "more than 1000 users"),
    ],
)
def test_a_file_of_users_that_cannot_be_used(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "users.properties"
    path.write_bytes(content)
    path.chmod(0o600)
    with (
        pytest.raises(Failure, match=reason) as refused,
        EmbeddedBroker(config=listening(**{"ottla.sasl.users.file": str(path)})),
    ):
        pass
    assert "pass-word" not in str(refused.value)


def test_a_file_of_users_that_others_can_read(tmp_path: Path, caplog) -> None:
    path = tmp_path / "users.properties"
    path.write_text(f"ann={SECRET}\n")
    path.chmod(0o644)
    config = listening(**{"ottla.sasl.users.file": str(path), "log.dirs": str(tmp_path / "data")})
    with caplog.at_level(logging.WARNING), EmbeddedBroker(config=config):
        pass
    assert f"chmod 600 {path}" in caplog.text
    assert SECRET not in caplog.text


def test_error_codes_are_kafkas(broker) -> None:
    raw = Raw(broker)
    raw.begin()
    answer = raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0ann\0guess"), 1, SaslAuthenticateResponse)
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert answer.error_message == "Authentication failed: Invalid username or password"
    assert raw.ended
    raw.sock.close()


def test_signed_tokens_need_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    config = listening(
        **{"sasl.enabled.mechanisms": "OAUTHBEARER", "sasl.oauthbearer.jwks.endpoint.url": "https://issuer/keys"}
    )
    monkeypatch.setitem(sys.modules, "joserfc", None)
    monkeypatch.delitem(sys.modules, "ottla.server.token_keys", raising=False)
    with pytest.raises(Failure, match=r"pip install 'ottla\[oauth\]'"), EmbeddedBroker(config=config):
        pass
