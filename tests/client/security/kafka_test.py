"""Every kind of security with Apache Kafka: records are written and read, and errors are named.

Zone: real.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.client.security.conftest import MODULES, SESSION_MS, UNSECURED, Certificates, Secured

from ottla.client import (
    Admin,
    AuthenticationError,
    ClientConfig,
    ClientError,
    Cluster,
    Consumer,
    NewTopic,
    Producer,
    values_of,
)

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PLAIN = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": 'alice, her "secret"'}
JAAS = f'{MODULES}.scram.ScramLoginModule required username="bob" password="bob-secret";'
WAYS: dict[str, tuple[str, dict[str, str]]] = {
    "tls": ("SSL", {}),
    "plain": ("SASL_PLAINTEXT", PLAIN),
    "plain over tls": ("SASL_SSL", PLAIN),
    "scram 256": ("SASL_PLAINTEXT", {"sasl_mechanism": "SCRAM-SHA-256", "sasl_jaas_config": JAAS}),
    "scram 512 over tls": ("SASL_SSL", {"sasl_mechanism": "SCRAM-SHA-512", "sasl_jaas_config": JAAS}),
    "unsecured tokens": ("SASL_SSL", {"sasl_mechanism": "OAUTHBEARER", "sasl_jaas_config": UNSECURED}),
}


def there_and_back(settings: dict[str, Any], topic: str, count: int) -> None:
    """Records of a producer come back to a consumer, all of them, in order."""
    values = [b"%d " % number + b"x" * 2_000 for number in range(count)]
    with Cluster(ClientConfig.from_mapping(settings)) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic(topic, 1)]))
    with Producer({**settings, "linger.ms": 20}) as producer:
        sent = [producer.send(topic, value) for value in values]
        assert [each.result(180).offset for each in sent] == list(range(count))
    with Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        got: list[bytes | None] = []
        until = time.monotonic() + 180
        while len(got) < count and time.monotonic() < until:
            got += [record.value for record in consumer.poll(1)]
    assert got == values


@pytest.mark.parametrize("way", WAYS)
def test_records_go_and_come(secured: Secured, way: str) -> None:
    listener, more = WAYS[way]
    there_and_back(secured.settings(listener, **more), way.replace(" ", "-"), 500)


@pytest.mark.parametrize("inline", [False, True])
def test_the_client_certificate_is_sent_when_it_is_requested(
    secured: Secured, certificates: Certificates, inline: bool
) -> None:
    settings = secured.settings("MUTUAL")
    with (
        Cluster(ClientConfig.from_mapping(settings)) as cluster,
        pytest.raises(ClientError, match=r"(?i)certificate"),
    ):
        Admin(cluster).list_topics()
    text = Path(certificates.client).read_text(encoding="ascii")
    at = text.index("-----BEGIN CERTIFICATE")
    own = (
        {"ssl.keystore.key": text[:at], "ssl.keystore.certificate.chain": text[at:]}
        if inline
        else {"ssl.keystore.location": certificates.client}
    )
    there_and_back({**settings, **own}, f"mutual-{inline}".lower(), 20)


def test_expired_sessions_are_replaced(secured: Secured) -> None:
    settings = secured.settings("SASL_SSL", **PLAIN)
    with Cluster(ClientConfig.from_mapping(settings)) as cluster, Producer(settings) as producer:
        values_of(Admin(cluster).create_topics([NewTopic("sessions", 1)]))
        until = time.monotonic() + 2.5 * SESSION_MS / 1000
        sent = []
        while time.monotonic() < until:
            sent.append(producer.send("sessions", b"%d" % len(sent)))
            listed = Admin(cluster).list_topics()
            time.sleep(0.01)
        assert any(view.name == "sessions" for view in listed)
        assert [each.result(180).offset for each in sent] == list(range(len(sent)))


WRONG: dict[str, tuple[str, dict[str, str], str]] = {
    "password": ("SASL_PLAINTEXT", {**PLAIN, "sasl_password": "guess"}, "Check user name and password"),
    "scram password": (
        "SASL_SSL",
        {"sasl_mechanism": "SCRAM-SHA-256", "sasl_username": "bob", "sasl_password": "guess"},
        "Check user name and password",
    ),
    "nobody": (
        "SASL_SSL",
        {"sasl_mechanism": "SCRAM-SHA-512", "sasl_username": "eve", "sasl_password": "guess"},
        "Check user name and password",
    ),
    "no sasl there": ("SSL", {**PLAIN, "security_protocol": "SASL_SSL"}, "listener with SASL"),
}


@pytest.mark.parametrize("what", WRONG)
def test_login_errors_are_raised_at_once(secured: Secured, what: str) -> None:
    listener, more, text = WRONG[what]
    settings = secured.settings(listener, **more)
    began = time.monotonic()
    with Cluster(ClientConfig.from_mapping(settings)) as cluster, pytest.raises(ClientError, match=text):
        Admin(cluster).list_topics()
    with Producer(settings) as producer, pytest.raises(ClientError, match=text):
        producer.send("any", b"v").result(180)
    with Consumer({**settings, "group.id": "g"}) as consumer:
        consumer.subscribe(["any"])
        with pytest.raises(ClientError, match=text):
            consumer.poll(180)
    assert time.monotonic() - began < 60, "nobody waits for max.block.ms"


def test_a_port_without_tls_is_named(secured: Secured) -> None:
    settings = secured.settings("PLAINTEXT", security_protocol="SSL")
    with Cluster(ClientConfig.from_mapping(settings)) as cluster, pytest.raises(ClientError, match="a TLS port"):
        Admin(cluster).list_topics()


def test_a_token_that_is_refused_is_named(secured: Secured) -> None:
    settings: dict[str, Any] = {
        **secured.settings("SASL_SSL", sasl_mechanism="OAUTHBEARER"),
        "sasl.login.callback.handler.class": lambda: "not.a.token",
    }
    with Cluster(ClientConfig.from_mapping(settings)) as cluster, pytest.raises(AuthenticationError, match="token"):
        Admin(cluster).list_topics()
