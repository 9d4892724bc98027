"""SCRAM with the example of its standard, and tokens from an endpoint.

Zone: real.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest

from ottla.client import AuthenticationError, UnreachableError
from ottla.client.security.login import scram_exchange
from ottla.client.security.settings import SecurityConfig, Token
from ottla.client.security.tokens import TokenSource
from ottla.security.sasl.scram_client import ITERATIONS_MAX

NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"


def test_the_example_of_rfc_7677():
    exchange = scram_exchange("sha256", "user", "pencil", NONCE)
    assert next(exchange) == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    assert exchange.send(SERVER_FIRST) == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    with pytest.raises(StopIteration):
        exchange.send(b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")


def test_names_may_have_the_signs_of_the_format():
    assert next(scram_exchange("sha512", "a=b,c", "p", "n")) == b"n,,n=a=3Db=2Cc,r=n"


def test_a_delegation_token_is_announced():
    assert next(scram_exchange("sha256", "id-1", "aG1hYw==", "n", with_token=True)) == b"n,,n=id-1,r=n,tokenauth=true"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"\xff\xfe",
        b"e=unknown-user",
        SERVER_FIRST.replace(b"r=rO", b"r=xO"),
        b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"s=W22", b"s=*"),
        SERVER_FIRST.replace(b"i=4096", b"i=-1"),
        SERVER_FIRST.replace(b"i=4096", b"i=%d" % (ITERATIONS_MAX + 1)),
        SERVER_FIRST.replace(b"i=4096", b"i=" + b"9" * 5000),
    ],
)
def test_messages_that_no_broker_sends_end_the_login(said: bytes):
    exchange = scram_exchange("sha256", "user", "pencil", NONCE)
    next(exchange)
    with pytest.raises(AuthenticationError):
        exchange.send(said)


@pytest.mark.parametrize("said", [b"v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", b"v=", b"", b"e=other-error"])
def test_a_broker_that_does_not_know_the_password_is_refused(said: bytes):
    exchange = scram_exchange("sha256", "user", "pencil", NONCE)
    next(exchange)
    exchange.send(SERVER_FIRST)
    with pytest.raises(AuthenticationError):
        exchange.send(said)


class Endpoint(HTTPServer):
    """A token endpoint whose answers the test chooses."""

    def __init__(self) -> None:
        self.status = 200
        self.body: Any = {"access_token": "one", "expires_in": 3600}
        self.asked: list[tuple[str, dict[str, list[str]]]] = []

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler) -> None:  # noqa: N805
                form = handler.rfile.read(int(handler.headers["Content-Length"])).decode()
                self.asked.append((handler.headers["Authorization"], parse_qs(form)))
                handler.send_response(self.status)
                handler.end_headers()
                handler.wfile.write(self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode())

            def log_message(handler, *_: object) -> None:  # noqa: N805
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def source(self, path: str = "/token") -> TokenSource:
        return TokenSource(
            SecurityConfig(
                security_protocol="SASL_SSL",
                sasl_mechanism="OAUTHBEARER",
                sasl_oauthbearer_token_endpoint_url=f"http://127.0.0.1:{self.server_port}{path}",
                sasl_oauthbearer_client_credentials_client_id="me",
                sasl_oauthbearer_client_credentials_client_secret="s:1",
                sasl_oauthbearer_scope="kafka",
            )
        )


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.shutdown()
    made.server_close()


def test_a_token_is_requested_once_and_kept_while_it_is_fresh(endpoint: Endpoint):
    source = endpoint.source()
    assert source.valid_token(5).value == "one"
    endpoint.body = {"access_token": "two", "expires_in": 3600}
    assert source.valid_token(5).value == "one"
    login, form = endpoint.asked[0]
    assert base64.b64decode(login.removeprefix("Basic ")) == b"me:s%3A1"
    assert form == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    assert len(endpoint.asked) == 1


def test_an_old_token_is_replaced(endpoint: Endpoint):
    endpoint.body = {"access_token": "one", "expires_in": 1e-9}
    source = endpoint.source()
    assert source.valid_token(5).value == "one"
    endpoint.body = {"access_token": "two"}
    assert source.valid_token(5).value == "two"
    assert source.valid_token(5).expires_at > time.time()


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, b"no", AuthenticationError),
        (503, b"later", UnreachableError),
        (200, b"<html>", AuthenticationError),
        (200, [], AuthenticationError),
        (200, {"access_token": 5}, AuthenticationError),
        (200, {"access_token": "x", "expires_in": "soon"}, AuthenticationError),
        (200, {"access_token": "x", "expires_in": -1}, AuthenticationError),
    ],
)
def test_an_endpoint_without_a_token_is_a_typed_error(
    endpoint: Endpoint, status: int, body: Any, error: type[Exception]
):
    endpoint.status, endpoint.body = status, body
    with pytest.raises(error) as caught:
        endpoint.source().valid_token(5)
    assert "s:1" not in str(caught.value)


def test_an_endpoint_that_is_not_there_is_unreachable(endpoint: Endpoint):
    source = endpoint.source()
    endpoint.shutdown()
    endpoint.server_close()
    with pytest.raises(UnreachableError):
        source.valid_token(5)


@pytest.mark.parametrize("given", [None, 5, b"t"])
def test_a_provider_that_returns_no_token_is_named(given: object):
    config = SecurityConfig(
        security_protocol="SASL_SSL",
        sasl_mechanism="OAUTHBEARER",
        sasl_login_callback_handler_class=lambda: given,  # type: ignore[arg-type,return-value]
    )
    with pytest.raises(AuthenticationError, match="returned"):
        TokenSource(config).valid_token(5)


def test_unsecured_tokens_contain_the_subject():
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    config = SecurityConfig(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="OAUTHBEARER",
        sasl_jaas_config=f'{module} required unsecuredLoginStringClaim_sub="alice";',
    )
    token: Token = TokenSource(config).valid_token(5)
    head, claims, signature = token.value.split(".")
    assert json.loads(base64.urlsafe_b64decode(head + "==")) == {"alg": "none"}
    claimed = json.loads(base64.urlsafe_b64decode(claims + "=="))
    assert claimed["sub"] == "alice"
    assert signature == ""
    assert round(claimed["iat"] * 1000) % 1000 == 0, "a broker rounds it, which must not take it past the present"
    assert claimed["iat"] <= time.time() < claimed["exp"]
