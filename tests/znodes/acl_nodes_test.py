"""The nodes of ACLs: what Apache Kafka 3.9 writes is read, what it reads is written.

Zone: pure.
"""

from __future__ import annotations

import json
import random

import pytest
from tests.security.authorization.acl_model import random_acls

from ottla.acls import AclEntry, Operation, PatternType, Permission, ResourcePattern, ResourceType
from ottla.znodes.acl_nodes import (
    ACL_CHANGES,
    ACL_TYPE_PATHS,
    PERSISTENT_ACL_PATHS,
    acl_path,
    change_of,
    decode_acls,
    decode_change,
    encode_acls,
    fault_of_node_name,
)
from ottla.znodes.tree import split_path

TOPIC = ResourcePattern(ResourceType.TOPIC, "orders")
PREFIX = ResourcePattern(ResourceType.TRANSACTIONAL_ID, "pay-", PatternType.PREFIXED)
ALLOW = AclEntry("User:alice", "*", Operation.DESCRIBE_CONFIGS, Permission.ALLOW)
DENY = AclEntry("User:CN=x,O=é", "host1", Operation.ALL, Permission.DENY)


def test_paths() -> None:
    assert acl_path(TOPIC) == "/kafka-acl/Topic/orders"
    assert acl_path(PREFIX) == "/kafka-acl-extended/prefixed/TransactionalId/pay-"
    assert {"/kafka-acl/DelegationToken", "/kafka-acl-extended/prefixed/User"} < set(PERSISTENT_ACL_PATHS)
    assert len(ACL_TYPE_PATHS) == 12
    assert len(set(PERSISTENT_ACL_PATHS)) == len(PERSISTENT_ACL_PATHS)
    for number, path in enumerate(PERSISTENT_ACL_PATHS):
        parent = path.rpartition("/")[0]
        assert parent in ("", *PERSISTENT_ACL_PATHS[:number]), f"{path} is created before its parent"


def test_what_kafka_writes_is_read() -> None:
    node = (
        b'{"version":1,"acls":[{"host":"*","permissionType":"Allow","operation":"DescribeConfigs",'
        b'"principal":"User:alice"},{"principal":"User:CN=x,O=\xc3\xa9","permissionType":"Deny","operation":"All",'
        b'"host":"host1"}]}'
    )
    assert decode_acls("/x", node) == {ALLOW, DENY}
    assert decode_acls("/x", b"") == frozenset()


def test_what_is_written_is_kafkas_json() -> None:
    assert encode_acls([ALLOW]) == (
        b'{"acls":[{"principal":"User:alice","permissionType":"Allow","host":"*","operation":"DescribeConfigs"}],'
        b'"version":1}'
    )
    assert encode_acls([DENY, ALLOW]) == encode_acls([ALLOW, DENY])


def test_every_acl_survives_its_node() -> None:
    for seed in range(50):
        entries = {acl.entry for acl in random_acls(random.Random(seed), 30)}
        assert decode_acls("/x", encode_acls(entries)) == entries


@pytest.mark.parametrize(
    "node",
    [
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"version":2,"acls":[]}',
        b'{"version":1}',
        b'{"version":1,"acls":{}}',
        b'{"version":1,"acls":[1]}',
        b'{"version":1,"acls":[{}]}',
        b"\xff\xfe\xfd",
        b"[" * 100_000,
        *(
            json.dumps({"version": 1, "acls": [{**vars_, key: value}]}).encode()
            for vars_ in [{"principal": "User:a", "host": "*", "operation": "Read", "permissionType": "Allow"}]
            for key, value in [
                ("principal", "a"),
                ("principal", 1),
                ("host", ""),
                ("operation", "Fly"),
                ("operation", "Any"),
                ("permissionType", "Perhaps"),
                ("permissionType", "Any"),
            ]
        ),
    ],
    ids=range(18),
)
def test_a_broken_node_gives_no_acls_at_all(node: bytes) -> None:
    with pytest.raises(ValueError, match=r"^/x"):
        decode_acls("/x", node)


def test_notifications() -> None:
    literal, prefixed = change_of(TOPIC), change_of(PREFIX)
    assert literal == ("/kafka-acl-changes/acl_changes_", b"TOPIC:orders")
    assert prefixed == (
        "/kafka-acl-extended-changes/acl_changes_",
        b'{"version":1,"resourceType":"TRANSACTIONAL_ID","name":"pay-","patternType":"PREFIXED"}',
    )
    assert decode_change(literal.path_prefix + "0000000001", literal.data) == TOPIC
    assert decode_change(prefixed.path_prefix + "0000000002", prefixed.data) == PREFIX
    assert decode_change(f"{ACL_CHANGES[0]}/acl_changes_3", b"Topic:a:b") == TOPIC._replace(name="a:b")


@pytest.mark.parametrize(
    ("parent", "data"),
    [
        (0, b""),
        (0, b"TOPIC"),
        (0, b"TOPIC:"),
        (0, b"TABLE:x"),
        (0, b"\xff:x"),
        (1, b"TOPIC:x"),
        (1, b"{}"),
        (1, b'{"version":1,"resourceType":"TOPIC","name":"x","patternType":"MATCH"}'),
        (1, b'{"version":2,"resourceType":"TOPIC","name":"x","patternType":"PREFIXED"}'),
        (1, b'{"version":1,"resourceType":"TOPIC","name":7,"patternType":"PREFIXED"}'),
    ],
)
def test_a_broken_notification_is_refused(parent: int, data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^/kafka-acl"):
        decode_change(f"{ACL_CHANGES[parent]}/acl_changes_1", data)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "/", "\0", "a\x1f", "\x85", "\ud800", "\ue000", "\ufffe", "\U0001f600", "x" * 32_767]
)
def test_names_that_are_no_nodes_are_refused(name: str) -> None:
    assert fault_of_node_name(TOPIC._replace(name=name))


@pytest.mark.parametrize("name", ["a", "*", "a b", "…", "x" * 1_000, "a.b", "%2F", ":"])
def test_other_names_are_nodes_of_the_embedded_store(name: str) -> None:
    assert fault_of_node_name(PREFIX._replace(name=name)) == ""
    assert split_path(acl_path(PREFIX._replace(name=name)))[1] == name
