"""TLS of the clients' connections with a small server: trusted certificates, and sockets that never block.

Zone: real.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trustme
from tests.client.security.conftest import Certificates

from ottla.client.connections.address import Address
from ottla.client.errors import AuthenticationError, ClientError, ConfigError, UnreachableError
from ottla.client.security.settings import SecurityConfig
from ottla.client.security.tls import TlsSocket, secure_socket, tls_context


class Server:
    """A TLS server that sends back the bytes it receives, slowly, so that the client's buffer fills."""

    def __init__(self, certificate: trustme.LeafCert) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        certificate.configure_cert(self.context)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address("127.0.0.1", self.listener.getsockname()[1])
        self.go_on = threading.Event()
        self.got = bytearray()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                plain, _ = self.listener.accept()
                with contextlib.suppress(OSError), self.context.wrap_socket(plain, server_side=True) as peer:
                    self.go_on.wait(180)
                    while chunk := peer.recv(65_536):
                        self.got += chunk
                        peer.sendall(chunk[:100])


@pytest.fixture
def server(certificates: Certificates) -> Iterator[Server]:
    made = Server(certificates.authority.issue_cert("127.0.0.1"))
    yield made
    made.listener.close()


def connected(server: Server, **settings: Any) -> TlsSocket:
    sock = socket.create_connection(server.address[:2], 5)
    return secure_socket(sock, server.address, SecurityConfig(security_protocol="SSL", **settings))


def test_an_untrusted_broker_is_refused(server: Server, certificates: Certificates):
    server.go_on.set()
    with pytest.raises(AuthenticationError, match=r"ssl\.truststore\.location"):
        connected(server)
    other = trustme.CA().cert_pem.bytes().decode()
    with pytest.raises(AuthenticationError, match="not accepted"):
        connected(server, ssl_truststore_certificates=other)
    connected(server, ssl_truststore_location=certificates.trust).close()
    connected(server, ssl_truststore_certificates=certificates.authority.cert_pem.bytes().decode()).close()


def test_a_certificate_for_another_host_is_refused_unless_that_is_switched_off(certificates: Certificates):
    server = Server(certificates.authority.issue_cert("elsewhere.example"))
    with pytest.raises(AuthenticationError, match="advertise the name"):
        connected(server, ssl_truststore_location=certificates.trust)
    connected(server, ssl_truststore_location=certificates.trust, ssl_endpoint_identification_algorithm="").close()
    server.listener.close()


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"\0\0\0\x05hello"])
def test_a_port_without_tls_is_a_typed_error(certificates: Certificates, said: bytes):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])

        def send_response() -> None:
            with listener.accept()[0] as peer:
                peer.recv(100)
                peer.sendall(said)

        threading.Thread(target=send_response, daemon=True).start()
        sock = socket.create_connection(address[:2], 5)
        with pytest.raises(ClientError) as caught:
            secure_socket(
                sock, address, SecurityConfig(security_protocol="SSL", ssl_truststore_location=certificates.trust)
            )
        assert isinstance(caught.value, AuthenticationError | UnreachableError)
        assert sock.fileno() == -1, "nothing is left open"


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "empty").write_text("no certificate")
    for settings in (
        {"ssl_truststore_location": str(tmp_path / "missing")},
        {"ssl_truststore_location": str(tmp_path / "empty")},
        {"ssl_truststore_certificates": "nothing"},
        {"ssl_keystore_location": str(tmp_path / "empty")},
        {"ssl_keystore_key": "k", "ssl_keystore_certificate_chain": "c"},
    ):
        with pytest.raises(ConfigError, match="PEM"):
            tls_context(SecurityConfig(security_protocol="SSL", **settings))


def test_all_bytes_go_in_order_through_a_socket_that_never_blocks(server: Server, certificates: Certificates):
    """After a full buffer the same bytes are sent again first, even if there are more bytes to send by then."""
    sock = connected(server, ssl_truststore_location=certificates.trust)
    sock.setblocking(False)
    pieces = [memoryview(bytes([number % 251]) * 3_001) for number in range(4_000)]
    expected, blocked = b"".join(pieces), 0
    while pieces:
        try:
            sent = sock.sendmsg(pieces[: 1 + blocked % 7])
        except BlockingIOError:
            blocked += 1
            server.go_on.set()
            with contextlib.suppress(BlockingIOError):
                sock.recv(65_536)
            continue
        while pieces and sent >= pieces[0].nbytes:
            sent -= pieces.pop(0).nbytes
        if sent:
            pieces[0] = pieces[0][sent:]
    assert blocked, "the buffer was never full"
    sock.setblocking(True)
    while len(server.got) < len(expected):
        sock.recv(65_536)
    assert server.got == expected
    sock.close()


def test_tls_session_tickets_do_not_end_an_idle_connection(server: Server, certificates: Certificates):
    sock = connected(server, ssl_truststore_location=certificates.trust)
    sock.settimeout(180)
    server.go_on.set()
    sock.sendmsg([b"x"])
    assert sock.recv(10) == b"x"
    assert not sock.idle_ended(), "session tickets are no answer, and no end"
    assert sock.gettimeout() == 180
    sock.sendmsg([b"x" * 10])
    while not sock.idle_ended():
        pass  # until the unrequested answer is here
    sock.close()
