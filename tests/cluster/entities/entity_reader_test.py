"""Settings of users, client ids, addresses, groups and client metrics in the metadata store.

Zone: real.
"""

from __future__ import annotations

import json

import pytest

from ottla.cluster.entities import entity_reader
from ottla.cluster.entities.entity_reader import EntityReader, is_entity_path
from ottla.cluster.store.workflow import run_workflow
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op


class Received:
    """What the reader passed on, by path."""

    def __init__(self) -> None:
        self.configs: dict[str, dict[str, str]] = {}
        self.calls = 0

    def on_config(self, path, config) -> None:
        self.calls += 1
        if config:
            self.configs[path] = dict(config)
        else:
            self.configs.pop(path, None)


@pytest.fixture
def received(node) -> Received:
    """The settings that the node's reader passes on from now on."""
    found = Received()
    node.broker._metadata.changes._entities._on_config = found.on_config
    return found


def put(node, path: str, content: bytes | dict) -> None:
    if isinstance(content, dict):
        content = json.dumps({"version": 1, "config": content}).encode()
    full = f"/config/{path}"
    verb = "create" if node.get(full) is None else "put"
    node.submit(Op(verb, full, content))


def note(node, content: dict) -> None:
    node.submit(Op("sequential", "/config/changes/config_change_", json.dumps(content).encode()))


def read_all(node) -> Received:
    """What a reader that starts now passes on."""
    found = Received()
    reader = EntityReader(found.on_config)
    node.wait(lambda done: run_workflow(node.store, reader.read_all(), done))
    return found


def fill(node) -> dict[str, dict[str, str]]:
    stored = {
        "users/ann": {"producer_byte_rate": "1", "SCRAM-SHA-256": "salt=…"},
        "users/<default>": {"request_percentage": "20.0"},
        "users/ann/clients/app": {"consumer_byte_rate": "2"},
        "users/ann/clients/<default>": {"consumer_byte_rate": "3"},
        "clients/app": {"producer_byte_rate": "4"},
        "ips/10.0.0.1": {"connection_creation_rate": "5"},
        "groups/g": {"consumer.session.timeout.ms": "6"},
        "client-metrics/m": {"metrics": "*"},
    }
    node.submit(Op("create", "/config/groups"), Op("create", "/config/client-metrics"))
    for path in sorted(stored):
        if path == "users/ann/clients/<default>":
            node.submit(Op("create", "/config/users/ann/clients", b""))
        put(node, path, stored[path])
    return stored


def test_everything_is_read_at_the_start(node):
    assert read_all(node).configs == {}
    stored = fill(node)
    assert read_all(node).configs == stored


def test_many_are_read_in_slices(node, monkeypatch):
    monkeypatch.setattr(entity_reader, "SLICE", 3)
    stored = fill(node)
    for number in range(10):
        put(node, f"users/u{number}", {"producer_byte_rate": "1"})
        node.submit(Op("create", f"/config/users/u{number}/clients", b""))
        put(node, f"users/u{number}/clients/c", {"producer_byte_rate": "2"})
    assert len(read_all(node).configs) == len(stored) + 20


def test_unreadable_settings_are_ignored_with_a_line(node, caplog):
    stored = fill(node)
    put(node, "users/ann", b"{")
    put(node, "users/bob", b'{"version":1,"config":[]}')
    put(node, "ips/x", b"")
    found = read_all(node)
    assert found.configs.keys() == stored.keys() - {"users/ann"}
    assert "/config/users/ann is not JSON" in caplog.text
    assert "/config/users/bob has no config" in caplog.text


@pytest.mark.parametrize(
    "path", ["users/ann", "clients/c%2Fd", "users/ann/clients/<default>", "ips/::1", "groups/g", "client-metrics/m"]
)
def test_a_notification_names_the_entity_to_read(node, received, path):
    fill(node)
    put(node, path, {"key": "1"})
    note(node, {"version": 2, "entity_path": path})
    assert received.configs == {path: {"key": "1"}}
    put(node, path, {})
    note(node, {"version": 2, "entity_path": path})
    assert received.configs == {}
    node.submit(Op("delete", f"/config/{path}")) if path != "users/ann" else None
    note(node, {"version": 2, "entity_path": path})
    assert received.configs == {}


def test_a_deleted_node_is_an_entity_without_settings(node, received):
    put(node, "clients/c", {"producer_byte_rate": "1"})
    note(node, {"version": 1, "entity_type": "clients", "entity_name": "c"})
    assert received.configs == {"clients/c": {"producer_byte_rate": "1"}}
    node.submit(Op("delete", "/config/clients/c"))
    note(node, {"version": 1, "entity_type": "clients", "entity_name": "c"})
    assert received.configs == {}


@pytest.mark.parametrize(
    "path",
    ["users", "users/", "users/..", "users/a/b", "users/a/groups/b", "users/a/clients/", "users/a/clients/b/c",
     "users/a\u0000", "moons/io", "users//clients/a", "ips/.", ""],
)  # fmt: skip
def test_other_paths_are_ignored(node, received, path):
    assert not is_entity_path(path)
    note(node, {"version": 2, "entity_path": path})
    put(node, "clients/c", {"producer_byte_rate": "1"})
    note(node, {"version": 2, "entity_path": "clients/c"})
    assert list(received.configs) == ["clients/c"]


def test_entities_that_vanish_while_a_broker_is_away_lose_their_settings(node):
    fill(node)
    found = Received()
    reader = EntityReader(found.on_config)
    node.wait(lambda done: run_workflow(node.store, reader.read_all(), done))
    node.submit(Op("delete", "/config/clients/app"))
    put(node, "users/ann", {})
    node.wait(lambda done: run_workflow(node.store, reader.read_all(), done))
    assert "clients/app" not in found.configs
    assert "users/ann" not in found.configs
    assert "users/ann/clients/app" in found.configs


def test_a_change_creates_missing_parents_and_a_notification(node, received):
    node.wait(lambda done: node.alterations.alter_entity("users/a%2F/clients/c", lambda _: {"k": "v"}, done))
    assert node.get("/config/users/a%2F/clients/c").data == b'{"version":1,"config":{"k":"v"}}'
    assert node.get("/config/users/a%2F").data == b""
    (name,) = node.wait(lambda done: node.store.get_children("/config/changes", False, done))
    data = json.loads(node.get(f"/config/changes/{name}").data)
    assert data == {"version": 2, "entity_path": "users/a%2F/clients/c"}
    assert received.configs == {"users/a%2F/clients/c": {"k": "v"}}


def test_changes_build_on_each_other(node, received):
    def both() -> None:
        for number in "12":
            change = lambda present, number=number: {**present, number: number}  # noqa: E731
            node.alterations.alter_entity("groups/g", change, outcomes.append)

    outcomes = []
    node.turn(both)
    assert outcomes == [None, None]
    assert received.configs == {"groups/g": {"1": "1", "2": "2"}}


def test_a_refusal_changes_nothing(node, received):
    def refuse(_):
        raise ApiError(ErrorCode.INVALID_REQUEST, "no")

    with pytest.raises(ApiError):
        node.wait(lambda done: node.alterations.alter_entity("users/u", refuse, done))
    assert node.get("/config/users/u") is None
    assert not received.calls


def test_nothing_is_written_to_remove_nothing(node):
    node.wait(lambda done: node.alterations.alter_entity("users/u", lambda _: {}, done))
    assert node.get("/config/users/u") is None
