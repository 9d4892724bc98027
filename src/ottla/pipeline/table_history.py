"""A topic with its history: the rows that a table has of it, and then the records that only the topic has.

Zone: real. The table contains the offsets up to which it has the topic, so that no record is left out or there twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.types import EARLIEST, LATEST
from ottla.client.cluster import Cluster
from ottla.client.errors import values_of
from ottla.pipeline.errors import BadPipeline
from ottla.pipeline.table_output.secrets import open_secrets
from ottla.pipeline.table_output.targets import TableTarget
from ottla.spark.kafka_keys import PREFIX, source_config
from ottla.tables.history.history import History, open_history
from ottla.tables.offsets import TableOffsets, check_offsets
from ottla.types import TopicPartition

_COLUMNS: Final = ("key", "value", "headers", "timestamp", "partition", "offset")
_SCHEMA: Final = (
    "key BINARY, value BINARY, headers ARRAY<STRUCT<key: STRING, value: BINARY>>, timestamp TIMESTAMP, partition INT, "
    "offset BIGINT"
)
_TAKEN: Final = frozenset(("subscribe", "assign", "subscribepattern", "startingoffsets", "endingoffsets"))
_BEGINNING: Final = -2
"""Kafka's number for the first offset of a partition."""


def topic_with_history(spark: Any, topic: str, table: TableTarget, options: Mapping[str, str]) -> Any:
    """A DataFrame with every record of a topic once: first from the table, then from the topic, up to its present end.

    table: what `ottla table copy` wrote, with keys and values as bytes. options: of the source; it needs
    `kafka.bootstrap.servers`. Columns: key, value, headers, timestamp, partition, offset; an offset is there once in
    each partition. Records of aborted transactions are left out.
    Raises TableError, BadPipeline, BadOption, ClientError.
    """
    _check_options(options)
    history = _open_table(topic, table)
    wanted = {**options, "subscribe": topic, "startingOffsets": _starts(topic, history, options)}
    wanted |= {"endingOffsets": "latest", "includeHeaders": "true", f"{PREFIX}isolation.level": "read_committed"}
    tail = spark.read.format("ottla").options(**wanted).load().select(*_COLUMNS)
    if not history.files:
        return tail
    uris = [each.replace("s3://", "s3a://", 1) for each in history.files]  # Hadoop's name for the same store
    return spark.read.schema(_SCHEMA).parquet(*uris).select(*_COLUMNS).union(tail)


def offsets_after_history(topic: str, table: TableTarget, options: Mapping[str, str]) -> str:
    """The option `startingOffsets` of a stream that begins with the first records that the table does not have.

    The arguments are those of `topic_with_history`. Raises TableError, BadPipeline, BadOption, ClientError.
    """
    _check_options(options)
    return _starts(topic, _open_table(topic, table), options)


def _check_options(options: Mapping[str, str]) -> None:
    if taken := sorted(key for key in options if key.lower() in _TAKEN):
        raise BadPipeline(f"the option {taken[0]} is set by the topic and by the table: leave it out")


def _open_table(topic: str, table: TableTarget) -> History:
    catalog = {"catalog": table.catalog} if table.catalog else {}
    with open_secrets(table) as opened:
        return open_history(table.kind, table.location, topic, properties=opened.properties, **catalog)


def _starts(topic: str, history: History, options: Mapping[str, str]) -> str:
    """Where the topic continues the table, after a check that it does."""
    given = {key[len(PREFIX) :]: value for key, value in options.items() if key.lower().startswith(PREFIX)}
    with Cluster(source_config(given)) as cluster:
        view, saved = cluster.topic(topic), history.offsets or TableOffsets("", {})
        if history.offsets is not None:
            check_offsets(topic, saved, view.topic_id.hex(), _log_of(cluster, topic, sorted(view.partitions)))
    starts = {str(number): saved.next_offsets.get(number, _BEGINNING) for number in sorted(view.partitions)}
    return json.dumps({topic: starts})


def _log_of(cluster: Cluster, topic: str, numbers: list[int]) -> dict[int, tuple[int, int]]:
    """First and end offset of each partition."""
    admin, partitions = Admin(cluster), [TopicPartition(topic, number) for number in numbers]
    first, end = (values_of(admin.list_offsets(dict.fromkeys(partitions, spec))) for spec in (EARLIEST, LATEST))
    return {tp.partition: (first[tp].offset, end[tp].offset) for tp in partitions}
