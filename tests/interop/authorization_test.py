"""Clients of others at a broker with ACLs: they manage ACLs, and report a missing permission by their own errors.

Without a login every client is User:ANONYMOUS. So a broker is started twice: first that one is a super user and creates
ACLs, then it is not and has to live with them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from testbench.clients import WAIT_S
from testbench.ottla_node import OttlaNode

from ottla.config.broker_authorizer import AUTHORIZERS

pytestmark = [pytest.mark.interop, pytest.mark.slow]
ANONYMOUS = "User:ANONYMOUS"


def confluent_admin(node: OttlaNode):
    from confluent_kafka.admin import AdminClient

    return AdminClient({"bootstrap.servers": node.bootstrap, "log_level": 3})


def create_acls(node: OttlaNode, *acls: tuple[str, str, str, str]) -> None:
    """Create (resource type, name, pattern type, operation) for everyone, with confluent-kafka."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    bindings = [
        AclBinding(
            ResourceType[kind],
            name,
            ResourcePatternType[pattern],
            ANONYMOUS,
            "*",
            AclOperation[operation],
            AclPermissionType.ALLOW,
        )
        for kind, name, pattern, operation in acls
    ]
    admin = confluent_admin(node)  # its end would end its futures
    for future in admin.create_acls(bindings).values():
        future.result(WAIT_S)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory):
    """A broker on which everyone may use topics that begin with "open", and the group g."""
    from confluent_kafka.admin import NewTopic

    data: Path = tmp_path_factory.mktemp("authorization") / "data"
    authorizer = {"authorizer.class.name": AUTHORIZERS[1]}
    made = OttlaNode(data, {**authorizer, "super.users": ANONYMOUS})
    made.start()
    admin = confluent_admin(made)
    for future in admin.create_topics([NewTopic("open-1", 1, 1), NewTopic("secret", 1, 1)]).values():
        future.result(WAIT_S)
    create_acls(
        made,
        ("TOPIC", "open", "PREFIXED", "ALL"),
        ("GROUP", "g", "LITERAL", "READ"),
        ("BROKER", "kafka-cluster", "LITERAL", "DESCRIBE"),
    )
    made.stop()
    made.settings = authorizer
    made.start()
    yield made
    made.stop()
    assert "Traceback" not in made.said()


def test_confluent_lists_acls(node: OttlaNode) -> None:
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    admin = confluent_admin(node)
    found = admin.describe_acls(everything).result(WAIT_S)
    assert sorted((each.restype.name, each.name) for each in found) == [
        ("BROKER", "kafka-cluster"),
        ("GROUP", "g"),
        ("TOPIC", "open"),
    ]


def test_confluent_reports_what_is_not_allowed(node: OttlaNode) -> None:
    from confluent_kafka import KafkaError, KafkaException, Producer

    failed = []
    producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
    producer.produce("open-1", b"x", on_delivery=lambda error, _: failed.append(error))
    producer.produce("secret", b"x", on_delivery=lambda error, _: failed.append(error))
    assert producer.flush(WAIT_S) == 0
    codes = [None if error is None else error.code() for error in failed]
    assert sorted(codes, key=str) == sorted([None, KafkaError.TOPIC_AUTHORIZATION_FAILED], key=str)
    transactional = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "x", "log_level": 0})
    with pytest.raises(KafkaException) as refused:
        transactional.init_transactions(WAIT_S)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_kafka_python_writes_and_reads_what_is_allowed(node: OttlaNode) -> None:
    from kafka import KafkaConsumer, KafkaProducer, TopicPartition
    from kafka.errors import GroupAuthorizationFailedError, TopicAuthorizationFailedError

    producer = KafkaProducer(bootstrap_servers=node.bootstrap, max_block_ms=10_000)
    producer.send("open-1", b"of kafka-python").get(WAIT_S)
    with pytest.raises(TopicAuthorizationFailedError):
        producer.send("secret", b"x").get(WAIT_S)
    producer.close()
    consumer = KafkaConsumer(
        bootstrap_servers=node.bootstrap, group_id="g", auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    consumer.assign([TopicPartition("open-1", 0)])
    assert any(record.value == b"of kafka-python" for record in consumer)
    consumer.commit()
    consumer.close()
    other = KafkaConsumer("open-1", bootstrap_servers=node.bootstrap, group_id="other")
    with pytest.raises(GroupAuthorizationFailedError):
        other.poll(timeout_ms=int(WAIT_S * 1000))
    other.close(autocommit=False)


def test_denials_are_in_the_brokers_log(node: OttlaNode) -> None:
    from confluent_kafka.admin import NewTopic

    before = node.position
    admin = confluent_admin(node)
    (future,) = admin.create_topics([NewTopic("unwanted", 1, 1)]).values()
    with pytest.raises(Exception, match="uthorization"):
        future.result(WAIT_S)
    said = node.said(before)
    assert 'denied principal="User:ANONYMOUS"' in said
    assert 'operation="Create" resource="Topic" name="unwanted"' in said
