"""Logins of clients by every mechanism: records are written and read, wrong passwords refused, no secret is in a log.

Zone: real.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from tests.security.sasl.oauthbearer_test import unsecured

from ottla.client import Admin, AuthenticationError, ClientConfig, Cluster, Consumer, NewTopic, Producer, values_of
from ottla.security.sasl.scram_credentials import ScramMechanism, credential_from_password, encode_credential
from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MODULES = "org.apache.kafka.common.security"
SECRET, GUESS = "Correct-Horse-42", "Wrong-Horse-43"
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TEXTS = {
    "PLAIN": "Authentication failed: Invalid username or password",
    "SCRAM-SHA-256": "Authentication failed during authentication due to invalid credentials with SASL mechanism"
    " SCRAM-SHA-256",
    "SCRAM-SHA-512": "Authentication failed during authentication due to invalid credentials with SASL mechanism"
    " SCRAM-SHA-512",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    credentials = ",".join(
        f"{each.title}=[{encode_credential(credential_from_password(each, b'salt', SECRET))}]"
        for each in ScramMechanism
    )
    users = tmp_path_factory.mktemp("users") / "users.properties"
    users.write_text(f"kept={credentials}\n")
    users.chmod(0o600)
    prefix = "listener.name.sasl_plaintext"
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": ",".join((*MECHANISMS, "OAUTHBEARER")),
        "ottla.sasl.users.file": str(users),
        f"{prefix}.plain.sasl.jaas.config": f'{MODULES}.plain.PlainLoginModule required user_kept="{SECRET}";',
        f"{prefix}.oauthbearer.sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required;",
        f"{prefix}.oauthbearer.sasl.server.callback.handler.class": f"{MODULES}.oauthbearer.internals.unsecured."
        "OAuthBearerUnsecuredValidatorCallbackHandler",
        "connection.failed.authentication.delay.ms": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    with EmbeddedBroker(config=config) as running:
        yield running


@pytest.fixture(autouse=True)
def no_secret_in_logs(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.DEBUG, logger="ottla"):
        yield
    assert not {word for word in (SECRET, GUESS) if word in caplog.text}


def token_of(user: str) -> str:
    now = time.time()
    return unsecured({"sub": user, "iat": int(now), "exp": int(now + 600)})


# -- Ottla's own -------------------------------------------------------------------------------------------------------


def own_settings(broker: EmbeddedBroker, mechanism: str, password: str = SECRET) -> dict[str, Any]:
    more: dict[str, Any] = {"sasl.username": "kept", "sasl.password": password}
    if mechanism == "OAUTHBEARER":
        more = {
            "sasl.jaas.config": f"{MODULES}.oauthbearer.OAuthBearerLoginModule required"
            ' unsecuredLoginStringClaim_sub="kept";'
        }
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **more,
    }


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_ottlas_client(broker: EmbeddedBroker, mechanism: str) -> None:
    settings, topic = own_settings(broker, mechanism), f"own-{mechanism}"
    with Cluster(ClientConfig.from_mapping(settings)) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic(topic, 1)]))
    with Producer(settings) as producer:
        assert producer.send(topic, b"value").result(30).offset == 0
    with Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe([topic])
        assert read_first(lambda: [each.value for each in consumer.poll(1)]) == b"value"


def read_first(poll: Callable[[], list[Any]]) -> Any:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = poll()
        if found:
            return found[0]
    raise AssertionError("no record in a minute")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_ottlas_client_with_a_wrong_password(broker: EmbeddedBroker, mechanism: str) -> None:
    config = ClientConfig.from_mapping(own_settings(broker, mechanism, GUESS))
    with Cluster(config) as cluster, pytest.raises(AuthenticationError, match=TEXTS[mechanism]):
        Admin(cluster).list_topics()


# -- librdkafka --------------------------------------------------------------------------------------------------------


def librdkafka_settings(broker: EmbeddedBroker, mechanism: str, password: str = SECRET) -> dict[str, Any]:
    login: dict[str, Any] = {"sasl.username": "kept", "sasl.password": password}
    if mechanism == "OAUTHBEARER":
        login = {"oauth_cb": lambda _: (token_of("kept"), time.time() + 600)}
    return {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        **login,
    }


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_librdkafka(broker: EmbeddedBroker, mechanism: str) -> None:
    settings, topic = librdkafka_settings(broker, mechanism), f"librdkafka-{mechanism}"
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, b"value")
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    message = read_first(lambda: consumer.consume(1, 1))
    assert message.value() == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_with_a_wrong_password(broker: EmbeddedBroker, mechanism: str) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    producer = confluent_kafka.Producer(
        {**librdkafka_settings(broker, mechanism, GUESS), "error_cb": errors.append, "logger": logging.getLogger("rd")}
    )
    until = time.monotonic() + 60
    while not errors and time.monotonic() < until:
        producer.poll(0.1)
    assert errors[0].code() == confluent_kafka.KafkaError._AUTHENTICATION
    assert TEXTS[mechanism] in errors[0].str()


# -- kafka-python ------------------------------------------------------------------------------------------------------


def token_source() -> object:
    """A source of tokens, as kafka-python calls it."""
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Token(AbstractTokenProvider):
        def token(self) -> str:
            return token_of("kept")

    return Token()


def kafka_python_settings(broker: EmbeddedBroker, mechanism: str, password: str = SECRET) -> dict[str, Any]:
    login: dict[str, Any] = {"sasl_plain_username": "kept", "sasl_plain_password": password}
    if mechanism == "OAUTHBEARER":
        login = {"sasl_oauth_token_provider": token_source()}
    return {
        "bootstrap_servers": broker.bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        **login,
    }


@pytest.mark.parametrize("mechanism", [*MECHANISMS, "OAUTHBEARER"])
def test_kafka_python(broker: EmbeddedBroker, mechanism: str, tmp_path: Path) -> None:
    import kafka

    settings, topic = kafka_python_settings(broker, mechanism), f"kafka-python-{mechanism}"
    producer = kafka.KafkaProducer(**settings)
    assert producer.send(topic, b"value").get(60).offset == 0
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
    found = read_first(lambda: [record for some in consumer.poll(1000).values() for record in some])
    assert found.value == b"value"
    consumer.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_with_a_wrong_password(broker: EmbeddedBroker, mechanism: str) -> None:
    import kafka
    from kafka.errors import KafkaError

    with pytest.raises(KafkaError):
        kafka.KafkaAdminClient(**kafka_python_settings(broker, mechanism, GUESS), bootstrap_timeout_ms=3000)
    gc.collect()  # the client leaves its sockets open: their warnings belong to this test
