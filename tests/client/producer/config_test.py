"""The producer's settings: explicit ones that conflict are errors, unset ones adjust."""

from __future__ import annotations

import pytest

from ottla.client import ConfigError
from ottla.client.producer.config import ProducerConfig, renamed

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
def test_what_does_not_fit_says_what_does(key: str, value: str | int, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ProducerConfig.from_mapping({key: value})
    assert hint in str(caught.value)


def test_old_names_are_accepted_with_a_warning() -> None:
    old = {"metadata.broker.list": "h:1", "request.required.acks": "1"}
    config = ProducerConfig.from_mapping(old)
    assert (config.client.bootstrap_servers, config.acks) == ("h:1", 1)
    assert len(renamed(old)) == 2
