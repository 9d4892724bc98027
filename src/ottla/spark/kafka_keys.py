"""The `kafka.*` options: client settings, keys without effect here, and refused keys with the reason.

Zone: pure. Tables and the functions that apply them; `ottla.client.settings` has the settings themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ottla.client.errors import ConfigError
from ottla.client.settings import ClientConfig
from ottla.spark.errors import BadOption

PREFIX: Final = "kafka."

_POSITION: Final = "the query's checkpoint keeps the position; choose the start with startingOffsets"

_REFUSED_ANYWHERE: Final[Mapping[str, str]] = {
    "interceptor.classes": "Java classes cannot run here; transform the DataFrame instead",
    "metric.reporters": "Java classes cannot run here; use Spark's query progress",
    "config.providers": "Java classes cannot run here; put the value into the option",
}
REFUSED_SOURCE: Final[Mapping[str, str]] = {
    **_REFUSED_ANYWHERE,
    "auto.offset.reset": _POSITION,
    "enable.auto.commit": "offsets are committed with batches: see commitOffsets; the checkpoint keeps the position",
    "key.deserializer": "keys are binary columns; cast or decode them in the DataFrame",
    "value.deserializer": "values are binary columns; cast or decode them in the DataFrame",
}
REFUSED_SINK: Final[Mapping[str, str]] = {
    **_REFUSED_ANYWHERE,
    "key.serializer": "the key column is binary or string; encode it in the DataFrame",
    "value.serializer": "the value column is binary or string; encode it in the DataFrame",
    "partitioner.class": "Java classes cannot run here; fill the column `partition` instead",
    "transactional.id": "the query and its partitions name the transactions; set transactionalIdPrefix for a prefix",
}
"""Keys that are refused, and why."""
_NO_EFFECT_ANYWHERE: Final[Mapping[str, str]] = {
    "metrics.num.samples": "Spark's query progress has the metrics",
    "metrics.recording.level": "Spark's query progress has the metrics",
    "metrics.sample.window.ms": "Spark's query progress has the metrics",
    "enable.metrics.push": "Spark's query progress has the metrics",
    "auto.include.jmx.reporter": "there is no JMX in Python",
    "connections.max.idle.ms": "a broken connection is opened again",
    "metadata.recovery.strategy": "the bootstrap servers are always tried again",
    "metadata.recovery.rebootstrap.trigger.ms": "the bootstrap servers are always tried again",
    "socket.connection.setup.timeout.max.ms": "setup has one limit, socket.connection.setup.timeout.ms",
    "security.providers": "there is no Java; TLS and SASL are Python's",
}
NO_EFFECT_SOURCE: Final[Mapping[str, str]] = {
    **_NO_EFFECT_ANYWHERE,
    "group.instance.id": "there is no consumer group",
    "group.protocol": "there is no consumer group",
    "group.remote.assignor": "there is no consumer group",
    "heartbeat.interval.ms": "there is no consumer group",
    "session.timeout.ms": "there is no consumer group",
    "partition.assignment.strategy": "Spark assigns the partitions",
    "auto.commit.interval.ms": "the checkpoint keeps the position",
    "max.poll.interval.ms": "there is no poll loop",
    "max.poll.records": "records are read by batches",
    "exclude.internal.topics": "a pattern never matches internal topics",
    "client.rack": "the source reads from leaders",
}
NO_EFFECT_SINK: Final[Mapping[str, str]] = {
    **_NO_EFFECT_ANYWHERE,
    "linger.ms": "a task sends full batches and the rest at its end",
    "buffer.memory": "a task holds the rows of one Arrow batch",
    "max.block.ms": "delivery.timeout.ms bounds each batch",
    "max.in.flight.requests.per.connection": "one batch per partition is on its way, so that order is kept",
    "retries": "delivery.timeout.ms bounds the attempts",
    "partitioner.adaptive.partitioning.enable": "rows without a key are spread evenly",
    "partitioner.availability.timeout.ms": "rows without a key are spread evenly",
    "metadata.max.idle.ms": "metadata lives as long as the task",
}
"""Keys of Kafka's consumer and producer that change nothing here, and why that is right."""
READING: Final[Mapping[str, str]] = {"isolation.level": "read_committed", "max.partition.fetch.bytes": "4194304"}
"""Defaults that differ from Kafka's, because they suit pipelines better (docs/pyspark.md)."""


def client_config(
    given: Mapping[str, str], refused: Mapping[str, str], no_effect: Mapping[str, str], defaults: Mapping[str, str]
) -> ClientConfig:
    """The client's settings from options without their prefix. Raises BadOption, naming the option."""
    if "bootstrap.servers" not in given:
        raise BadOption("kafka.bootstrap.servers", "is missing; name at least one broker as host:port")
    settings = dict(defaults)
    for key, value in given.items():
        if key in refused:
            raise BadOption(PREFIX + key, f"is not supported: {refused[key]}")
        if key not in no_effect:
            settings[key] = value
    try:
        return ClientConfig.from_mapping(settings)
    except ConfigError as error:
        key = next((key for key in given if key in error.cause), "bootstrap.servers")
        raise BadOption(PREFIX + key, f"is not accepted: {error}") from error


def sink_config(given: Mapping[str, str]) -> ClientConfig:
    """The client settings of a sink. Raises BadOption."""
    return client_config(given, REFUSED_SINK, NO_EFFECT_SINK, {})


def source_config(given: Mapping[str, str]) -> ClientConfig:
    """The client settings of a source; by default it reads only committed records. Raises BadOption."""
    return client_config(given, REFUSED_SOURCE, NO_EFFECT_SOURCE, READING)
