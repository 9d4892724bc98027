"""The nodes of users, client ids and addresses: Kafka's layout.

Zone: pure.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.znodes.entity_nodes import (
    NAME_MAX,
    Entity,
    change_path,
    decode_change_path,
    decode_name,
    encode_name,
    entity_path,
    fault_of_entity_name,
)
from ottla.znodes.tree import check_path


@pytest.mark.parametrize(
    ("name", "node"),
    [
        ("alice", "alice"),
        ("CN=a, O=b/c", "CN%3Da%2C%20O%3Db%2Fc"),
        ("*", "%2A"),
        ("a+b~c", "a%2Bb%7Ec"),
        ("é", "%C3%A9"),
        ("A.b-c_9", "A.b-c_9"),
        ("<default>", "%3Cdefault%3E"),
        (None, "<default>"),
    ],
)
def test_names_are_encoded_as_kafka_does(name: str | None, node: str) -> None:
    assert encode_name(name) == node
    assert decode_name(node) == name


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_every_name_survives_and_is_a_node(name: str) -> None:
    assert decode_name(encode_name(name)) == name
    if not fault_of_entity_name(name):
        check_path(entity_path(Entity(user=name)))


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity(user="a"), "users/a"),
        (Entity(user=None), "users/<default>"),
        (Entity(client_id="c/d"), "clients/c%2Fd"),
        (Entity(user="a", client_id=None), "users/a/clients/<default>"),
        (Entity(user=None, client_id="c"), "users/<default>/clients/c"),
        (Entity(ip="10.0.0.1"), "ips/10.0.0.1"),
        (Entity(ip=None), "ips/<default>"),
    ],
)
def test_paths(entity: Entity, path: str) -> None:
    assert change_path(entity) == path
    assert entity_path(entity) == f"/config/{path}"
    assert decode_change_path(path) == entity


@pytest.mark.parametrize("entity", [Entity(), Entity(user="a", ip="1.2.3.4"), Entity(client_id=None, ip=None)])
def test_combinations_that_kafka_does_not_have(entity: Entity) -> None:
    with pytest.raises(ValueError, match=r"address|empty"):
        entity_path(entity)


@pytest.mark.parametrize("path", ["", "users", "users/", "topics/t", "users/a/b/c", "users/a/clients", "a/b/c/d/e"])
def test_other_notifications(path: str) -> None:
    with pytest.raises(ValueError, match="neither"):
        decode_change_path(path)


def test_names_that_cannot_be_stored() -> None:
    assert all(fault_of_entity_name(name) for name in ("", ".", "..", "x" * (NAME_MAX + 1), "é" * NAME_MAX))
    assert not fault_of_entity_name("x" * 100)
