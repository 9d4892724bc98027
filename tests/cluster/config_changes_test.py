"""Settings in the metadata store: changes of other brokers, notifications, and their removal.

Zone: real.
"""

from __future__ import annotations

import json

import pytest

from ottla.cluster.config_changes import KEPT_NS
from ottla.cluster.topics import TopicSpec
from ottla.errors import ApiError, ErrorCode
from ottla.seams import Op
from ottla.sim.world import SECOND
from ottla.wire.messages import IncrementalAlterConfigsRequest

CHANGES = "/config/changes"


@pytest.fixture
def topic(node):
    node.wait(lambda done: node.topics.create_topic(TopicSpec("t", 1, 1), False, 1000, done))
    return node


def alter(node, kind, name, key, value):
    change = IncrementalAlterConfigsRequest.AlterableConfig(name=key, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind, resource_name=name, configs=[change]
    )
    return node.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code


def notes(node):
    return node.wait(lambda done: node.store.get_children(CHANGES, False, done))


def note(node, content):
    node.submit(Op("sequential", f"{CHANGES}/config_change_", content))


def test_a_change_creates_a_notification_in_kafkas_format(topic):
    assert alter(topic, 2, "t", "retention.ms", "5") == 0
    assert alter(topic, 4, "1", "log.retention.bytes", "6") == 0
    assert alter(topic, 4, "", "log.retention.bytes", "7") == 0
    assert notes(topic) == ["config_change_0000000000", "config_change_0000000001", "config_change_0000000002"]
    contents = [json.loads(topic.get(f"{CHANGES}/{name}").data) for name in notes(topic)]
    paths = ["topics/t", "brokers/1", "brokers/<default>"]
    assert contents == [{"version": 2, "entity_path": path} for path in paths]


@pytest.mark.parametrize(
    "content",
    [
        b'{"version":2,"entity_path":"topics/t"}',
        b'{"version":1,"entity_type":"topics","entity_name":"t"}',
    ],
)
def test_a_notification_applies_settings_that_another_writer_changed(topic, content):
    topic.submit(Op("put", "/config/topics/t", b'{"version":1,"config":{"retention.ms":"5"}}'))
    assert topic.broker.hosted.find_partition("t", 0).config.retention_ms == 604_800_000
    note(topic, content)
    assert topic.broker.hosted.find_partition("t", 0).config.retention_ms == 5
    assert topic.cluster.image.topics["t"].config.retention_ms == 5


def test_settings_of_all_brokers_and_of_this_one(topic):
    topic.submit(Op("create", "/config/brokers/<default>", b'{"version":1,"config":{"log.retention.ms":"5"}}'))
    note(topic, b'{"version":2,"entity_path":"brokers/<default>"}')
    assert topic.cluster.topic_config("t").retention_ms == 5
    topic.submit(Op("create", "/config/brokers/1", b'{"version":1,"config":{"log.retention.ms":"6"}}'))
    note(topic, b'{"version":2,"entity_path":"brokers/2"}')
    assert topic.cluster.topic_config("t").retention_ms == 5, "another broker's are none of its business"
    note(topic, b'{"version":2,"entity_path":"brokers/1"}')
    assert topic.cluster.topic_config("t").retention_ms == 6


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b'{"version":2,"entity_path":"moons/io"}', b""])
def test_an_invalid_notification_is_ignored_and_the_next_one_is_read(topic, content, caplog):
    note(topic, content)
    topic.submit(Op("put", "/config/topics/t", b'{"version":1,"config":{"retention.ms":"5"}}'))
    note(topic, b'{"version":2,"entity_path":"topics/t"}')
    assert topic.cluster.topic_config("t").retention_ms == 5
    assert ("invalid notification" in caplog.text) == (b"moons" not in content)


def test_invalid_settings_are_logged_and_the_old_ones_stay(topic, caplog):
    assert alter(topic, 2, "t", "retention.ms", "5") == 0
    topic.submit(Op("put", "/config/topics/t", b"{"))
    note(topic, b'{"version":2,"entity_path":"topics/t"}')
    assert topic.cluster.topic_config("t").retention_ms == 5
    assert "/config/topics/t is not JSON" in caplog.text
    assert alter(topic, 2, "t", "segment.bytes", "1000000") == 0, "a change by name replaces it"
    assert topic.get("/config/topics/t").data == b'{"version":1,"config":{"segment.bytes":"1000000"}}'


def test_notifications_are_removed_after_a_quarter_of_an_hour(topic):
    assert alter(topic, 2, "t", "retention.ms", "5") == 0
    topic.timeline.run_until(topic.timeline.now_ns + KEPT_NS - 60 * SECOND)
    assert alter(topic, 2, "t", "retention.ms", "6") == 0
    assert len(notes(topic)) == 2
    topic.timeline.run_until(topic.timeline.now_ns + 120 * SECOND)
    assert alter(topic, 2, "t", "retention.ms", "7") == 0
    assert notes(topic) == ["config_change_0000000001", "config_change_0000000002"]


def test_a_change_builds_on_a_concurrent_one_of_another_writer(topic):
    """The notification of the other change has not arrived yet; the node itself decides."""
    topic.submit(Op("put", "/config/topics/t", b'{"version":1,"config":{"retention.ms":"5"}}'))
    assert alter(topic, 2, "t", "segment.bytes", "1000000") == 0
    stored = json.loads(topic.get("/config/topics/t").data)["config"]
    assert stored == {"retention.ms": "5", "segment.bytes": "1000000"}
    assert topic.cluster.image.topics["t"].overrides == stored


def test_a_topic_deleted_meanwhile_gets_no_settings(topic):
    outcomes = []

    def both() -> None:
        topic.topics.delete_topic("t", 1000, lambda _: None)
        topic.alterations.alter_topic("t", lambda _: {"retention.ms": "5"}, False, outcomes.append)

    topic.turn(both)
    assert topic.get("/config/topics/t") is None
    assert outcomes[0] is None or outcomes[0].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(ApiError) as error:
        topic.wait(lambda done: topic.alterations.alter_topic("t", lambda _: {}, False, done))
    assert error.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_dynamic_settings_of_a_broker_take_effect(topic):
    told = []
    topic.broker.on_config = told.append
    for key, value in (
        ("producer.id.expiration.ms", "1234"),
        ("num.replica.fetchers", "3"),
        ("leader.replication.throttled.rate", "1000"),
        ("max.connections", "17"),
    ):
        assert alter(topic, 4, "1", key, value) == 0
    assert topic.broker.logs._config.producer_id_expiration_ms == 1234
    assert topic.broker._replicas.fetchers.number == 3
    assert told[-1].max_connections == 17
    topic.restart()
    assert topic.broker._replicas.fetchers.number == 3
    assert topic.broker.logs._config.producer_id_expiration_ms == 1234
