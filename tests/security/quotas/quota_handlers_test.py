"""DescribeClientQuotas and AlterClientQuotas of a whole broker, with Kafka's filters and errors.

Zone: real.
"""

from __future__ import annotations

import math

import pytest
from tests.handnode import Node

from ottla.errors import ErrorCode
from ottla.security.quotas import quota_handlers
from ottla.wire.messages import AlterClientQuotasRequest, DescribeClientQuotasRequest

ENTITIES = [
    {"user": "ann", "client-id": "app"},
    {"user": "ann", "client-id": None},
    {"user": "ann"},
    {"user": None, "client-id": "app"},
    {"user": None, "client-id": None},
    {"user": None},
    {"client-id": "app"},
    {"client-id": None},
    {"user": "bob"},
    {"ip": "10.0.0.1"},
    {"ip": None},
]


@pytest.fixture
def node() -> Node:
    return Node()


def entry(entity: dict, ops: dict) -> AlterClientQuotasRequest.EntryData:
    return AlterClientQuotasRequest.EntryData(
        entity=[
            AlterClientQuotasRequest.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()
        ],
        ops=[
            AlterClientQuotasRequest.OpData(key=key, value=value or 0.0, remove=value is None)
            for key, value in ops.items()
        ],
    )


def alter(node, *entries, validate_only=False):
    request = AlterClientQuotasRequest(entries=[entry(*each) for each in entries], validate_only=validate_only)
    return [(each.error_code, each.error_message) for each in node.ask(request, 1).entries]


def describe(node, *components, strict=False):
    """Components as (type, match type, match). Returns {frozenset of the entity: {quota: value}}."""
    data = DescribeClientQuotasRequest.ComponentData
    parts = [data(entity_type=kind, match_type=how, match=name) for kind, how, name in components]
    response = node.ask(DescribeClientQuotasRequest(components=parts, strict=strict), 1)
    if response.error_code:
        assert response.entries is None
        return ErrorCode(response.error_code)
    return {
        frozenset((part.entity_type, part.entity_name) for part in each.entity): {
            value.key: value.value for value in each.values
        }
        for each in response.entries
    }


def key(entity: dict) -> frozenset:
    return frozenset(entity.items())


def fill(node) -> None:
    for number, entity in enumerate(ENTITIES):
        name = "connection_creation_rate" if "ip" in entity else "producer_byte_rate"
        assert alter(node, (entity, {name: number + 1.0})) == [(0, None)]


def test_quotas_are_stored_as_kafka_stores_them(node):
    entity = {"user": "a/b ~*ä", "client-id": None}
    assert alter(node, (entity, {"request_percentage": 12.5, "consumer_byte_rate": 1e10})) == [(0, None)]
    box = []
    path = "/config/users/a%2Fb%20%7E%2A%C3%A4/clients/<default>"
    node.process.post_turn(0, "by hand", node.broker._metadata.stores.watched.get_node, path, False, box.append)
    node.pass_ms(100)
    (stored,) = box
    assert stored.data == b'{"version":1,"config":{"request_percentage":"12.5","consumer_byte_rate":"10000000000"}}'
    assert describe(node) == {key(entity): {"request_percentage": 12.5, "consumer_byte_rate": 1e10}}


def test_all_quotas_survive_a_restart(node):
    fill(node)
    before = describe(node)
    assert before.keys() == {key(entity) for entity in ENTITIES}
    node.restart()
    assert describe(node) == before


@pytest.mark.parametrize(
    ("components", "strict", "wanted"),
    [
        ([], True, []),
        ([("user", 0, "ann")], False, [0, 1, 2]),
        ([("user", 0, "ann")], True, [2]),
        ([("user", 1, None)], False, [3, 4, 5]),
        ([("user", 1, None)], True, [5]),
        ([("user", 2, None)], False, [0, 1, 2, 3, 4, 5, 8]),
        ([("user", 2, None)], True, [2, 5, 8]),
        ([("client-id", 0, "app")], False, [0, 3, 6]),
        ([("client-id", 0, "app")], True, [6]),
        ([("client-id", 1, None)], True, [7]),
        ([("client-id", 2, None)], True, [6, 7]),
        ([("user", 0, "ann"), ("client-id", 0, "app")], True, [0]),
        ([("user", 2, None), ("client-id", 1, None)], True, [1, 4]),
        ([("user", 0, "cyd")], False, []),
        ([("ip", 0, "10.0.0.1")], True, [9]),
        ([("ip", 1, None)], False, [10]),
        ([("ip", 2, None)], False, [9, 10]),
    ],
)
def test_filters(node, components, strict, wanted):
    fill(node)
    assert describe(node, *components, strict=strict).keys() == {key(ENTITIES[number]) for number in wanted}


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("", 0, "a")], ErrorCode.INVALID_REQUEST),
        ([("planet", 0, "a")], ErrorCode.UNSUPPORTED_VERSION),
        ([("user", 0, "a"), ("user", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 0, "a"), ("ip", 1, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 3, None)], ErrorCode.INVALID_REQUEST),
        ([("user", -1, None)], ErrorCode.INVALID_REQUEST),
        ([("user", 0, None)], ErrorCode.INVALID_REQUEST),
    ],
)
def test_filters_that_are_refused(node, components, code):
    assert describe(node, *components) is code


def test_quotas_are_changed_and_removed(node):
    ann = {"user": "ann"}
    alter(node, (ann, {"producer_byte_rate": 1.0, "consumer_byte_rate": 2.0}))
    alter(node, (ann, {"producer_byte_rate": None, "consumer_byte_rate": 3.0, "controller_mutation_rate": 0.5}))
    assert describe(node) == {key(ann): {"consumer_byte_rate": 3.0, "controller_mutation_rate": 0.5}}
    alter(node, (ann, {"consumer_byte_rate": None, "controller_mutation_rate": None}))
    assert describe(node) == {}
    assert alter(node, (ann, {"consumer_byte_rate": None})) == [(0, None)]


def test_validate_only_changes_nothing(node):
    outcomes = alter(
        node, ({"user": "a"}, {"producer_byte_rate": 1.0}), ({"user": "a"}, {"moon_rate": 1.0}), validate_only=True
    )
    assert [code for code, _ in outcomes] == [0, ErrorCode.INVALID_REQUEST]
    assert describe(node) == {}


@pytest.mark.parametrize(
    ("entity", "ops"),
    [
        ({}, {"producer_byte_rate": 1.0}),
        ({"planet": "io"}, {"producer_byte_rate": 1.0}),
        ({"user": ""}, {"producer_byte_rate": 1.0}),
        ({"user": ".."}, {"producer_byte_rate": 1.0}),
        ({"user": "u" * 2000}, {"producer_byte_rate": 1.0}),
        ({"user": "a", "ip": "10.0.0.1"}, {"connection_creation_rate": 1.0}),
        ({"ip": "no such host"}, {"connection_creation_rate": 1.0}),
        ({"ip": "10.0.0.1"}, {"producer_byte_rate": 1.0}),
        ({"user": "a"}, {"connection_creation_rate": 1.0}),
        ({"user": "a"}, {"SCRAM-SHA-256": None}),
        ({"user": "a"}, {"producer_byte_rate": 0.0}),
        ({"user": "a"}, {"producer_byte_rate": -1.0}),
        ({"user": "a"}, {"producer_byte_rate": 1.5}),
        ({"user": "a"}, {"producer_byte_rate": 1e30}),
        ({"user": "a"}, {"producer_byte_rate": math.nan}),
        ({"user": "a"}, {"producer_byte_rate": math.inf}),
        ({"user": "a"}, {"request_percentage": math.nan}),
        ({"user": "a"}, {"request_percentage": -0.5}),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 2.0**31}),
    ],
)
def test_changes_that_are_refused(node, entity, ops):
    ((code, text),) = alter(node, (entity, ops))
    assert code == ErrorCode.INVALID_REQUEST
    assert text
    assert describe(node) == {}


def test_one_refused_entry_does_not_stop_the_others(node):
    good = {"client-id": "c"}
    outcomes = alter(node, ({"user": ""}, {"producer_byte_rate": 1.0}), (good, {"producer_byte_rate": 1.0}))
    assert [code for code, _ in outcomes] == [ErrorCode.INVALID_REQUEST, 0]
    assert describe(node).keys() == {key(good)}


def test_credentials_of_a_user_are_neither_shown_nor_lost(node):
    alter(node, ({"user": "ann"}, {"producer_byte_rate": 1.0}))
    writer = node.broker._metadata.alterations

    def give_credential() -> None:
        writer.alter_entity("users/ann", lambda present: {**present, "SCRAM-SHA-256": "salt=x"}, outcomes.append)
        node.broker.end_turn()

    outcomes: list[object] = []
    node.process.post_turn(0, "by hand", give_credential)
    node.pass_ms(100)
    assert outcomes == [None]
    alter(node, ({"user": "ann"}, {"producer_byte_rate": None, "consumer_byte_rate": 5.0}))
    assert describe(node) == {key({"user": "ann"}): {"consumer_byte_rate": 5.0}}


def test_many_entities_are_described_in_pieces(node, monkeypatch):
    monkeypatch.setattr(quota_handlers, "PIECE", 4)
    fill(node)
    assert describe(node).keys() == {key(entity) for entity in ENTITIES}
    assert describe(node, ("user", 0, "cyd")) == {}


def test_stored_quotas_that_cannot_be_used_are_ignored_with_a_line(node, caplog):
    writer = node.broker._metadata.alterations
    for value in ("x", "0", "-1", "NaN", "inf"):
        config = {"producer_byte_rate": value, "consumer_byte_rate": "7"}
        node.process.post_turn(
            0, "by hand", writer.alter_entity, "clients/c", lambda _, config=config: config, lambda _: None
        )
        node.pass_ms(100)
        assert describe(node) == {key({"client-id": "c"}): {"consumer_byte_rate": 7.0}}
        assert "clients/c: ignoring producer_byte_rate" in caplog.text
        caplog.clear()
    node.process.post_turn(
        0, "by hand", writer.alter_entity, "ips/nonsense", lambda _: {"connection_creation_rate": "1"}, lambda _: None
    )
    node.pass_ms(100)
    assert "ignoring the settings of ips/nonsense" in caplog.text
