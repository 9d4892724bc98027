"""A broker with TLS and real clients: Ottla's own, librdkafka, kafka-python; certificates that change.

Zone: real.
"""

from __future__ import annotations

import os
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import Producer as RdProducer

from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer
from ottla.client.admin.types import ConfigChange, ConfigOp, Resource, ResourceType
from ottla.client.errors import AuthenticationError
from ottla.seams import Failure
from ottla.server.embedded import EmbeddedBroker


class Secured:
    """A broker with a plain listener, one with TLS, and one that requires certificates."""

    def __init__(self, directory: Path, authority: trustme.CA, **more: str) -> None:
        self.directory = directory
        self.authority = authority
        authority.cert_pem.write_to_path(directory / "ca.pem")
        self.write("server.pem", "localhost", "127.0.0.1")
        self.write("client.pem", "alice@example.org")
        self.broker = EmbeddedBroker(
            str(directory / "data"),
            {
                "listeners": "PLAIN://127.0.0.1:0,DOOR://127.0.0.1:0,MUTUAL://127.0.0.1:0,SIDE://127.0.0.1:0",
                "listener.security.protocol.map": "PLAIN:PLAINTEXT,DOOR:SSL,MUTUAL:SSL,SIDE:SSL",
                "inter.broker.listener.name": "PLAIN",
                "ssl.keystore.location": str(directory / "server.pem"),
                "ssl.truststore.location": str(directory / "ca.pem"),
                "listener.name.mutual.ssl.client.auth": "required",
                "listener.name.door.ssl.key.password": "hidden",
                "ssl.allow.dn.changes": "true",
                "ssl.allow.san.changes": "true",
                **more,
            },
        )

    def write(self, name: str, *hosts: str) -> None:
        made = self.authority.issue_cert(*hosts)
        beside = self.directory / f"{name}.new"
        beside.write_bytes(made.private_key_pem.bytes() + b"".join(each.bytes() for each in made.cert_chain_pems))
        os.replace(beside, self.directory / name)

    def settings(self, listener: str, **more: str) -> dict[str, str]:
        port = next(each.port for each in self.broker._service.endpoints if each.listener == listener)
        return {
            "bootstrap.servers": f"127.0.0.1:{port}",
            "security.protocol": "PLAINTEXT" if listener == "PLAIN" else "SSL",
            "ssl.truststore.location": str(self.directory / "ca.pem"),
            **more,
        }


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("secured"), trustme.CA())
    with made.broker:
        with Cluster(ClientConfig.from_mapping(made.settings("PLAIN"))) as cluster:
            Admin(cluster).create_topics([NewTopic("t")])
        yield made


@pytest.mark.slow
def test_our_client_produces_several_megabytes_and_reads_them(secured: Secured):
    settings = secured.settings("MUTUAL", **{"ssl.keystore.location": str(secured.directory / "client.pem")})
    values = [os.urandom(300_000) for _ in range(20)]
    with Producer(settings) as producer:
        sent = [producer.send("t", value) for value in values]
        first = sent[0].result(180).offset
    consumer = RdConsumer(rd_settings(secured, "DOOR", **{"group.id": "g", "auto.offset.reset": "earliest"}))
    consumer.subscribe(["t"])
    found: list[bytes] = []
    while len(found) < len(values):
        message = consumer.poll(60)
        assert message is not None, "no message within a minute"
        assert message.error() is None, message.error()
        if message.offset() >= first:
            found.append(message.value())
    consumer.close()
    assert found == values


def rd_settings(secured: Secured, listener: str, **more: str) -> dict[str, str]:
    settings = secured.settings(listener, **more)
    settings["ssl.ca.location"] = settings.pop("ssl.truststore.location")
    return settings


def test_librdkafka_shows_a_certificate(secured: Secured):
    path = str(secured.directory / "client.pem")
    more = {"ssl.key.location": path, "ssl.certificate.location": path}
    outcome = []
    producer = RdProducer(rd_settings(secured, "MUTUAL", **more))
    producer.produce("t", b"x", on_delivery=lambda error, _message: outcome.append(error))
    assert producer.flush(60) == 0
    assert outcome == [None]


@pytest.mark.slow
def test_kafka_python_produces(secured: Secured):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        from kafka import KafkaProducer
    settings = secured.settings("DOOR")
    producer = KafkaProducer(
        bootstrap_servers=settings["bootstrap.servers"], security_protocol="SSL",
        ssl_cafile=settings["ssl.truststore.location"],
    )  # fmt: skip
    assert producer.send("t", b"x").get(60).topic == "t"
    producer.close()


def test_a_client_without_a_certificate_is_refused(secured: Secured):
    with pytest.raises(AuthenticationError), Cluster(ClientConfig.from_mapping(secured.settings("MUTUAL"))) as cluster:
        Admin(cluster).list_topics()


def shown(secured: Secured, listener: str = "DOOR") -> bytes:
    """The certificate that a new connection gets."""
    host, port = secured.settings(listener)["bootstrap.servers"].split(":")
    context = ssl.create_default_context(cafile=str(secured.directory / "ca.pem"))
    with (
        socket.create_connection((host, int(port)), 60) as sock,
        context.wrap_socket(sock, server_hostname=host) as tls,
    ):
        found = tls.getpeercert(True)
    assert found
    return found


def test_metadata_names_the_protocol_of_each_listener(secured: Secured):
    endpoints = {each.listener: each.protocol for each in secured.broker._service.endpoints}
    assert endpoints == {"PLAIN": "PLAINTEXT", "DOOR": "SSL", "MUTUAL": "SSL", "SIDE": "SSL"}


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"ssl.keystore.location": "/nonexistent"}, "ssl.keystore.location /nonexistent: No such file"),
        ({"ssl.principal.mapping.rules": "RULE:("}, "ssl.principal.mapping.rules"),
        ({"ssl.cipher.suites": "TLS_RSA_WITH_NOTHING"}, "ssl.cipher.suites"),
    ],
)
def test_a_broker_with_settings_that_cannot_be_used_does_not_start(tmp_path: Path, settings: dict, words: str):
    broker = Secured(tmp_path, trustme.CA(), **settings).broker
    with pytest.raises(Failure) as caught:
        broker.start()
    assert words in str(caught.value)
    assert "PRIVATE KEY" not in str(caught.value)


def wait_until(holds: Callable[[], bool]) -> None:
    """Three minutes only bound a test that is broken."""
    end = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < end, "timed out"


def test_an_altered_key_of_a_listener_changes_its_certificate(secured: Secured):
    before = shown(secured)
    secured.write("other.pem", "127.0.0.1")
    broker = Resource(ResourceType.BROKER, "1")
    name = "listener.name.door.ssl.keystore.location"

    def alter(change: ConfigChange) -> None:
        assert admin.alter_configs({broker: [change]}) == {broker: None}

    with Cluster(ClientConfig.from_mapping(secured.settings("PLAIN"))) as cluster:
        admin = Admin(cluster)
        admin.list_topics()
        alter(ConfigChange(name, str(secured.directory / "other.pem")))
        wait_until(lambda: shown(secured) != before)
        assert shown(secured, "SIDE") == before, "other listeners keep theirs"
        entries = {entry.name: entry for entry in admin.describe_configs([broker])[broker]}
        assert entries[name].value == str(secured.directory / "other.pem")
        assert entries["listener.name.door.ssl.key.password"].value is None
        alter(ConfigChange(name, "/nonexistent"))
        other = shown(secured)
        assert other != before, "a file that cannot be read changes nothing"
        alter(ConfigChange(name, None, ConfigOp.DELETE))
        wait_until(lambda: shown(secured) == before)
