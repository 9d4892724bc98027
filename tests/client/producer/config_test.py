"""The producer's settings: explicit ones that conflict are errors, unset ones adjust."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
import pytest

from ottla.client import ClientConfig, ConfigError
from ottla.client.consumer.settings import ConsumerConfig
from ottla.client.producer.config import ProducerConfig, renamed_warnings

IN_FLIGHT = "max.in.flight.requests.per.connection"


def test_defaults_are_kafkas() -> None:
    config = ProducerConfig.from_mapping({})
    assert (config.retries, config.linger_ms, config.idempotent) == (2**31 - 1, 5, True)
    assert (config.buffer_memory, config.max_block_ms) == (32 * 2**20, 60_000)
    assert (config.acks, config.client.batch_size, config.client.delivery_timeout_ms) == (-1, 16_384, 120_000)


@pytest.mark.parametrize("explicit", [{"acks": "1"}, {"acks": 0}, {"retries": 0}, {IN_FLIGHT: 6}])
def test_unset_idempotence_gives_way(explicit: dict[str, str | int]) -> None:
    assert not ProducerConfig.from_mapping(explicit).idempotent


@pytest.mark.parametrize("explicit", [{"acks": "1"}, {"retries": 0}, {IN_FLIGHT: 6}])
def test_explicit_idempotence_conflicts(explicit: dict[str, str | int]) -> None:
    with pytest.raises(ConfigError, match="contradicts"):
        ProducerConfig.from_mapping({"enable.idempotence": True, **explicit})


@pytest.mark.parametrize("explicit", [{"acks": "1"}, {"retries": 0}, {"enable.idempotence": "false"}])
def test_transactions_need_idempotence(explicit: dict[str, str | int]) -> None:
    with pytest.raises(ConfigError, match="idempotence"):
        ProducerConfig.from_mapping({"transactional.id": "x", **explicit})


def test_delivery_timeout_adjusts_or_conflicts() -> None:
    long = {"linger.ms": 100_000, "request.timeout.ms": 50_000}
    assert ProducerConfig.from_mapping(long).client.delivery_timeout_ms == 150_000
    with pytest.raises(ConfigError, match=r"delivery\.timeout\.ms"):
        ProducerConfig.from_mapping({**long, "delivery.timeout.ms": 120_000})


@pytest.mark.parametrize(
    ("key", "value", "hint"),
    [
        ("linger.mss", 1, "linger.ms"),
        ("bootstrap.server", "h", "bootstrap.servers"),
        ("linger.ms", -1, "0 to"),
        ("retries", "many", "whole number"),
        ("partitioner.ignore.keys", "yes", "true or false"),
        ("compression.gzip.level", 10, "-1 to 9"),
        ("compression.type", "brotli", "zstd"),
    ],
)
def test_errors_for_wrong_values_suggest_right_ones(key: str, value: str | int, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping({key: value})
    assert hint in str(caught.value)


class Codec(StrEnum):
    """An enum of the application."""

    BEST = "zstd"


class Name(str):
    """A str whose str() differs from its content."""

    __slots__ = ()

    def __str__(self) -> str:
        return "another"


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("bootstrap.servers", ["a:1", "b:2"], "bootstrap_servers", "a:1,b:2"),
        ("bootstrap.servers", Name("a:1"), "bootstrap_servers", "a:1"),
        ("compression.type", Codec.BEST, "compression_type", "zstd"),
        ("compression.type", np.str_("gzip"), "compression_type", "gzip"),
        ("client.id", 5, "client_id", "5"),
        ("client.id", None, "client_id", "ottla"),
        ("acks", np.int64(1), "acks", "1"),
        ("batch.size", np.int32(7), "batch_size", 7),
        ("batch.size", " 7 ", "batch_size", 7),
        ("batch.size", Name("7"), "batch_size", 7),
        ("batch.size", None, "batch_size", 16_384),
        ("enable.idempotence", np.bool_(False), "enable_idempotence", False),
    ],
)
def test_values_of_compatible_types_are_accepted(key: str, value: object, field: str, expected: object) -> None:
    for config in (ProducerConfig, ConsumerConfig):
        found = getattr(config.from_mapping({key: value}).client, field)  # type: ignore[dict-item]
        assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("client.id", ["a"]),
        ("client.id", b"a"),
        ("client.id", 1.5),
        ("client.id", True),
        ("bootstrap.servers", [b"a:1"]),
        ("bootstrap.servers", {"a:1"}),
        ("batch.size", 1.5),
        ("batch.size", [1]),
        ("batch.size", True),
        ("enable.idempotence", 1),
        ("sasl.username", 5),
    ],
)
def test_unknown_keys_and_types_are_refused_by_name(key: str, value: object) -> None:
    for config in (ProducerConfig, ConsumerConfig, ClientConfig):
        with pytest.raises(ConfigError, match=key):
            config.from_mapping({key: value})  # type: ignore[dict-item]


def test_an_empty_transactional_id_is_refused_and_none_is_none() -> None:
    with pytest.raises(ConfigError, match=r"transactional\.id is empty"):
        ProducerConfig.from_mapping({"transactional.id": ""})
    assert ProducerConfig.from_mapping({"transactional.id": None}).transactional_id == ""


@pytest.mark.parametrize(("key", "value"), [("group.id", 5), ("max.poll.records", 1.5), ("auto.offset.reset", ["a"])])
def test_the_consumers_own_keys_are_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=key):
        ConsumerConfig.from_mapping({key: value})  # type: ignore[dict-item]
    assert ConsumerConfig.from_mapping({key: None}) == ConsumerConfig()


def test_old_names_are_accepted_with_a_warning() -> None:
    old = {"metadata.broker.list": "h:1", "request.required.acks": "1"}
    config = ProducerConfig.from_mapping(old)
    assert (config.client.bootstrap_servers, config.acks) == ("h:1", 1)
    assert len(renamed_warnings(old)) == 2
