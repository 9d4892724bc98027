"""TLS of accepted connections with real sockets: handshakes, principals, large transfers, bad peers.

Zone: real.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import os
import socket
import ssl
import struct
import subprocess
from collections.abc import Callable
from functools import partial

import pytest
import trustme
from tests.server.conftest import Server

from ottla.seams import Gate, Region
from ottla.security.principal_mapping import PrincipalMapper
from ottla.server.connections.connection_manager import TrafficLimits
from ottla.server.connections.listener import ConnectionLimits, Listener
from ottla.server.connections.tls import handshakes
from ottla.server.connections.tls.contexts import TlsSettings, load_server_context
from ottla.server.connections.tls.handshakes import BYTES, Handshakes, ListenerTls
from ottla.server.connections.tls.reloading import ReloadableContext
from ottla.server.disks.disk import RealDisk
from ottla.types import Endpoint

CA = trustme.CA()
OTHER_CA = trustme.CA()
OK = b"\0\0\0\2ok"


def pem(made: trustme.LeafCert) -> dict[str, str]:
    chain = b"".join(each.bytes() for each in made.cert_chain_pems)
    return {"key": made.private_key_pem.bytes().decode(), "chain": chain.decode()}


SERVER = pem(CA.issue_cert("localhost", "127.0.0.1"))


def settings(client_auth: str = "none", **more: str) -> TlsSettings:
    own = {**SERVER, **more}
    trusted = CA.cert_pem.bytes().decode()
    return TlsSettings(None, own["key"], own["chain"], None, None, trusted, client_auth)


class TlsServer(Server):
    """The shell's server with a listener that speaks TLS."""

    def __init__(
        self,
        client_auth: str = "none",
        *,
        most: int = 100,
        time_s: float = 600.0,
        host: str = "",
        delay_ms: int = 0,
        rules: str = "DEFAULT",
    ) -> None:
        super().__init__(TrafficLimits(), ConnectionLimits())
        self.listener.stop_accepting()
        identity = pem(CA.issue_cert(host)) if host else {}
        source = ReloadableContext("listener TEST", settings(client_auth, **identity), load_server_context)
        threads = self.turns.add_branch(2)
        self.handshakes = Handshakes(self.traffic, threads, self.quotas.give_back, most=most, time_s=time_s)
        tls = ListenerTls(source, PrincipalMapper(rules), delay_ms)
        opener = partial(self.handshakes.begin_handshake, tls=tls)
        self.listener = Listener(self.traffic, self.quotas, Endpoint("TEST", "127.0.0.1", 0, "SSL"), None, opener)
        self.listener.start_accepting()
        self.port = self.listener.endpoint.port

    def stop(self) -> None:
        # A thread may work on a handshake, whose socket is closed when it is done.
        working = [each for each in self.handshakes._open if each.is_working]
        self.handshakes.close_all()
        self.until(lambda: not any(each.is_working for each in working))
        self.handshakes.close_all()
        super().stop()

    def secure(self, context: ssl.SSLContext, host: str = "localhost") -> ssl.SSLSocket:
        """A client's socket after its handshake."""
        sock = context.wrap_socket(self.connect(), server_hostname=host, do_handshake_on_connect=False)
        self.clients.append(sock)
        self.until(lambda: self.steps_done(sock.do_handshake))
        return sock

    @staticmethod
    def steps_done(action: Callable[[], object]) -> bool:
        try:
            action()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        return True

    def send(self, sock, data: bytes) -> None:
        view = memoryview(data)
        while view:
            with contextlib.suppress(ssl.SSLWantWriteError, BlockingIOError):
                view = view[sock.send(view[:16_384]) :]
            self.step()

    def receive(self, sock, size: int) -> bytes:
        data = bytearray()

        def enough() -> bool:
            with contextlib.suppress(ssl.SSLWantReadError, BlockingIOError):
                data.extend(sock.recv(size - len(data)))
            return len(data) >= size

        self.until(enough)
        return bytes(data)

    def ended(self, sock) -> bool:
        try:
            return not sock.recv(65_536)
        except (BlockingIOError, ssl.SSLWantReadError):
            return False
        except OSError:
            return True


@pytest.fixture
def make():
    made: list[TlsServer] = []

    def start(*arguments, **options) -> TlsServer:
        made.append(TlsServer(*arguments, **options))
        return made[-1]

    yield start
    for server in made:
        server.stop()


def client_context(identity: trustme.LeafCert | None = None, authority: trustme.CA = CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.configure_trust(context)
    if identity is not None:
        identity.configure_cert(context)
    return context


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def framed(size: int) -> bytes:
    return struct.pack(">i", size) + b"f" * size


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_requests_of_all_sizes_are_answered(make, version):
    server, context = make(), client_context()
    context.minimum_version = context.maximum_version = version
    sock = server.secure(context)
    sizes = [8, 70_000, 20, 300_000, 299_990, 9, 131_068, 131_072, 16_384, 16_380, 8, 3_000_000, 8]
    server.send(sock, b"".join(map(framed, sizes)))
    assert server.receive(sock, 6 * len(sizes)) == OK * len(sizes)
    assert server.broker.bytes == sum(sizes)
    assert server.traffic.request_memory.used == 0


def test_a_large_region_arrives_at_a_slow_reader(make, tmp_path):
    server = make()
    sock = server.secure(client_context())
    content = os.urandom(8 * 1024 * 1024 + 12_345)
    disk = RealDisk(str(tmp_path), server.turns)
    file = disk.open("a.log", True)
    file.append([content])
    server.broker.answer = [b"head", Region(file, 0, len(content), file.generation), b"tail"]
    server.send(sock, framed(20) * 2)
    server.steps(20)
    whole = b"head" + content + b"tail"
    for _ in range(2):
        assert server.receive(sock, 4 + len(whole)) == struct.pack(">i", len(whole)) + whole
    server.until(lambda: not file.busy)
    file.close()


def test_large_answers_arrive_at_a_slow_reader(make):
    server = make()
    sock = server.secure(client_context())
    answer = os.urandom(700_001)
    server.broker.answer = [answer]
    server.send(sock, framed(20) * 12)
    server.steps(30)
    assert server.broker.frames < 12, "it waits for the reader"
    for _ in range(12):
        assert server.receive(sock, 4 + len(answer)) == struct.pack(">i", len(answer)) + answer


def test_the_certificate_of_a_client_names_its_principal(make):
    server = make("required")
    seen = []

    def on_frame(slot, _view):
        seen.append(slot.peer.principal)
        server.broker.network.send_reply(slot, [b"ok"])
        return Gate.NEXT

    server.traffic.on_frame = on_frame
    sock = server.secure(client_context(CA.issue_cert("alice", common_name="alice")))
    server.send(sock, framed(20))
    assert server.receive(sock, 6) == OK
    assert seen[0].startswith("User:CN=alice,")


@pytest.mark.parametrize("identity", [None, OTHER_CA.issue_cert("eve")])
def test_a_client_without_an_accepted_certificate_costs_one_line(make, caplog, identity):
    server = make("required")
    context = client_context(identity)
    sock = context.wrap_socket(server.connect(), server_hostname="localhost", do_handshake_on_connect=False)
    server.clients.append(sock)

    def refused() -> bool:
        with contextlib.suppress(OSError):
            sock.do_handshake()
        return server.handshakes.under_way == 0 and bool(lines(caplog))

    server.until(refused)
    assert len(lines(caplog)) == 1
    assert "certificate" in lines(caplog)[0]
    assert "TEST" in lines(caplog)[0]
    assert server.broker.frames == 0
    assert server.quotas._total == 0


HOUR_MS = 3_600_000
UNACCEPTED = [None, OTHER_CA.issue_cert("eve")]


def fail(server: TlsServer, context: ssl.SSLContext) -> ssl.SSLSocket:
    """A client's socket after the broker has failed the client's authentication."""
    sock = context.wrap_socket(server.connect(), server_hostname="localhost", do_handshake_on_connect=False)
    server.clients.append(sock)
    before = len(server.handshakes._failing)

    def failed() -> bool:
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            sock.do_handshake()
        return len(server.handshakes._failing) > before

    server.until(failed)
    return sock


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("identity", UNACCEPTED)
def test_a_failed_authentication_ends_after_its_delay_without_a_thread_or_a_session(make, caplog, identity, version):
    server, context = make("required", delay_ms=HOUR_MS), client_context(identity)
    context.minimum_version = context.maximum_version = version
    sock = fail(server, context)
    server.steps(20)
    ((waiting, timer),) = server.handshakes._failing.items()
    assert not server.ended(sock)
    assert timer.when() > server.loop.time() + HOUR_MS / 2000
    assert server.handshakes.under_way == 0, "it takes no place of a handshake"
    assert not waiting.is_working
    assert waiting._session is None
    assert len(waiting._out) < 100, "the alert"
    assert server.quotas._total == 1, "it counts for max.connections"
    # Others are served meanwhile.
    good = server.secure(client_context(CA.issue_cert("alice")))
    server.send(good, framed(20))
    assert server.receive(good, 6) == OK
    with contextlib.suppress(OSError):
        sock.send(framed(20))  # in TLS 1.3 a client sends its first request before it knows
    timer.cancel()
    waiting.close_socket()
    with pytest.raises(ssl.SSLError, match=r"(?i)alert"):
        server.until(lambda: server.steps_done(lambda: sock.do_handshake() or sock.recv(1)))
    with socket.socket(fileno=sock.detach()) as plain:
        assert plain.recv(1) == b"", "it ends without a reset, by which a client could lose the alert"
    assert (len(lines(caplog)), server.quotas._total) == (1, 1)


def test_a_failed_authentication_ends_by_itself(make):
    server = make("required", delay_ms=20)
    sock = fail(server, client_context())
    server.until(lambda: not server.handshakes._failing)
    server.until(lambda: server.ended(sock))
    assert server.quotas._total == 0


def test_a_certificate_without_a_principal_is_a_failed_authentication(make):
    server = make("required", delay_ms=HOUR_MS, rules="RULE:^CN=nobody$/x/")
    assert not server.ended(fail(server, client_context(CA.issue_cert("eve"))))


def test_failed_authentications_that_wait_are_bounded(make, monkeypatch):
    server = make("required", delay_ms=HOUR_MS)
    monkeypatch.setattr(handshakes, "FAILING_MAX", 2)
    first = [fail(server, client_context()) for _ in range(2)]
    third = client_context().wrap_socket(server.connect(), server_hostname="localhost", do_handshake_on_connect=False)

    def ended() -> bool:
        try:
            third.do_handshake()
            return server.ended(third)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            return True

    server.until(ended)
    assert not any(map(server.ended, first))
    assert len(server.handshakes._failing) == 2
    third.close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00\x05garbage"])
def test_what_is_no_authentication_ends_at_once(make, data):
    server = make("required", delay_ms=HOUR_MS)
    sock = server.connect()
    sock.send(data)
    server.until(lambda: server.ended(sock))
    assert not server.handshakes._failing


def test_a_client_that_does_not_trust_the_broker_costs_one_line(make, caplog):
    server = make()
    context = client_context(authority=OTHER_CA)
    sock = context.wrap_socket(server.connect(), server_hostname="localhost", do_handshake_on_connect=False)
    with pytest.raises(ssl.SSLCertVerificationError):
        server.until(lambda: server.steps_done(sock.do_handshake))
    sock.close()
    server.until(lambda: server.handshakes.under_way == 0)
    assert len(lines(caplog)) == 1
    assert "does not trust the authority" in lines(caplog)[0]


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (b"\0\0\0\x14\0\x12\0\0", "security.protocol=SSL"),
        (b"\x80garbage", "did not begin"),
        (b"\x16\x03\x01\x00\x05garbage", "no TLS session"),
        (b"\x16\x03\x01\x40\x00" + bytes(20_000), "no TLS session"),
    ],
)
def test_bytes_that_are_no_handshake_cost_one_line(make, caplog, data, word):
    server = make()
    sock = server.connect()
    sock.send(data)
    server.until(lambda: server.ended(sock))
    assert len(lines(caplog)) == 1
    assert word in lines(caplog)[0]
    assert server.quotas._total == 0
    assert server.broker.gone == 0


def test_half_open_handshakes_end_in_time(make, caplog):
    server = make(time_s=0.01)
    sock = server.connect()
    sock.send(b"\x16\x03\x01")
    server.until(lambda: server.ended(sock))
    assert "took more than" in lines(caplog)[0]
    assert server.handshakes.under_way == 0
    assert server.quotas._total == 0


def test_many_half_open_handshakes_do_not_shut_others_out(make):
    server = make(most=3)
    waiting = [server.connect() for _ in range(5)]
    server.until(lambda: server.handshakes.under_way == 3)
    sock = server.secure(client_context())
    server.send(sock, framed(20))
    assert server.receive(sock, 6) == OK
    assert server.ended(waiting[0])


def test_a_peer_that_leaves_in_a_handshake_is_forgotten(make, caplog):
    server = make()
    sock = server.connect()
    sock.send(b"\x16\x03\x01")
    server.steps()
    sock.close()
    server.until(lambda: server.handshakes.under_way == 0 and server.quotas._total == 0)
    assert lines(caplog) == []


def test_the_end_is_announced(make):
    """close_notify, so that a client knows that nothing was cut off."""
    server = make()
    sock = server.secure(client_context())
    server.send(sock, framed(20))
    assert server.receive(sock, 6) == OK
    next(iter(server.traffic.connections)).close_connection()
    sock.setblocking(True)
    assert sock.recv(10) == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_end_of_a_client_is_answered(make, version):
    """A client may keep its socket open until the broker's close_notify has come: asyncio waits for half a minute."""
    server = make()
    context = client_context()
    context.maximum_version = version
    sock = server.secure(context)
    server.send(sock, framed(20))
    assert server.receive(sock, 6) == OK
    with pytest.raises(ssl.SSLWantReadError):
        sock.unwrap()
    server.until(lambda: server.broker.gone == 1)
    plain = sock.unwrap()
    plain.setblocking(True)
    assert plain.recv(10) == b""
    plain.close()


def test_garbage_after_the_handshake_ends_the_connection(make):
    server = make()
    sock = server.secure(client_context())
    server.send(sock, framed(20))
    assert server.receive(sock, 6) == OK
    os.write(sock.fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))
    server.until(lambda: server.broker.gone == 1)
    assert BYTES == 65_536


def test_renegotiation_is_refused(make, tmp_path):
    """OpenSSL's client requests one in TLS 1.2, and ends because the answer is an alert."""
    server = make()
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    address = f"127.0.0.1:{server.port}"
    client = subprocess.Popen(  # R as the only letter of a line
        ["openssl", "s_client", "-connect", address, "-tls1_2", "-CAfile", str(tmp_path / "ca.pem")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert client.stdin is not None
    assert client.stdout is not None
    server.until(lambda: bool(server.traffic.connections))
    client.stdin.write(b"R\n")
    client.stdin.flush()
    server.until(lambda: client.poll() is not None)
    assert b"no renegotiation" in client.stdout.read()
    client.stdin.close()
    client.stdout.close()
    server.until(lambda: server.broker.gone == 1)
    assert server.broker.frames == 0


def test_an_expired_certificate_of_a_client_costs_one_line(make, caplog):
    server = make("required")
    identity = CA.issue_cert("alice", not_after=dt.datetime(2001, 1, 1, tzinfo=dt.UTC),
                             not_before=dt.datetime(2000, 1, 1, tzinfo=dt.UTC))  # fmt: skip
    context = client_context(identity)
    sock = context.wrap_socket(server.connect(), server_hostname="localhost", do_handshake_on_connect=False)
    server.clients.append(sock)

    def refused() -> bool:
        with contextlib.suppress(OSError):
            sock.do_handshake()
        return bool(lines(caplog))

    server.until(refused)
    (line,) = lines(caplog)
    assert line.endswith("no TLS session at listener TEST: its certificate is not accepted: certificate has expired")


def test_failed_handshakes_leave_nothing(make):
    """Counts of connections, memory of requests and handshakes under way return to what they were."""
    server = make()
    for number in range(60):
        sock = server.connect()
        sock.send((b"\x16\x03\x01\x00\x05garbage", b"\0\0\0\x14", b"\x16")[number % 3])
        server.steps(2)
        sock.close()
    server.until(lambda: server.handshakes.under_way == 0)
    assert server.quotas._total == 0
    assert not server.quotas._by_address
    assert server.traffic.request_memory.used == 0
