"""Ottla and Apache Kafka 4.4.0 with the same listeners, users and ACLs.

Zone: real. Five listeners: PLAINTEXT, where everyone is a super user; SASL_PLAINTEXT and SASL_SSL with all mechanisms;
SSL, which requires a certificate; NARROW, SASL without TLS and with SCRAM-SHA-256 alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from ottla.acls import AclBinding, AclEntry, Operation, Permission, ResourcePattern, ResourceType
from ottla.client import Admin, ClientConfig, ClientError, Cluster, NewTopic, Producer, values_of
from ottla.client.admin import AclAdmin, ScramAdmin, ScramMechanism, ScramUpsertion
from ottla.server.embedded import EmbeddedBroker
from testbench.apache_kafka.broker import KafkaNode
from testbench.logins.cases import MECHANISMS, PASSWORD, USER
from testbench.logins.certificates import Certificates
from testbench.ports import HOST, free_port

ADMIN: Final = "admin"
"""A super user, with the password `admin-secret`."""
_SECURED: Final = ("SASL_PLAINTEXT", "SASL_SSL", "SSL", "NARROW")
_MODULES: Final = "org.apache.kafka.common.security"
_AUTHORIZERS: Final = {
    "ottla": "kafka.security.authorizer.AclAuthorizer",
    "kafka": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
}
WAIT_S: Final = 120


class LoginBroker(NamedTuple):
    """A running broker."""

    name: str
    """`ottla` or `kafka`"""
    addresses: Mapping[str, str]
    """host:port by listener"""
    certificates: Certificates


@contextlib.contextmanager
def login_broker(name: str, directory: Path, certificates: Certificates) -> Iterator[LoginBroker]:
    """Run `ottla` or `kafka` with users, topics and ACLs. Raises NodeError, BenchError, Failure."""
    start = {"ottla": _ottla, "kafka": _kafka}[name]
    with start(directory, certificates) as addresses:
        _prepare(addresses["PLAINTEXT"])
        broker = LoginBroker(name, addresses, certificates)
        _await_users(broker)
        yield broker


@contextlib.contextmanager
def _ottla(directory: Path, certificates: Certificates) -> Iterator[Mapping[str, str]]:
    listeners = ",".join(f"{each}://{HOST}:0" for each in ("PLAINTEXT", *_SECURED))
    settings = _settings("ottla", certificates) | {"listeners": listeners}
    with EmbeddedBroker(str(directory / "ottla"), settings) as broker:
        yield {each.listener: f"{each.host}:{each.port}" for each in broker.endpoints}


@contextlib.contextmanager
def _kafka(directory: Path, certificates: Certificates) -> Iterator[Mapping[str, str]]:
    node = KafkaNode(directory / "kafka")
    addresses = {"PLAINTEXT": node.bootstrap, **{each: f"{HOST}:{free_port()}" for each in _SECURED}}
    shown = ",".join(f"{listener}://{address}" for listener, address in addresses.items())
    node.settings = _settings("kafka", certificates) | {
        "listeners": f"{shown},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": shown,
    }
    with node:
        yield addresses


def _settings(name: str, certificates: Certificates) -> dict[str, str]:
    """The keys that both brokers have in common, and the class of the authorizer."""
    made = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,NARROW:SASL_PLAINTEXT,SSL:SSL,"
        "SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": certificates.file("server"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": certificates.authority,
        "listener.name.ssl.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "listener.name.narrow.sasl.enabled.mechanisms": "SCRAM-SHA-256",
        "authorizer.class.name": _AUTHORIZERS[name],
        "super.users": f"User:ANONYMOUS;User:{ADMIN}",
        "delegation.token.secret.key": "a secret of the brokers",
        "group.initial.rebalance.delay.ms": "0",
    }
    for listener in ("sasl_plaintext", "sasl_ssl", "narrow"):
        made |= _logins(f"listener.name.{listener}")
    return made


def _logins(prefix: str) -> dict[str, str]:
    users = "".join(f' user_{each}="{each}-secret"' for each in (USER, ADMIN))
    bearer = f"{prefix}.oauthbearer.sasl"
    scram = {
        f"{prefix}.{each.lower()}.sasl.jaas.config": f"{_MODULES}.scram.ScramLoginModule required;"
        for each in MECHANISMS
        if each.startswith("SCRAM")
    }
    return scram | {
        f"{prefix}.plain.sasl.jaas.config": f"{_MODULES}.plain.PlainLoginModule required{users};",
        f"{bearer}.jaas.config": f"{_MODULES}.oauthbearer.OAuthBearerLoginModule required"
        f' unsecuredLoginStringClaim_sub="{USER}";',
        f"{bearer}.server.callback.handler.class": f"{_MODULES}.oauthbearer.internals.unsecured."
        "OAuthBearerUnsecuredValidatorCallbackHandler",
    }


def _prepare(bootstrap: str) -> None:
    """Users of SCRAM, topics, and what the user may do: use the topic `open`, and groups of the name `own`."""
    entries = (
        (ResourceType.TOPIC, "open", Operation.READ),
        (ResourceType.TOPIC, "open", Operation.WRITE),
        (ResourceType.GROUP, "own", Operation.READ),
    )
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": bootstrap})) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic("open", 1, 1), NewTopic("secret", 1, 1)]))
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            users = [ScramUpsertion(each, mechanism, f"{each}-secret") for each in (USER, ADMIN)]
            values_of(ScramAdmin(cluster).alter_user_scram_credentials(users))
        values_of(AclAdmin(cluster).create_acls([_allow(*each) for each in entries]))
    with Producer({"bootstrap.servers": bootstrap}) as producer:
        producer.send("open", b"first").result(WAIT_S)


def _allow(kind: ResourceType, name: str, operation: Operation) -> AclBinding:
    return AclBinding(ResourcePattern(kind, name), AclEntry(f"User:{USER}", "*", operation, Permission.ALLOW))


def _await_users(broker: LoginBroker) -> None:
    """Apache Kafka applies users and ACLs a moment after it has answered."""
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
        settings = {
            "bootstrap.servers": broker.addresses["SASL_PLAINTEXT"],
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        }
        until(lambda settings=settings: _can_write(settings))


def _can_write(settings: Mapping[str, str]) -> bool:
    try:
        with Producer(dict(settings)) as producer:
            producer.send("open", b"ready").result(WAIT_S)
    except ClientError:
        return False
    return True


def until(check: Callable[[], bool]) -> None:
    """Wait until something is true. Raises AssertionError."""
    end = time.monotonic() + WAIT_S
    while not check():
        assert time.monotonic() < end, "in vain"
        time.sleep(0.05)
