"""Every setting that can change while a broker runs, with odd values: each is accepted or refused by name, and none
prevents a start.

Zone: real.
"""

from __future__ import annotations

import json

import pytest
from tests.cluster.config_changes_test import alter, note
from tests.handnode import Node

from ottla.cluster.configs import Layers, usable_layers
from ottla.config.broker import BROKER_ROWS, BrokerConfig
from ottla.config.rows import ConfigError, Dynamic, render_value
from ottla.config.topic import TOPIC_ROWS
from ottla.errors import ErrorCode
from ottla.seams import Op

ODD = (
    "0", "1", "-1", "2", "-2", "-2147483648", "2147483647", "2147483648", "9223372036854775807", "-9223372036854775808",
    "999999999999999999999999", "", " ", "x", ":", "a:b:c", "127.0.0.1:x", "127.0.0.1:3", "*", "0:0", "1e308", "0.5",
    "true", "\u0663", "0x10", "1_000", "nan", "inf", "delete,delete", ",", "\\", "a" * 5000, "\x00\x1b[2J",
)  # fmt: skip
"""More than 25 values, of which each key accepts some."""
DYNAMIC = [
    *(row.name for row in BROKER_ROWS.values() if row.dynamic is Dynamic.CLUSTER_WIDE),
    *(
        f"listener.name.plaintext.{row.name}"
        for row in BROKER_ROWS.values()
        if row.dynamic is Dynamic.PER_BROKER and not row.sensitive
    ),
]


def alter_answer(node, kind, name, key, value):
    from ottla.wire.messages import IncrementalAlterConfigsRequest

    resource = IncrementalAlterConfigsRequest.AlterConfigsResource
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, value=value)
    request = IncrementalAlterConfigsRequest(
        resources=[resource(resource_type=kind, resource_name=name, configs=[change])]
    )
    return node.ask(request, 1).responses[0]


class Tried:
    """One broker with a plain and a compacted topic, which tries one value after another."""

    def __init__(self) -> None:
        self.node = Node({"log.index.size.max.bytes": "4096"})  # the simulated disk stores files at their full size
        self.node.create("t")
        self.node.create("k", cleanup_policy="compact", segment_bytes="300", min_cleanable_dirty_ratio="0")

    def serves(self) -> None:
        """The broker answers requests, with any result, and stays alive."""
        for name in ("t", "k"):
            self.node.produce(name, b"v" * 200, b"w" * 200)
            self.node.ask(self.node.fetch_request(name, 0), 11)
        self.node.pass_ms(100)

    def store(self, path: str, settings: dict[str, str]) -> None:
        """Write a setting as another version or an operator would; the next start reads it."""
        content = json.dumps({"version": 1, "config": settings}).encode()
        box = []

        def turn() -> None:
            store = self.node.broker._metadata.stores.watched
            store.get_node(path, False, lambda there: store.submit_ops(
                "by hand", [Op("create", path, content) if there is None else Op("put", path, content, there.version)],
                box.append,
            ))  # fmt: skip
            self.node.broker.end_turn()

        self.node.process.post_turn(0, "by hand", turn)
        self.node.pass_ms(50)
        assert len(box) == 1


@pytest.mark.parametrize("key", [row.name for row in BROKER_ROWS.values() if row.dynamic is Dynamic.PER_BROKER])
def test_keys_of_tls_change_for_one_listener_of_one_broker_and_secrets_never_do(key):
    node = Tried().node
    own = f"listener.name.plaintext.{key}"
    secret = BROKER_ROWS[key].sensitive
    for broker, name, words in (("", own, "name the broker"), ("1", key, "single listeners only"), ("1", own, "")):
        answer = alter_answer(node, 4, broker, name, render_value(BROKER_ROWS[key].default) or "x")
        if words or secret:
            assert answer.error_code == ErrorCode.INVALID_REQUEST
            assert ("is a secret" if secret else words) in answer.error_message
        else:
            assert answer.error_code == ErrorCode.NONE, answer.error_message


@pytest.mark.slow
@pytest.mark.parametrize("key", DYNAMIC)
def test_a_broker_survives_every_accepted_value_and_starts_with_every_stored_one(key):
    tried = Tried()
    node = tried.node
    for value in ODD:
        answer = alter_answer(node, 4, "1", key, value)
        assert answer.error_code in (ErrorCode.NONE, ErrorCode.INVALID_CONFIG), value
        if answer.error_code:
            assert key in answer.error_message, "the message names the key"
            assert "must be" in answer.error_message or "outside" in answer.error_message, "and what is allowed"
            tried.store("/config/brokers/1", {key: value})
        else:
            tried.serves()
        node.restart()
        tried.serves()
        tried.store("/config/brokers/1", {})


@pytest.mark.slow
@pytest.mark.parametrize("key", list(TOPIC_ROWS))
def test_a_topic_survives_every_accepted_value_and_loads_with_every_stored_one(key):
    tried = Tried()
    node = tried.node
    for name in ("t", "k"):
        for value in ODD:
            answer = alter_answer(node, 2, name, key, value)
            assert answer.error_code in (ErrorCode.NONE, ErrorCode.INVALID_CONFIG), value
            if answer.error_code:
                assert key in answer.error_message, "the message names the key"
                tried.store(f"/config/topics/{name}", {key: value})
            else:
                tried.serves()
            node.restart()
            tried.serves()
            tried.store(f"/config/topics/{name}", {"cleanup.policy": "compact"} if name == "k" else {})


@pytest.mark.parametrize("key", DYNAMIC)
def test_every_stored_setting_results_in_a_configuration(key):
    """The layers of settings without a broker: unusable settings are left out and named."""
    for value in ODD:
        for own, shared in (({key: value}, {}), ({}, {key: value}), ({key: value}, {key: "1"})):
            layers, lines = usable_layers(Layers(own, shared, {}))
            layers.resolve_layers()
            assert all(key in line for line in lines)
            assert len(lines) == (own != layers.own) + (shared != layers.shared)


@pytest.mark.parametrize("key", list(BROKER_ROWS))
def test_a_static_setting_is_accepted_or_refused_by_name(key):
    for value in ODD:
        try:
            config, _ = BrokerConfig.from_properties({key: value})
        except ConfigError as error:
            named = error.key
        else:
            assert config.endpoints
            assert config.topic_defaults
            continue
        assert named in BROKER_ROWS


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [
        ("max.connections.per.ip.overrides", "127.0.0.1:x", "address:number"),
        ("max.connections.per.ip.overrides", ":", "address:number"),
        ("max.connections.per.ip", "0", "max.connections.per.ip.overrides"),
        ("log.cleaner.threads", "2147483647", "between 0 and 256"),
        ("log.cleaner.threads", "200", "more than 1048576"),
        ("log.cleaner.io.buffer.load.factor", "1e308", "between 0.01 and 1"),
        ("log.cleaner.dedupe.buffer.size", "9223372036854775807", "between 1048577 and"),
        ("num.replica.fetchers", "100000", "between 1 and 256"),
        ("log.cleaner.max.compaction.lag.ms", "0", "at least 1"),
    ],
)
@pytest.mark.parametrize("resource", ["", "1"])
def test_a_refusal_names_the_value_and_the_allowed_ones(node, resource, key, value, allowed):
    answer = alter_answer(node, 4, resource, key, value)
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert key in answer.error_message
    assert value in answer.error_message
    assert allowed in answer.error_message
    assert node.get("/config/brokers/1") is None


def test_two_settings_that_contradict_each_other_are_refused_together(node):
    assert alter(node, 4, "", "log.cleaner.min.compaction.lag.ms", "1000") == 0
    answer = alter_answer(node, 4, "1", "log.cleaner.max.compaction.lag.ms", "10")
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "min.compaction.lag.ms: 1000 is not allowed; it must be at most max" in answer.error_message


def test_unusable_stored_settings_are_logged_ignored_and_can_be_deleted(node, caplog):
    stored = {"max.connections.per.ip.overrides": "x", "log.retention.bytes": "77", "listeners": "PLAINTEXT://:1"}
    node.submit(Op("create", "/config/brokers/1", json.dumps({"version": 1, "config": stored}).encode()))
    node.restart()
    assert node.broker.ready
    assert node.cluster.config.log_retention_bytes == 77
    assert node.cluster.config.max_connections_per_ip_overrides == ()
    assert "max.connections.per.ip.overrides: 'x' is not allowed" in caplog.text
    assert "listeners cannot change while the broker runs" in caplog.text
    assert alter(node, 4, "1", "log.retention.bytes", "78") == 0, "others can be changed beside them"
    assert "listeners" in json.loads(node.get("/config/brokers/1").data)["config"]
    from tests.cluster.config_handlers_test import BROKER, DELETE
    from tests.cluster.config_handlers_test import alter as change

    assert change(node, BROKER, "1", ("listeners", DELETE, None)).error_code == 0
    assert "listeners" not in json.loads(node.get("/config/brokers/1").data)["config"]


def test_unusable_settings_from_a_notification_are_harmless(node, caplog):
    node.submit(
        Op("create", "/config/brokers/<default>", b'{"version":1,"config":{"log.cleaner.threads":"2147483647"}}')
    )
    note(node, b'{"version":2,"entity_path":"brokers/<default>"}')
    assert node.cluster.config.log_cleaner_threads == 1
    assert "log.cleaner.threads: '2147483647' is not allowed; it must be between 0 and 256" in caplog.text


def test_a_broker_can_start_without_its_stored_settings(make_node, caplog):
    node = make_node()
    assert alter(node, 4, "", "log.retention.ms", "-1") == 0
    assert alter(node, 4, "1", "message.max.bytes", "0") == 0
    node.properties["ottla.ignore.dynamic.configs"] = "true"
    node.restart()
    assert node.cluster.config.message_max_bytes == 1_048_588
    assert node.cluster.topic_defaults.retention_ms == -1, "records that are to stay are not deleted meanwhile"
    assert "log.retention.ms, message.max.bytes" in caplog.text
    del node.properties["ottla.ignore.dynamic.configs"]
    node.restart()
    assert node.cluster.config.message_max_bytes == 0
