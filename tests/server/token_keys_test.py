"""Signed bearer tokens: the keys of an issuer over HTTP and from a file, and clients that log in by them.

Zone: real. The issuer is a server of this test; keys and signatures are joserfc's.
"""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey

from ottla.client import AuthenticationError, ClientConfig, Cluster, Token
from ottla.config.sasl_listeners import BearerSettings
from ottla.seams import Failure
from ottla.security.sasl.oauthbearer import TokenRefused
from ottla.server import token_keys
from ottla.server.embedded import EmbeddedBroker
from ottla.server.token_keys import TokenKeys, parse_keys

RSA, OTHER_RSA = RSAKey.generate_key(2048, {"kid": "first"}), RSAKey.generate_key(2048, {"kid": "second"})
SETTINGS = BearerSettings(False, "", 3_600_000, 1, 10, frozenset(), None, 0, "scope", "sub", frozenset())
LONG_AGO, LONG_AFTER = 1_000_000_000, 4_000_000_000


def jwks(*keys: Any, **more: Any) -> bytes:
    return json.dumps({"keys": [key.as_dict(private=False, **more) for key in keys]}).encode()


def token(key: Any = RSA, algorithm: str = "RS256", header: dict[str, Any] | None = None, **claims: Any) -> str:
    headers = {"alg": algorithm, "kid": key.kid, **(header or {})}
    headers = {name: value for name, value in headers.items() if value is not None}
    return jwt.encode(headers, {"sub": "ann", "iat": LONG_AGO, "exp": LONG_AFTER, **claims}, key, [algorithm])


class Issuer:
    """A server with keys, that can fail."""

    def __init__(self) -> None:
        self.content, self.status, self.requests = jwks(RSA), 200, 0
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.requests += 1
                self.send_response(issuer.status)
                self.end_headers()
                self.wfile.write(issuer.content)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/keys"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.stop()


def until(holds: Any) -> None:
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def accepts(keys: TokenKeys, text: str) -> bool:
    try:
        keys.claims_of(text)
    except TokenRefused:
        return False
    return True


@pytest.fixture
def keys(issuer: Issuer) -> Iterator[TokenKeys]:
    made = TokenKeys("PLAIN", SETTINGS._replace(jwks_url=issuer.url))
    until(lambda: made._keys)  # a token before that would count as one with an unknown key
    yield made
    made.stop()


@pytest.mark.filterwarnings("ignore:EdDSA is deprecated")
@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (RSA, "RS256"), (RSA, "RS512"), (RSA, "PS256"),
        (ECKey.generate_key("P-256", {"kid": "e"}), "ES256"), (ECKey.generate_key("P-521", {"kid": "e"}), "ES512"),
        (OKPKey.generate_key("Ed25519", {"kid": "o"}), "EdDSA"),
        (OKPKey.generate_key("Ed25519", {"kid": "o"}), "Ed25519"),
    ],
)  # fmt: skip
def test_algorithms_with_public_keys_are_accepted(tmp_path: Path, key: Any, algorithm: str) -> None:
    keys = with_file(tmp_path, jwks(key))
    assert keys.claims_of(token(key, algorithm))["sub"] == "ann"
    keys.stop()


def with_file(directory: Path, content: bytes) -> TokenKeys:
    (directory / "keys.json").write_bytes(content)
    return TokenKeys("PLAIN", SETTINGS._replace(jwks_url=(directory / "keys.json").as_uri()))


def unsigned(header: object, claims: object, signature: str = "") -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part(header)}.{part(claims)}.{signature}"


def signed_by_public_key() -> str:
    """The public key as a shared secret: who takes the algorithm from the token accepts it."""
    signed = unsigned({"alg": "HS256", "kid": "first"}, CLAIMS)[:-1]
    digest = hmac.digest(RSA.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


CLAIMS = {"sub": "root", "iat": LONG_AGO, "exp": LONG_AFTER}


@pytest.mark.parametrize(
    "forged",
    [
        unsigned({"alg": "none", "kid": "first"}, CLAIMS),
        unsigned({"alg": "none"}, CLAIMS),
        unsigned({"alg": "RS256", "kid": "first"}, CLAIMS),
        unsigned({"alg": "RS256", "kid": "first"}, CLAIMS, token().rpartition(".")[2]),
        unsigned({"alg": "RS256", "kid": ["first"]}, CLAIMS, "x"),
        unsigned({"alg": "RS256", "kid": "first", "crit": ["b64"], "b64": False}, CLAIMS, "x"),
        unsigned(["RS256"], CLAIMS),
        token(OTHER_RSA, header={"kid": "first"}),
        token(OTHER_RSA),
        signed_by_public_key(),
        "",
        "a.b.c",
        "....",
        "\x00.\x00.\x00",
        "x" * 100_000,
        unsigned({"kid": "first", "alg": "RS256", "more": "x" * 20_000}, CLAIMS),
        base64.urlsafe_b64encode(b"[" * 5_000).decode() + ".x.y",
        token()[:-2],
        token() + "A",
    ],
    ids=lambda text: f"{len(text)} characters",
)
def test_forged_tokens_are_refused(tmp_path: Path, forged: str) -> None:
    keys = with_file(tmp_path, jwks(RSA))
    with pytest.raises(TokenRefused):
        keys.claims_of(forged)
    assert accepts(keys, token())
    keys.stop()


def test_a_token_without_a_key_id_is_signed_by_the_only_key(tmp_path: Path) -> None:
    keys = with_file(tmp_path, jwks(RSA))
    assert accepts(keys, token(header={"kid": None}))
    keys.stop()
    keys = with_file(tmp_path, jwks(RSA, OTHER_RSA))
    assert not accepts(keys, token(header={"kid": None}))
    keys.stop()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"{}", b'{"keys": 1}', b'{"keys": []}', b'{"keys": [1, null, {}]}', b"[" * 100_000, b"\xff",
        json.dumps({"keys": [{"kty": "oct", "kid": "a", "k": "c2VjcmV0"}]}).encode(),
        json.dumps({"keys": [{"kty": "RSA", "kid": "a", "n": 1, "e": "AQAB"}, {"kty": "?"}]}).encode(),
        jwks(RSA, use="enc"),
    ],
    ids=lambda content: f"{len(content)} bytes",
)  # fmt: skip
def test_documents_without_keys_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"document|JSON|Expecting|Extra|codec"):
        parse_keys(content)
    with pytest.raises(Failure, match=r"listener PLAIN: the keys at file:.* cannot be read"):
        with_file(tmp_path, content)


def test_new_keys_are_read_when_a_token_names_one(issuer: Issuer, keys: TokenKeys) -> None:
    issuer.content = jwks(OTHER_RSA)
    before = issuer.requests
    until(lambda: accepts(keys, token(OTHER_RSA)))
    assert not accepts(keys, token())
    for number in range(1_000):  # tokens with made-up ids do not make the broker ask for each
        assert not accepts(keys, token(header={"kid": f"unknown {number}"}) if number < 3 else token())
    assert issuer.requests <= before + 2


def test_old_keys_count_while_the_issuer_is_away(issuer: Issuer, keys: TokenKeys, caplog) -> None:
    for content, status in ((b"gone", 500), (b"not JSON", 200), (b"x" * (token_keys.ANSWER_MAX + 1), 200)):
        issuer.content, issuer.status = content, status
        before = issuer.requests
        keys.read_keys()
        assert issuer.requests == before + 1
        assert accepts(keys, token())
    assert caplog.text.count("cannot be read") == 1, "one line for an outage"
    issuer.content, issuer.status = jwks(RSA, OTHER_RSA), 200
    keys.read_keys()
    assert accepts(keys, token(OTHER_RSA))


def test_keys_are_read_again_at_intervals(issuer: Issuer) -> None:
    keys = TokenKeys("PLAIN", SETTINGS._replace(jwks_url=issuer.url, refresh_ms=5))
    until(lambda: issuer.requests > 3)
    keys.stop()


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def broker(issuer: Issuer) -> Iterator[EmbeddedBroker]:
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "connection.failed.authentication.delay.ms": "1",
        "sasl.oauthbearer.jwks.endpoint.url": issuer.url,
        "sasl.oauthbearer.expected.audience": "kafka",
        "sasl.oauthbearer.expected.issuer": "https://issuer",
    }
    with EmbeddedBroker(config=config) as running:
        until(lambda: issuer.requests)
        yield running


def right(**claims: Any) -> str:
    return token(**{"aud": ["kafka"], "iss": "https://issuer", **claims})


def connect(broker: EmbeddedBroker, text: str) -> None:
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": lambda: Token(text, LONG_AFTER),
    }
    with Cluster(ClientConfig.from_mapping(settings)) as cluster:
        cluster.refresh()


def test_a_client_logs_in_by_a_signed_token(broker: EmbeddedBroker) -> None:
    until(lambda: logs_in(broker, right()))
    for wrong in (
        right(exp=LONG_AGO + 1),
        right(aud="others"),
        right(iss="https://elsewhere"),
        right(sub=None),
        right(key=OTHER_RSA),
        right(nbf=LONG_AFTER),
    ):
        with pytest.raises(AuthenticationError):
            connect(broker, wrong)


def logs_in(broker: EmbeddedBroker, text: str) -> bool:
    try:
        connect(broker, text)
    except AuthenticationError:
        return False
    return True


@pytest.mark.interop
def test_librdkafka_logs_in_by_a_signed_token(broker: EmbeddedBroker) -> None:
    until(lambda: logs_in(broker, right()))
    errors: list[Any] = []
    settings = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "log_level": 0,
        "error_cb": errors.append,
    }
    client = AdminClient({**settings, "oauth_cb": lambda _: (right(), LONG_AFTER)})
    client.poll(0.1)
    assert len(client.list_topics(timeout=60).brokers) == 1
    client = AdminClient({**settings, "oauth_cb": lambda _: (right(key=OTHER_RSA), LONG_AFTER)})
    client.poll(0.1)
    with pytest.raises(KafkaException):
        client.list_topics(timeout=3)
    assert any("AUTHENTICATION" in each.name() for each in errors)
