"""ACLs in a real ZooKeeper: Ottla's nodes are those of Apache Kafka 3.9.1, and each obeys what the other has written.

Zone: real. Kafka's tool writes to ZooKeeper itself, with the authorizer of its brokers; two brokers of Ottla notice it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kazoo.client import KazooClient
from testbench.apache_kafka import tools
from testbench.logins.brokers import WAIT_S, until
from testbench.zookeeper import ZooKeeper

from ottla.acls import (
    AclBinding,
    AclEntry,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourcePattern,
    ResourceType,
)
from ottla.client import Admin, ClientConfig, Cluster, NewTopic, Producer, RefusedError, values_of
from ottla.client.admin import AclAdmin
from ottla.errors import ErrorCode
from ottla.server.embedded import EmbeddedBroker

pytestmark = [pytest.mark.interop, pytest.mark.kafka, pytest.mark.slow]

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SETTINGS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
    "inter.broker.listener.name": "PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} user_alice="alice-secret";',
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "super.users": "User:ANONYMOUS",
}
CHANGES = ("/kafka-acl-changes", "/kafka-acl-extended-changes")


class Guarded(NamedTuple):
    """Two brokers on ZooKeeper."""

    connect: str
    operator: str
    users: str
    hands: KazooClient

    def tool(self, *words: str) -> str:
        """What kafka-acls of 3.9.1 prints; it speaks with ZooKeeper alone."""
        done = tools.run("3.9.1", "kafka-acls", "--authorizer-properties", f"zookeeper.connect={self.connect}", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def node(self, path: str) -> Any:
        """The content of a node."""
        return json.loads(self.hands.get(path)[0])

    def codes(self, topic: str) -> list[ErrorCode | None]:
        """What alice gets from each of the two leaders of a topic for a record; None: it is written."""
        login = {
            "bootstrap.servers": self.users,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "alice-secret",
            "enable.idempotence": False,
        }
        found: list[ErrorCode | None] = []
        for partition in (0, 1):
            with Producer(login) as producer:
                try:
                    producer.send(topic, b"v", partition=partition).result(WAIT_S)
                    found.append(None)
                except RefusedError as error:
                    found.append(error.code)
        return found


@pytest.fixture(scope="module")
def guarded(zookeeper: ZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    connect = zookeeper.chroot("/guarded")
    places = [tmp_path_factory.mktemp(f"broker-{number}") for number in (1, 2)]
    hands = KazooClient(connect)
    hands.start(WAIT_S)
    with broker(1, connect, places[0]) as first, broker(2, connect, places[1]) as second:
        found = [{each.listener: f"{each.host}:{each.port}" for each in one.endpoints} for one in (first, second)]
        operator, users = (",".join(each[listener] for each in found) for listener in ("PLAINTEXT", "SASL_PLAINTEXT"))
        yield Guarded(connect, operator, users, hands)
    hands.stop()
    hands.close()


def broker(number: int, connect: str, data: Path) -> EmbeddedBroker:
    return EmbeddedBroker(str(data), {**SETTINGS, "broker.id": str(number), "zookeeper.connect": connect})


@pytest.fixture
def admin(guarded: Guarded) -> Iterator[AclAdmin]:
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": guarded.operator})) as cluster:
        yield AclAdmin(cluster)


def create_topic(guarded: Guarded, name: str) -> None:
    """A topic with a partition on each broker."""
    with Cluster(ClientConfig.from_mapping({"bootstrap.servers": guarded.operator})) as cluster:
        values_of(Admin(cluster).create_topics([NewTopic(name, assignment={0: [1], 1: [2]})]))


def binding(resource: ResourcePattern, operation: Operation, permission: Permission = Permission.ALLOW) -> AclBinding:
    return AclBinding(resource, AclEntry("User:alice", "*", operation, permission))


def notifications(guarded: Guarded, parent: str) -> list[bytes]:
    """The contents of all notifications of changes, oldest first."""
    return [guarded.hands.get(f"{parent}/{name}")[0] for name in sorted(guarded.hands.get_children(parent))]


def test_ottlas_nodes_are_those_of_kafkas_own_authorizer(guarded: Guarded, admin: AclAdmin) -> None:
    literal = ResourcePattern(ResourceType.TOPIC, "of-ottla")
    prefixed = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "of-ottla-", PatternType.PREFIXED)
    values_of(admin.create_acls([binding(literal, Operation.READ), binding(prefixed, Operation.WRITE)]))
    # The same ACLs by Kafka's tool, with other names.
    alice = ("--add", "--allow-principal", "User:alice")
    guarded.tool(*alice, "--operation", "Read", "--topic", "of-kafka")
    pattern = ("--transactional-id", "of-kafka-", "--resource-pattern-type", "prefixed")
    guarded.tool(*alice, "--operation", "Write", *pattern)
    entry = {"principal": "User:alice", "permissionType": "Allow", "operation": "Read", "host": "*"}
    assert guarded.node("/kafka-acl/Topic/of-ottla") == {"version": 1, "acls": [entry]}
    assert guarded.node("/kafka-acl-extended/prefixed/TransactionalId/of-ottla-")["acls"] == [
        {**entry, "operation": "Write"}
    ]
    for path in ("/kafka-acl/Topic/{}", "/kafka-acl-extended/prefixed/TransactionalId/{}-"):
        mine, theirs = (guarded.hands.get(path.format(name))[0] for name in ("of-ottla", "of-kafka"))
        assert mine == theirs
    for parent in CHANGES:
        mine_too, theirs_too = notifications(guarded, parent)[-2:]
        assert mine_too.replace(b"of-ottla", b"of-kafka") == theirs_too
        assert guarded.hands.get_children(parent)[0].startswith("acl_changes_")
    # Nothing that either of them creates is missing at the other.
    roots = {name for name in guarded.hands.get_children("/") if name.startswith("kafka-acl")}
    assert roots == {"kafka-acl", "kafka-acl-extended", "kafka-acl-changes", "kafka-acl-extended-changes"}
    listed = guarded.tool("--list")
    assert "name=of-ottla, patternType=LITERAL" in listed
    assert "name=of-ottla-, patternType=PREFIXED" in listed
    removed = admin.delete_acls([AclFilter()])
    assert removed
    assert "of-ottla" not in guarded.tool("--list")


def test_brokers_obey_what_kafkas_tool_writes(guarded: Guarded) -> None:
    refused = [ErrorCode.TOPIC_AUTHORIZATION_FAILED] * 2
    create_topic(guarded, "obeyed-1")
    assert guarded.codes("obeyed-1") == refused
    alice = ("--allow-principal", "User:alice", "--operation", "Write")
    guarded.tool("--add", *alice, "--topic", "obeyed-1")
    until(lambda: guarded.codes("obeyed-1") == [None, None])
    denied = ("--deny-principal", "User:alice", "--operation", "Write", "--topic", "obeyed-", "--resource-pattern-type")
    guarded.tool("--add", *denied, "prefixed")
    until(lambda: guarded.codes("obeyed-1") == refused)
    guarded.tool("--remove", "--force", *denied, "prefixed")
    until(lambda: guarded.codes("obeyed-1") == [None, None])
    guarded.tool("--remove", "--force", *alice, "--topic", "obeyed-1")
    until(lambda: guarded.codes("obeyed-1") == refused)
