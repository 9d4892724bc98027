"""Connections to other brokers under TLS, whose other end is a listener of this process.

Zone: real.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from functools import partial
from pathlib import Path

import pytest
import trustme
from tests.server.tls.handshakes_test import CA, OTHER_CA, TlsServer, make, pem

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer
from ottla.seams import Failure
from ottla.server.connections.broker_connection import ConnectionContext
from ottla.server.connections.inter_broker_client import InterBrokerClient
from ottla.server.connections.tls.contexts import TlsSettings, load_client_context
from ottla.server.connections.tls.outgoing import OutgoingTls, TlsBrokerConnection
from ottla.server.connections.tls.reloading import ReloadableContext
from ottla.server.embedded import EmbeddedBroker

__all__ = ["make"]
NEVER = 1 << 62


class Caller:
    """A broker's calls to the one on `server`."""

    def __init__(self, server: TlsServer, authority: trustme.CA = CA, host: str = "127.0.0.1", check: bool = True):
        traffic = server.traffic
        trusted = authority.cert_pem.bytes().decode()
        own = pem(CA.issue_cert("broker-1.example", common_name="broker-1"))
        settings = TlsSettings(None, own["key"], own["chain"], None, None, trusted, check_host=check)
        source = ReloadableContext("brokers", settings, load_client_context)
        tls = OutgoingTls(server.loop, server.turns.add_branch(2), source)
        scratch = memoryview(bytearray(1024))
        wiring = ConnectionContext(server.loop, traffic.watch, server.turns, traffic.pool, scratch)
        connect = partial(TlsBrokerConnection, tls=tls)
        self.calls = server.calls = InterBrokerClient(server.loop, server.turns, 1, wiring, connect)
        self.calls.set_address(2, host, server.port)
        self.server = server
        self.done: list = []

    def ask(self, *frames: bytes) -> list:
        for frame in frames:
            self.calls.call_broker(2, frame, NEVER, self.on_answer)
        self.server.until(lambda: len(self.done) == len(frames))
        return self.done

    def on_answer(self, outcome) -> None:
        self.done.append(bytes(outcome) if isinstance(outcome, memoryview) else outcome)


@pytest.mark.parametrize("size", [2, 900, 5_000, 3_000_000])
def test_calls_are_answered_in_order(make, size):
    server = make("required")
    principals = set()
    answer = os.urandom(size)
    server.broker.answer = [answer]
    on_frame = server.broker.on_frame

    def noted(slot, frame):
        principals.add(slot.peer.principal)
        return on_frame(slot, frame)

    server.traffic.on_frame = noted
    assert Caller(server).ask(*[bytes([n]) * 20_000 for n in range(10)]) == [answer] * 10
    (principal,) = principals
    assert principal.startswith("User:CN=broker-1,")


@pytest.mark.parametrize(
    ("host", "authority", "word"),
    [("", OTHER_CA, "unable to get local issuer"), ("elsewhere.example", CA, "IP address mismatch")],
)
def test_a_broker_that_is_not_trusted_or_has_another_name_fails_the_calls(make, caplog, host, authority, word):
    (failure,) = Caller(make(host=host), authority).ask(b"x" * 20)
    assert isinstance(failure, Failure)
    assert word in failure.message
    assert "cannot log in to broker 2" in caplog.text


def test_names_are_not_compared_if_that_is_switched_off(make):
    assert Caller(make(host="elsewhere.example"), check=False).ask(b"x" * 20) == [b"ok"]


def test_a_plain_broker_fails_the_calls(make):
    server = make()
    caller = Caller(server)
    with socket.create_server(("127.0.0.1", 0)) as plain:
        caller.calls.set_address(2, "127.0.0.1", plain.getsockname()[1])
        caller.calls.call_broker(2, b"x" * 20, NEVER, caller.on_answer)
        server.steps()
        peer = plain.accept()[0]
        peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        server.until(lambda: caller.done)
        peer.close()
    assert "no TLS session" in caller.done[0].message


@pytest.mark.slow
def test_brokers_replicate_over_tls_and_prove_who_they_are(served, tmp_path: Path):
    """Two brokers, certificates on both sides, and the secret of the cluster over TLS."""
    CA.cert_pem.write_to_path(tmp_path / "ca.pem")
    (tmp_path / "secret").write_bytes(b"sixteen bytes and more")
    (tmp_path / "secret").chmod(0o600)
    brokers = []
    for number in (1, 2):
        own = pem(CA.issue_cert("127.0.0.1"))
        (tmp_path / f"{number}.pem").write_text(own["key"] + own["chain"])
        config = {
            "node.id": str(number),
            "zookeeper.connect": f"127.0.0.1:{served.server.port}",
            "listeners": "CLIENTS://127.0.0.1:0,BROKERS://127.0.0.1:0",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:SSL",
            "inter.broker.listener.name": "BROKERS",
            "listener.name.brokers.ssl.client.auth": "required",
            "ssl.keystore.location": str(tmp_path / f"{number}.pem"),
            "ssl.truststore.location": str(tmp_path / "ca.pem"),
            "ottla.inter.broker.secret.file": str(tmp_path / "secret"),
            "controlled.shutdown.enable": "false",
        }
        brokers.append(EmbeddedBroker(str(tmp_path / f"data{number}"), config))
    threads = [threading.Thread(target=broker.start) for broker in brokers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        with Cluster(ClientConfig(bootstrap_servers=brokers[0].bootstrap)) as cluster:
            Admin(cluster).create_topics([NewTopic("t", 4, 2)])
        values = [os.urandom(200_000) for _ in range(20)]
        with Producer({"bootstrap.servers": brokers[0].bootstrap, "acks": "all"}) as producer:
            for future in [producer.send("t", value) for value in values]:
                future.result(180)
        with Cluster(ClientConfig(bootstrap_servers=brokers[1].bootstrap)) as cluster:
            topic = Admin(cluster).describe_topics(["t"])["t"]
            assert all(len(partition.isr) == 2 for partition in topic.partitions.values())
        client = served.kazoo()
        registered = json.loads(client.get("/brokers/ids/1")[0])
        assert registered["listener_security_protocol_map"] == {"CLIENTS": "PLAINTEXT", "BROKERS": "SSL"}
    finally:
        for broker in brokers:
            broker.stop()
