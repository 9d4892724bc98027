"""Settings described and altered over the wire, in every version, with valid and invalid input.

Zone: real.
"""

from __future__ import annotations

import pytest
from tests.cluster.conftest import Asker, Place, make

from ottla.errors import ErrorCode
from ottla.requests import Context
from ottla.wire.messages import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)

Described = DescribeConfigsRequest.DescribeConfigsResource
TOPIC, BROKER = 2, 4


def describe(node, kind, name, keys=None, version=4, **flags):
    resource = Described(resource_type=kind, resource_name=name, configuration_keys=keys)
    return node.ask(DescribeConfigsRequest(resources=[resource], **flags), version).results[0]


def alter(node, kind, name, *changes, validate_only=False):
    resource, config = (
        IncrementalAlterConfigsRequest.AlterConfigsResource,
        IncrementalAlterConfigsRequest.AlterableConfig,
    )
    request = IncrementalAlterConfigsRequest(
        resources=[
            resource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    config(name=key, config_operation=operation, value=value) for key, operation, value in changes
                ],
            )
        ],
        validate_only=validate_only,
    )
    return node.ask(request, 1).responses[0]


SET, DELETE, APPEND, SUBTRACT = range(4)


@pytest.mark.parametrize("version", range(5))
def test_describe_configs_in_every_version(node, version):
    make(node, "t", configs={"retention.ms": "5"})
    result = describe(
        node, TOPIC, "t", version=version, include_synonyms=version >= 1, include_documentation=version >= 3
    )
    configs = {one.name: one for one in result.configs}
    assert configs["retention.ms"].value == "5"
    assert len(configs) > 30
    if version == 0:
        assert not configs["retention.ms"].is_default
        assert configs["segment.bytes"].is_default
    else:
        assert [(s.name, s.value, s.source) for s in configs["retention.ms"].synonyms] == [
            ("retention.ms", "5", 1),
        ]
    if version >= 3:
        assert configs["retention.ms"].config_type == 5
        assert configs["retention.ms"].documentation


def test_described_values_have_their_source(make_node):
    node = make_node({"log.retention.hours": "2", "broker.rack": "r1"})
    make(node, "t")
    assert alter(node, BROKER, "", ("log.retention.ms", SET, "30")).error_code == 0
    assert alter(node, BROKER, "1", ("log.retention.ms", SET, "20")).error_code == 0
    (topic,) = describe(node, TOPIC, "t", ["retention.ms"], include_synonyms=True).configs
    assert (topic.value, topic.config_source) == ("20", 2)
    assert [(s.name, s.value, s.source) for s in topic.synonyms] == [
        ("log.retention.ms", "20", 2),
        ("log.retention.ms", "30", 3),
        ("log.retention.hours", "2", 4),
        ("log.retention.hours", "168", 5),
    ]
    broker = {one.name: one for one in describe(node, BROKER, "1").configs}
    assert (broker["log.retention.ms"].value, broker["log.retention.ms"].config_source) == ("20", 2)
    assert (broker["broker.rack"].value, broker["broker.rack"].config_source) == ("r1", 4)
    assert broker["broker.rack"].read_only
    assert not broker["log.retention.ms"].read_only
    (shared,) = describe(node, BROKER, "").configs
    assert (shared.name, shared.value, shared.config_source) == ("log.retention.ms", "30", 3)
    assert describe(node, TOPIC, "t", ["no.such.key"]).configs == []


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "no", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "2", ErrorCode.INVALID_REQUEST),
        (BROKER, "one", ErrorCode.INVALID_REQUEST),
        (8, "2", ErrorCode.INVALID_REQUEST),
        (99, "x", ErrorCode.INVALID_REQUEST),
    ],
)
def test_describing_missing_resources_fails(node, kind, name, code):
    assert describe(node, kind, name).error_code == code
    assert alter(node, kind, name, ("retention.ms", SET, "1")).error_code == code


def test_incremental_changes_of_a_topic(node):
    make(node, "t", configs={"retention.ms": "5"})
    answer = alter(
        node,
        TOPIC,
        "t",
        ("retention.ms", DELETE, None),
        ("segment.bytes", SET, "1000"),
        ("cleanup.policy", APPEND, "compact"),
    )
    assert answer.error_code == 0
    assert dict(node.cluster.image.topic_by_name("t").overrides) == {
        "segment.bytes": "1000",
        "cleanup.policy": "delete,compact",
    }
    assert node.deltas[-1].configured == ("t",)
    assert alter(node, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    node.restart()
    assert node.cluster.topic_config("t").cleanup_policy == ("compact",)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_REQUEST),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST),
        (("no.such.key", SET, "1"), ErrorCode.INVALID_CONFIG),
        (("no.such.key", APPEND, "1"), ErrorCode.INVALID_REQUEST),
        (("compression.type", SET, "x" * 30_000), ErrorCode.INVALID_CONFIG),
        (("compression.type", SET, "file:///etc/passwd"), ErrorCode.INVALID_CONFIG),
    ],
)
def test_invalid_changes_of_a_topic_are_refused(node, change, code):
    make(node, "t")
    answer = alter(node, TOPIC, "t", change)
    assert answer.error_code == code
    assert answer.error_message
    assert node.cluster.image.topic_by_name("t").overrides == {}


def test_append_is_refused_beyond_the_size_that_can_be_described(node):
    make(node, "t")
    key = "follower.replication.throttled.replicas"
    first = ",".join(f"{number}:1" for number in range(4000))
    more = ",".join(f"{number}:2" for number in range(4000))
    assert alter(node, TOPIC, "t", (key, SET, first)).error_code == 0
    assert alter(node, TOPIC, "t", (key, APPEND, more)).error_code == ErrorCode.INVALID_CONFIG
    assert describe(node, TOPIC, "t", [key]).configs[0].value == first


def test_a_key_or_resource_named_twice_is_refused(node):
    make(node, "t")
    twice = alter(node, TOPIC, "t", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None))
    assert twice.error_code == ErrorCode.INVALID_REQUEST
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[])
    answer = node.ask(AlterConfigsRequest(resources=[resource, resource]), 2)
    assert [one.error_code for one in answer.responses] == [ErrorCode.INVALID_REQUEST] * 2


def test_concurrent_changes_build_on_each_other(node):
    make(node, "t")
    resource, config = (
        IncrementalAlterConfigsRequest.AlterConfigsResource,
        IncrementalAlterConfigsRequest.AlterableConfig,
    )
    answers = []
    for key in ("retention.ms", "segment.bytes", "flush.ms"):
        one = resource(resource_type=TOPIC, resource_name="t", configs=[config(name=key, value="1000")])
        handler = node.broker._dispatch.cold[44].handler
        context = Context(44, 1, 1, "test", Place(Asker()), lambda _, response: answers.append(response))
        node.process.post_turn(0, "frame", handler, context, IncrementalAlterConfigsRequest(resources=[one]))
    node.settle()
    assert [answer.responses[0].error_code for answer in answers] == [0, 0, 0]
    assert sorted(node.cluster.image.topic_by_name("t").overrides) == ["flush.ms", "retention.ms", "segment.bytes"]
    node.restart()
    assert sorted(node.cluster.image.topic_by_name("t").overrides) == ["flush.ms", "retention.ms", "segment.bytes"]


def test_validate_only_changes_nothing(node):
    make(node, "t")
    assert alter(node, TOPIC, "t", ("retention.ms", SET, "1"), validate_only=True).error_code == 0
    assert alter(node, BROKER, "1", ("log.cleaner.threads", SET, "2"), validate_only=True).error_code == 0
    assert alter(node, BROKER, "1", ("log.cleaner.threads", SET, "two"), validate_only=True).error_code != 0
    assert node.cluster.image.topic_by_name("t").overrides == {}
    assert node.cluster.layers.own == {}


@pytest.mark.parametrize("version", range(3))
def test_alter_configs_replaces_all_settings(node, version):
    make(node, "t", configs={"retention.ms": "5"})
    config = AlterConfigsRequest.AlterableConfig(name="segment.bytes", value="1000")
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[config])
    assert node.ask(AlterConfigsRequest(resources=[resource]), version).responses[0].error_code == 0
    assert dict(node.cluster.image.topic_by_name("t").overrides) == {"segment.bytes": "1000"}


@pytest.mark.parametrize(
    ("name", "change", "code"),
    [
        ("1", ("num.partitions", SET, "3"), ErrorCode.INVALID_REQUEST),
        ("", ("advertised.listeners", SET, "PLAINTEXT://x:1"), ErrorCode.INVALID_REQUEST),
        ("1", ("no.such.key", SET, "3"), ErrorCode.INVALID_CONFIG),
        ("1", ("log.retention.ms", SET, "x"), ErrorCode.INVALID_CONFIG),
        ("1", ("metric.reporters", SET, "evil.Class"), 0),
    ],
)
def test_invalid_changes_of_brokers_are_refused(node, name, change, code):
    assert alter(node, BROKER, name, change).error_code == code


def test_config_resources_are_listed(node):
    make(node, "t")
    found = node.ask(ListConfigResourcesRequest(), 1).config_resources
    assert [(one.resource_name, one.resource_type) for one in found] == [("t", TOPIC), ("1", BROKER), ("1", 8)]
    assert node.ask(ListConfigResourcesRequest(), 0).config_resources == []
    assert node.ask(ListConfigResourcesRequest(resource_types=[99]), 1).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_empty_cleanup_policy_keeps_all_records_and_can_be_undone(node):
    """KIP-1161: nothing is deleted by age or size. The last word of the list can be subtracted."""
    make(node, "t")
    assert alter(node, TOPIC, "t", ("cleanup.policy", SUBTRACT, "delete")).error_code == 0
    config = node.cluster.topic_config("t")
    assert (config.cleanup_policy, config.delete, config.compact) == ((), False, False)
    (shown,) = describe(node, TOPIC, "t", ["cleanup.policy"]).configs
    assert (shown.value, shown.config_source) == ("", 1)
    node.restart()
    assert node.cluster.topic_config("t").cleanup_policy == ()
    assert alter(node, TOPIC, "t", ("cleanup.policy", APPEND, "compact")).error_code == 0
    assert node.cluster.topic_config("t").cleanup_policy == ("compact",)
    assert alter(node, BROKER, "", ("log.cleanup.policy", SET, "")).error_code == 0
    assert node.cluster.topic_defaults.cleanup_policy == ()


def test_synonyms_do_not_begin_with_a_default_of_another_unit(make_node):
    """As in Apache Kafka 3.9 and 4.4. A value of the file is listed under its own name."""
    node = make_node({"log.roll.hours": "2"})
    make(node, "t")
    retention, roll = describe(node, TOPIC, "t", ["retention.ms", "segment.ms"], include_synonyms=True).configs
    assert (retention.config_source, retention.synonyms) == (5, [])
    assert (roll.value, roll.config_source) == ("7200000", 4)
    assert [(one.name, one.value, one.source) for one in roll.synonyms] == [
        ("log.roll.hours", "2", 4),
        ("log.roll.hours", "168", 5),
    ]
    assert alter(node, BROKER, "1", ("log.retention.ms", SET, "20")).error_code == 0
    (retention,) = describe(node, TOPIC, "t", ["retention.ms"], include_synonyms=True).configs
    assert [(one.name, one.source) for one in retention.synonyms] == [
        ("log.retention.ms", 2),
        ("log.retention.hours", 5),
    ]
