"""The ACLs per role that docs/security.md lists: they are enough, and without any one of them the work fails.

Zone: real.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ottla.acls import AclBinding, AclEntry, AclFilter, Operation, Permission, ResourcePattern, ResourceType
from ottla.client import (
    Admin,
    ClientConfig,
    ClientError,
    Cluster,
    Consumer,
    NewTopic,
    Producer,
    RefusedError,
    TopicPartition,
)
from ottla.client.admin import AclAdmin
from ottla.config.broker_authorizer import AUTHORIZERS
from ottla.server.embedded import EmbeddedBroker

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
TIMES = {"default.api.timeout.ms": "20000", "delivery.timeout.ms": "20000", "request.timeout.ms": "10000"}


class Secured(NamedTuple):
    broker: EmbeddedBroker

    def settings(self, user: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": user,
            "sasl.password": "secret",
            **TIMES,
        }

    def cluster(self, user: str) -> Cluster:
        return Cluster(ClientConfig.from_mapping(self.settings(user)))

    def set_acls(self, *wanted: str) -> None:
        """Exactly these ACLs for worker: "Write Topic t"."""
        with self.cluster("boss") as cluster:
            acls = AclAdmin(cluster)
            acls.delete_acls([AclFilter()])
            outcomes = acls.create_acls(map(binding, wanted))
        assert set(outcomes.values()) <= {None}


def binding(text: str) -> AclBinding:
    operation, kind, name = text.split()
    entry = AclEntry("User:worker", "*", Operation.from_text(operation), Permission.ALLOW)
    return AclBinding(ResourcePattern(ResourceType.from_text(kind), name), entry)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    users = tmp_path_factory.mktemp("users") / "users"
    users.write_text("boss=secret\nworker=secret\n")
    users.chmod(0o600)
    config = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "ottla.sasl.users.file": str(users),
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:boss",
        "group.initial.rebalance.delay.ms": "0",
        "connection.failed.authentication.delay.ms": "1",
    }
    with EmbeddedBroker(config=config) as broker:
        made = Secured(broker)
        with made.cluster("boss") as cluster:
            Admin(cluster).create_topics([NewTopic("t", 1, 1), NewTopic("from", 1, 1)])
        for topic in ("t", "from"):
            send(made, topic, user="boss")
        with Consumer({**made.settings("boss"), "group.id": "g"}) as consumer:
            consumer.assign([TopicPartition("t", 0)])
            consumer.commit({TopicPartition("t", 0): 0})
        yield made


def send(secured: Secured, topic: str = "t", *, user: str = "worker", **more: Any) -> None:
    with Producer({**secured.settings(user), **more}) as producer:
        producer.send(topic, b"x").result(20)


def send_without_ids(secured: Secured) -> None:
    send(secured, **{"enable.idempotence": False})


def transact(secured: Secured) -> None:
    with Producer({**secured.settings("worker"), "transactional.id": "x"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"x")


def transact_with_positions(secured: Secured) -> None:
    with (
        Consumer({**secured.settings("worker"), "group.id": "g"}) as consumer,
        Producer({**secured.settings("worker"), "transactional.id": "x"}) as producer,
    ):
        producer.init_transactions()
        with producer.transaction():
            producer.send("t", b"x")
            producer.send_offsets_to_transaction({TopicPartition("from", 0): 1}, consumer.group_metadata())


def read(secured: Secured) -> None:
    with Consumer({**secured.settings("worker"), "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        assert consumer.poll(20)


def read_in_a_group(secured: Secured) -> None:
    settings = {"group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": "false"}
    with Consumer({**secured.settings("worker"), **settings}) as consumer:
        consumer.subscribe(["t"])
        for _ in range(200):
            if consumer.poll(0.1):
                break
        consumer.commit()
        assert consumer.assignment()


def test_a_subscription_to_a_denied_topic_raises_until_it_is_allowed(secured: Secured) -> None:
    secured.set_acls("Read Group g")
    settings = {"group.id": "g", "auto.offset.reset": "earliest"}
    with Consumer({**secured.settings("worker"), **settings}) as consumer:
        consumer.subscribe(["t"])
        with pytest.raises(RefusedError, match="TOPIC_AUTHORIZATION_FAILED"):
            poll_for(consumer)
        secured.set_acls("Read Group g", "Read Topic t")
        end = time.monotonic() + 60
        while not consumer.assignment():
            assert time.monotonic() < end
            with contextlib.suppress(RefusedError):
                consumer.poll(0.1)


def poll_for(consumer: Consumer) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        consumer.poll(0.1)


class Role(NamedTuple):
    name: str
    acls: tuple[str, ...]
    work: Callable[[Secured], None]


ROLES = [
    Role("producer", ("Write Topic t",), send_without_ids),
    Role("idempotent producer", ("Write Topic t",), send),
    Role("transactional producer", ("Write Topic t", "Write TransactionalId x"), transact),
    Role(
        "transactional producer",
        ("Write Topic t", "Write TransactionalId x", "Read Group g", "Read Topic from"),
        transact_with_positions,
    ),
    Role("consumer without a group", ("Read Topic t",), read),
    Role("consumer in a group", ("Read Topic t", "Read Group g"), read_in_a_group),
]


@pytest.mark.slow
@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.work.__name__)
def test_a_role_needs_exactly_its_acls(secured: Secured, role: Role) -> None:
    secured.set_acls(*role.acls)
    role.work(secured)
    for missing in role.acls:
        secured.set_acls(*(each for each in role.acls if each != missing))
        with pytest.raises((ClientError, AssertionError)):
            role.work(secured)


def test_the_page_has_the_roles() -> None:
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| [^|]*\|$", PAGE.read_text(), re.MULTILINE)
    acls = {name.partition(" (")[0]: text for name, text in rows}
    for role in ROLES:
        for each in role.acls:
            operation = each.split()[0]
            assert operation in acls[role.name] or "the same" in acls[role.name], role.name
