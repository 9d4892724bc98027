"""Metrics that clients push: subscriptions, intervals, errors, bounds, and what /metrics shows.

Zone: real. Time is simulated.
"""

from __future__ import annotations

import contextlib
import random
import struct

import pytest
from tests.handnode import Asker, Node

from ottla.broker.telemetry import receiver as receiving
from ottla.broker.telemetry.otlp import LABELS_MAX, POINTS_MAX, BadPush, read_push
from ottla.broker.telemetry.receiver import CODECS
from ottla.errors import ErrorCode
from ottla.record.compression import compress
from ottla.record.errors import CorruptRecord
from ottla.wire.messages import (
    ApiVersionsRequest,
    GetTelemetrySubscriptionsRequest,
    IncrementalAlterConfigsRequest,
    PushTelemetryRequest,
)


class Client(Asker):
    """A connection of its own."""


@pytest.fixture
def node() -> Node:
    return Node()


def subscribe_all(node, name: str = "all", **config: str) -> None:
    values = {"metrics": "*", "interval.ms": "1000"} | {key.replace("_", "."): value for key, value in config.items()}
    configs = [IncrementalAlterConfigsRequest.AlterableConfig(name=key, value=value) for key, value in values.items()]
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=16, resource_name=name, configs=configs
    )
    assert node.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses[0].error_code == 0


def get(node, instance_id: bytes = bytes(16), peer=None):
    request = GetTelemetrySubscriptionsRequest(client_instance_id=instance_id)
    return node.answer(node.send(request, 0, peer))


def push(node, told, metrics: bytes = b"", codec: int = 0, *, terminating: bool = False, subscription_id=None) -> int:
    request = PushTelemetryRequest(
        client_instance_id=bytes(told.client_instance_id),
        subscription_id=told.subscription_id if subscription_id is None else subscription_id,
        terminating=terminating,
        compression_type=codec,
        metrics=metrics,
    )
    return node.answer(node.send(request, 0)).error_code


# -- protobuf, written here by hand ------------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def message(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def label(key: str, value: str) -> bytes:
    return message(7, message(1, key.encode()) + message(2, message(1, value.encode())))


def gauge(name: str, value: float, **labels: str) -> bytes:
    point = varint(4 << 3 | 1) + struct.pack("<d", value) + b"".join(label(*each) for each in labels.items())
    return message(2, message(1, name.encode()) + message(5, message(1, point)))


def total(name: str, value: int, temporality: int) -> bytes:
    point = varint(6 << 3 | 1) + struct.pack("<q", value)
    return message(2, message(1, name.encode()) + message(7, message(1, point) + varint(2 << 3) + varint(temporality)))


def pushed(*metrics: bytes) -> bytes:
    return message(1, message(1, b"") + message(2, message(1, b"") + b"".join(metrics)))


def shown(node) -> dict[str, float]:
    found = next(each for each in node.broker.metrics if each.name == "kafka_client_telemetry")
    return {each.labels["metric"]: each.value for each in found.samples()}


# -- the protocol ------------------------------------------------------------------------------------------------------


def test_without_a_subscription_a_client_pushes_nothing(node):
    told = get(node)
    assert told.error_code == 0
    assert told.requested_metrics == []
    assert told.push_interval_ms == 300_000
    assert told.accepted_compression_types == list(CODECS)
    assert told.telemetry_max_bytes == 1_048_576
    assert told.delta_temporality
    assert bytes(told.client_instance_id) not in (bytes(16), bytes(15) + b"\1")


def test_what_a_client_pushes_is_shown_with_its_labels(node):
    subscribe_all(node)
    peer = Client()
    node.answer(node.send(ApiVersionsRequest(client_software_name="lib", client_software_version="2.4"), 3, peer))
    told = get(node, peer=peer)
    assert told.requested_metrics == ["*"]
    assert told.push_interval_ms == 1000
    request = PushTelemetryRequest(client_instance_id=bytes(told.client_instance_id))
    request.subscription_id, request.metrics = told.subscription_id, pushed(gauge("a.b", 1.5, topic="t"))
    assert node.answer(node.send(request, 0, peer)).error_code == 0
    found = next(each for each in node.broker.metrics if each.name == "kafka_client_telemetry")
    (sample,) = found.samples()
    assert sample.value == 1.5
    assert sample.labels["metric"] == "a.b"
    assert sample.labels["attribute_topic"] == "t"
    assert sample.labels["client_id"] == "hand"
    assert sample.labels["client_software_name"] == "lib"
    assert sample.labels["client_software_version"] == "2.4"
    node.pass_ms(4_000)
    assert not list(found.samples()), "silent for more than three intervals"


@pytest.mark.parametrize("codec", [0, *CODECS])
@pytest.mark.parametrize("count", [1, 150])
def test_every_codec(node, codec, count):
    subscribe_all(node)
    told = get(node)
    content = pushed(*(gauge(f"metric.number.{number}", number) for number in range(count)))
    assert push(node, told, bytes(compress(codec, content)) if codec else content, codec) == 0
    assert shown(node) == {f"metric.number.{number}": number for number in range(count)}


def test_deltas_add_up_and_cumulative_values_replace(node):
    subscribe_all(node)
    told = get(node)
    for _ in range(3):
        assert push(node, told, pushed(total("delta", 5, 1), total("cumulative", 7, 2))) == 0
        node.pass_ms(1_000)
    assert shown(node) == {"delta": 15, "cumulative": 7}


def test_intervals_are_enforced(node):
    subscribe_all(node)
    told = get(node)
    instance = bytes(told.client_instance_id)
    assert get(node, instance).error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert push(node, told) == 0, "the first push may come at once"
    assert push(node, told) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    node.pass_ms(999)
    assert push(node, told) == ErrorCode.THROTTLING_QUOTA_EXCEEDED
    node.pass_ms(1)
    assert push(node, told) == 0
    node.pass_ms(1_000)
    assert get(node, instance).error_code == 0


def test_a_changed_subscription_is_got_again(node):
    subscribe_all(node)
    told = get(node)
    subscribe_all(node, interval_ms="500")
    assert push(node, told) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    again = get(node, bytes(told.client_instance_id))
    assert again.error_code == 0, "at once, in spite of the interval"
    assert again.push_interval_ms == 500
    assert again.subscription_id != told.subscription_id
    assert push(node, again) == 0


def test_a_terminating_client_may_push_early_and_then_no_more(node):
    subscribe_all(node)
    told = get(node)
    assert push(node, told) == 0
    assert push(node, told, terminating=True) == 0
    node.pass_ms(10_000)
    assert push(node, told) == ErrorCode.INVALID_REQUEST


def test_pushes_that_are_refused(node):
    subscribe_all(node)
    told = get(node)
    told.client_instance_id, instance = bytes(16), told.client_instance_id
    assert push(node, told) == ErrorCode.INVALID_REQUEST
    told.client_instance_id = instance
    assert push(node, told, subscription_id=-1) == ErrorCode.UNKNOWN_SUBSCRIPTION_ID
    node.pass_ms(1_000)
    assert push(node, told, codec=9) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
    node.pass_ms(1_000)
    assert push(node, told, bytes(1_048_577)) == ErrorCode.TELEMETRY_TOO_LARGE
    node.pass_ms(1_000)
    assert push(node, told, b"\xff\xff\xff") == ErrorCode.INVALID_RECORD
    node.pass_ms(1_000)
    assert push(node, told, b"\xff\xff\xff", codec=4) == ErrorCode.INVALID_RECORD
    node.pass_ms(1_000)
    bomb = bytes(compress(4, bytes(64 * 1024 * 1024)))
    assert len(bomb) < 100_000
    assert push(node, told, bomb, codec=4) == ErrorCode.INVALID_RECORD
    assert shown(node) == {}


@pytest.mark.parametrize(
    ("match", "matches"),
    [
        ("client_id=hand", True),
        ("client_id=ha.*,client_source_address=127\\.0\\.0\\.1", True),
        ("client_id=other", False),
        ("client_id=hand,client_software_name=lib", False),
        ("client_source_port=\\d+", False),
        ("client_id=(a*)*b", False),
    ],
)
def test_clients_are_matched(node, match, matches):
    subscribe_all(node, match=match)
    assert get(node).requested_metrics == (["*"] if matches else [])


def test_subscriptions_add_up(node):
    subscribe_all(node, "one", metrics="a.,b.", interval_ms="5000")
    subscribe_all(node, "two", metrics="b.,c.", interval_ms="2000")
    told = get(node)
    assert told.requested_metrics == ["a.", "b.", "c."]
    assert told.push_interval_ms == 2000


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_few_clients_and_numbers_are_kept(node, monkeypatch):
    monkeypatch.setattr(receiving, "CLIENTS_MAX", 10)
    monkeypatch.setattr(receiving, "SHOWN_MAX", 50)
    subscribe_all(node)
    receiver = node.broker._frames._on_gone.__self__._receiver
    for client in range(30):
        told = get(node)
        assert push(node, told, pushed(*(gauge(f"c{client}.m{number}", 1) for number in range(20)))) == 0
    assert receiver.count_clients() <= 10
    assert len(shown(node)) <= 50
    assert "c29.m0" in shown(node)
    assert receiver._count == len(shown(node))


def test_numbers_of_one_client_are_bounded(node):
    subscribe_all(node)
    told = get(node)
    for at in range(3):
        assert push(node, told, pushed(*(gauge(f"m{at}.{number}", 1) for number in range(150)))) == 0
        node.pass_ms(1_000)
    assert len(shown(node)) == receiving.SERIES_MAX


def test_a_push_is_bounded():
    many = pushed(*(gauge(f"m{number}", 1) for number in range(1_000)))
    assert len(read_push(0, many)) == POINTS_MAX
    labels = {f"l{number}": "v" * 1_000 for number in range(20)}
    (point,) = read_push(0, pushed(gauge("n" * 1_000, 1, **labels)))
    assert len(point.labels) == LABELS_MAX
    assert max(map(len, (point.name, *(value for _, value in point.labels)))) == 200


@pytest.mark.parametrize("seed", range(300))
def test_any_bytes_are_read_or_refused(seed):
    chance = random.Random(seed)
    content = bytearray(pushed(gauge("a", 1, b="c"), total("d", 2, 1)))
    for _ in range(chance.randrange(1, 6)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    content = content[: chance.randrange(len(content) + 1)]
    with contextlib.suppress(BadPush, CorruptRecord):
        read_push(0, bytes(content))
