"""The pages for monitoring over TLS and with credentials, and certificates that change while the broker runs.

Zone: real.
"""

from __future__ import annotations

import base64
import http.client
import logging
import os
import socket
import ssl
from pathlib import Path

import pytest
import trustme

from ottla.config.broker import BrokerConfig
from ottla.config.rows import ConfigError
from ottla.http_pages import Access
from ottla.seams import Failure
from ottla.server.connections.tls.contexts import TlsSettings, load_server_context, openssl_name, tidy_pem
from ottla.server.connections.tls.reloading import ReloadableContext
from ottla.server.embedded import EmbeddedBroker


def write(path: Path, made: trustme.LeafCert) -> None:
    beside = path.with_suffix(".new")
    beside.write_bytes(made.private_key_pem.bytes() + b"".join(each.bytes() for each in made.cert_chain_pems))
    os.replace(beside, path)


def settings_of(path: Path, **more) -> TlsSettings:
    return TlsSettings(str(path), None, None, more.pop("password", None), None, None, **more)


@pytest.mark.parametrize("rounds", [20])
def test_pages_over_tls_with_credentials(tmp_path: Path, rounds: int) -> None:
    authority = trustme.CA()
    write(tmp_path / "pages.pem", authority.issue_cert("127.0.0.1"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    config = {
        "ottla.http.listener": "127.0.0.1:0",
        "ottla.http.ssl.keystore.location": str(tmp_path / "pages.pem"),
        "ottla.http.basic.auth": "eve:p:w",
        "ottla.http.bearer.token": "token-of-36-letters",
    }
    basic = base64.b64encode(b"eve:p:w").decode()
    with EmbeddedBroker(config=config) as broker:

        def ask(path: str, **headers: str) -> tuple[int, bytes]:
            connection = http.client.HTTPSConnection("127.0.0.1", broker.http_port, timeout=180, context=context)
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            try:
                return answer.status, answer.read()
            finally:
                connection.close()

        for _ in range(rounds):
            assert ask("/health", Authorization="Bearer token-of-36-letters")[0] == 200
        status, body = ask("/metrics", Authorization=f"Basic {basic}")
        assert status == 200
        assert len(body) > 10_000
        for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "Basic ZXZlOng="}):
            assert ask("/metrics", **headers)[0] == 401
            assert ask("/nothing", **headers)[0] == 401
        with socket.create_connection(("127.0.0.1", broker.http_port), 180) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\n\r\n")
            assert b"ready" not in plain.recv(1000), "nothing is served without TLS"


@pytest.mark.parametrize("client_auth", ["required", "requested"])
def test_pages_for_clients_with_a_certificate(tmp_path: Path, client_auth: str) -> None:
    authority, foreign = trustme.CA(), trustme.CA()
    write(tmp_path / "pages.pem", authority.issue_cert("127.0.0.1"))
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    config = {
        "ottla.http.listener": "127.0.0.1:0",
        "ottla.http.ssl.keystore.location": str(tmp_path / "pages.pem"),
        "ottla.http.ssl.truststore.location": str(tmp_path / "ca.pem"),
        "ottla.http.ssl.client.auth": client_auth,
    }
    with EmbeddedBroker(config=config) as broker:

        def read_status(identity: trustme.LeafCert | None) -> int:
            """The status of /metrics and of /health; 0: the connection was closed before an answer."""
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            authority.configure_trust(context)
            if identity is not None:
                identity.configure_cert(context)
            found = set()
            for path in ("/metrics", "/health"):
                connection = http.client.HTTPSConnection("127.0.0.1", broker.http_port, timeout=180, context=context)
                try:
                    connection.request("GET", path)
                    found.add(connection.getresponse().status)
                except (OSError, http.client.RemoteDisconnected):
                    found.add(0)
                finally:
                    connection.close()
            (status,) = found
            return status

        for _ in range(2):  # those who are refused do not disturb the others
            assert read_status(authority.issue_cert("prometheus")) == 200
            assert read_status(foreign.issue_cert("prometheus")) == 0
            assert read_status(None) == (0 if client_auth == "required" else 200)


@pytest.mark.parametrize("missing", ["ottla.http.ssl.keystore.location", "ottla.http.ssl.truststore.location"])
def test_pages_that_could_not_request_certificates_are_refused(missing: str) -> None:
    keys = ("ottla.http.ssl.keystore.location", "ottla.http.ssl.truststore.location")
    given = {"ottla.http.ssl.client.auth": "requested", **{key: "a.pem" for key in keys if key != missing}}
    with pytest.raises(ConfigError, match=missing):
        BrokerConfig.from_properties(given)


def test_credentials_are_found_in_any_spelling_of_the_header() -> None:
    access = Access(bearer="secret")
    assert access.is_allowed(b"GET / HTTP/1.1\r\nauthorization:bearer secret\r\n\r\n")
    assert access.is_allowed(b"GET / HTTP/1.1\r\nHost: x\r\nAUTHORIZATION: Bearer  secret \r\n\r\n")
    for head in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Bearer\r\n\r\n",
        b"GET / HTTP/1.1\r\nAuthorization: Basic secret\r\n\r\n",
        b"GET / HTTP/1.1\r\nX-Authorization: Bearer secret\r\n\r\n",
        b"GET /?authorization: bearer secret HTTP/1.1\r\n\r\n",
    ):
        assert not access.is_allowed(head)
    assert Access().is_allowed(b"GET / HTTP/1.1\r\n\r\n")


# -- contexts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "more", "word"),
    [
        (("a.example", "b.example"), {}, ""),
        (("b.example",), {}, "alternative names"),
        (("b.example",), {"allow_names": True}, ""),
    ],
)
def test_a_changed_certificate_must_have_the_names_of_the_present_one(tmp_path, caplog, hosts, more, word):
    caplog.set_level(logging.INFO, "ottla")
    authority, path = trustme.CA(), tmp_path / "own.pem"
    write(path, authority.issue_cert("a.example", common_name="a"))
    # trustme's subjects differ by certificate, so that rule is off here.
    source = ReloadableContext("listener X", settings_of(path), load_server_context, allow_subject=True, **more)
    before = source.context
    source.follow_files()
    assert source.context is before
    write(path, authority.issue_cert(*hosts, common_name="a"))
    source.follow_files()
    assert (source.context is before) == bool(word)
    assert len(caplog.records) == 1
    assert word in caplog.text


def test_a_changed_certificate_must_have_the_same_subject(tmp_path, caplog):
    authority, path = trustme.CA(), tmp_path / "own.pem"
    write(path, authority.issue_cert("a.example", common_name="a"))
    source = ReloadableContext("listener X", settings_of(path), load_server_context)
    before = source.context
    write(path, authority.issue_cert("a.example", common_name="b"))
    source.follow_files()
    assert source.context is before
    assert "ssl.allow.dn.changes" in caplog.text


def test_a_file_that_cannot_be_used_keeps_the_present_context_with_one_line(tmp_path, caplog):
    path = tmp_path / "own.pem"
    write(path, trustme.CA().issue_cert("a.example"))
    source = ReloadableContext("listener X", settings_of(path), load_server_context, allow_subject=True)
    before = source.context
    path.write_text("garbage")
    source.follow_files()
    source.follow_files()
    path.unlink()
    source.follow_files()
    source.follow_settings(settings_of(tmp_path / "missing.pem"))
    assert source.context is before
    assert len(caplog.records) == 3
    write(path, trustme.CA().issue_cert("a.example"))
    source.follow_settings(settings_of(path))
    assert source.context is not before


def test_stores_that_cannot_be_used_are_named_without_their_content(tmp_path):
    made, other = trustme.CA().issue_cert("a"), trustme.CA().issue_cert("b")
    key, chain = made.private_key_pem.bytes().decode(), made.cert_chain_pems[0].bytes().decode()
    files = {
        "java": (b"\xfe\xed\xfe\xed\0\0\0\2", "keytool"),
        "pkcs12": (b"\x30\x82\x09\x3f", "openssl pkcs12"),
        "nothing": (b"", "lacks"),
        "only a key": (key.encode(), "lacks"),
        "other key": (other.private_key_pem.bytes() + chain.encode(), "does not belong"),
    }
    for name, (content, word) in files.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(Failure) as caught:
            load_server_context(settings_of(path))
        assert word in str(caught.value), name
        assert str(path) in str(caught.value)
        assert "BEGIN" not in str(caught.value)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Failure):
        load_server_context(settings_of(tmp_path / "pipe"))


def test_text_in_one_line_is_a_pem_file(tmp_path):
    made = trustme.CA().issue_cert("a")
    key = " ".join(made.private_key_pem.bytes().decode().split("\n"))
    chain = " ".join(made.cert_chain_pems[0].bytes().decode().split("\n"))
    loaded = load_server_context(TlsSettings(None, key, chain, None, None, None))
    assert loaded.names
    assert tidy_pem(f"note {key} {chain}").count("-----BEGIN") == 2


def test_cipher_suites_have_the_names_of_iana_or_openssl(tmp_path):
    for iana, name in {
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_DHE_RSA_WITH_AES_256_CBC_SHA256": "DHE-RSA-AES256-SHA256",
        "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
        "ECDHE-RSA-AES256-GCM-SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    }.items():
        assert openssl_name(iana) == name
    path = tmp_path / "own.pem"
    write(path, trustme.CA().issue_cert("a"))
    older = ("TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",)
    context = load_server_context(settings_of(path, suites=older)).context
    assert context.maximum_version == ssl.TLSVersion.TLSv1_2
    assert [each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.2"] == [openssl_name(older[0])]
    context = load_server_context(settings_of(path, suites=("TLS_AES_128_GCM_SHA256",))).context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_3
    with pytest.raises(Failure, match="no suite of a version"):
        load_server_context(settings_of(path, suites=older, versions=("TLSv1.3",)))
    assert "PRIVATE" not in repr(settings_of(path, password="hidden"))
    assert "hidden" not in repr(settings_of(path, password="hidden"))
