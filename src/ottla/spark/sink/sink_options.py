"""The options and the schema of the sink, as in Spark's own Kafka sink, and the guarantee that they select.

Zone: pure. Turns text and schemas into values; rows are checked when they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, Final, NamedTuple

from ottla.client.columns.columnar import BATCH_BYTES
from ottla.client.settings import ClientConfig
from ottla.spark.errors import BadOption, BadRows
from ottla.spark.kafka_keys import sink_config
from ottla.spark.options import ParsedOptions
from ottla.spark.sink.exactly_once import MARKERS

NAMES: Final = (
    "topic",
    "includeHeaders",
    "exactlyOnce",
    "offsetsInTransaction",
    "sourceGroup",
    "transactionalIdPrefix",
    "sink",
    "jobId",
    "stableRows",
)
MODES: Final = ("auto", "partition", "batch", "off")
OFFSETS: Final = ("auto", "true", "false")
PREFIX: Final = "ottla-"
DEFAULT_SINK: Final = "sink"
_LONGEST_NAME: Final = 200
_TRANSACTION_MS: Final = 60_000
_LEVELS: Final = {"gzip": (-1, 9), "lz4": (1, 17), "zstd": (-131072, 22)}
_OVERHEAD: Final = 1024
"""Upper bound of the bytes of a produce request beside its batch."""
_TYPES: Final = {
    "topic": ("string",),
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
}


class Scope(Enum):
    """The unit that is written atomically."""

    PARTITION = "partition"
    """The rows of one partition of the DataFrame: one transaction per task."""
    BATCH = "batch"
    """The whole batch: it has one partition, and the driver ends the transaction."""


class ExactlyOnceOptions(NamedTuple):
    """The options about writing exactly once."""

    mode: str
    """One of MODES, as given."""
    prefix: str
    sink: str | None
    """Distinguishes several writes of one batch; None when it was not given."""
    job: str | None
    """The name of a batch write; None when it has none."""
    timeout_ms: int
    """`transaction.timeout.ms`."""
    offsets: str = "auto"
    """Whether the offsets of the source's group are committed in the transaction; one of OFFSETS, as given."""
    group: str | None = None
    """The group of the source, if it was given."""
    stable_rows: bool = False
    """The user guarantees that a batch that is run again has the same rows in the same partitions."""


class SinkOptions(NamedTuple):
    """All options of a sink."""

    client: ClientConfig
    topic: str | None
    """Overrides the column `topic`."""
    level: int | None
    """The level of compression; None for the codec's default."""
    batch_bytes: int
    ignore_keys: bool
    """Choose partitions of rows with a key as of rows without one (partitioner.ignore.keys)."""
    once: ExactlyOnceOptions


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a sink. Raises BadOption."""
    given = ParsedOptions(options)
    given.refuse_misspelt(NAMES, {})
    kafka = given.kafka()
    timeout = kafka.pop("transaction.timeout.ms", None)
    levels = {codec: _compression_level(kafka.pop(f"compression.{codec}.level", None), codec) for codec in _LEVELS}
    ignore_keys = ParsedOptions({"kafka.partitioner.ignore.keys": kafka.pop("partitioner.ignore.keys", "false")})
    client = sink_config(kafka)
    largest = max(1, client.max_request_size - _OVERHEAD)
    wanted = max(1, client.batch_size) if "batch.size" in kafka else BATCH_BYTES
    topic = given.text("topic")
    if topic == "":
        raise BadOption("topic", "must not be empty")
    return SinkOptions(
        client,
        topic,
        levels.get(client.compression_type),
        min(wanted, largest),
        ignore_keys.flag("kafka.partitioner.ignore.keys", False),
        _exactly_once_options(given, timeout),
    )


def _exactly_once_options(given: ParsedOptions, timeout: str | None) -> ExactlyOnceOptions:
    mode = (given.text("exactlyOnce") or "auto").lower()
    if mode not in MODES:
        raise BadOption("exactlyOnce", f"must be one of {', '.join(MODES)}, not {mode!r}")
    name = "kafka.transaction.timeout.ms"
    patience = ParsedOptions({} if timeout is None else {name: timeout}).integer(name, _TRANSACTION_MS, 1)
    prefix = _name_option(given, "transactionalIdPrefix", r".*")
    return ExactlyOnceOptions(
        mode,
        PREFIX if prefix is None else prefix,
        _name_option(given, "sink", r"[A-Za-z0-9._]+"),  # no '-', which separates the parts of a transactional id
        _name_option(given, "jobId", r"\S+"),
        patience or _TRANSACTION_MS,
        _offsets_mode(given),
        _source_group(given),
        given.flag("stableRows", False),
    )


def _source_group(given: ParsedOptions) -> str | None:
    if (text := given.text("sourceGroup")) == "":
        raise BadOption("sourceGroup", "must not be empty")
    return text


def _offsets_mode(given: ParsedOptions) -> str:
    wanted = (given.text("offsetsInTransaction") or "auto").lower()
    if wanted not in OFFSETS:
        raise BadOption("offsetsInTransaction", f"must be one of {', '.join(OFFSETS)}, not {wanted!r}")
    return wanted


def _name_option(given: ParsedOptions, option: str, pattern: str) -> str | None:
    text = given.text(option)
    if text is not None and (len(text) > _LONGEST_NAME or not re.fullmatch(pattern, text)):
        allowed = {r".*": "text", r"\S+": "text without spaces"}.get(pattern, "letters, digits, '.' and '_'")
        raise BadOption(option, f"must be {allowed}, of at most {_LONGEST_NAME} characters, not {text[:50]!r}")
    return text


def stream_scope(options: SinkOptions) -> Scope | None:
    """The unit in which a streaming query writes exactly once; None: at least once. Raises BadOption."""
    once = options.once
    if once.job is not None:
        raise BadOption("jobId", "is for df.write: a streaming query is identified by its checkpoint")
    if once.mode == "off":
        if once.offsets == "true":
            raise BadOption("offsetsInTransaction", "needs a transaction, and exactlyOnce=off has none")
        return None
    return _check_transactional(options, Scope.BATCH if once.mode == "batch" else Scope.PARTITION)


def batch_scope(options: SinkOptions) -> Scope | None:
    """The same for `df.write`, which needs a name that identifies the write when it is run again. Raises BadOption."""
    # 1. Offsets of the source: a write of df.write need not contain all rows of a batch of the source.
    # 2. No name and no mode: at least once, as Spark's own sink. 3. At least once is wanted.
    # 4. Exactly once is wanted: it needs a name, the job's or that of the write within foreachBatch.
    once = options.once
    if once.offsets == "true":
        raise BadOption(
            "offsetsInTransaction", "is for writeStream: df.write need not write all rows of a batch of the source"
        )
    if once.job is None and once.mode == "auto":
        if once.sink is not None:
            raise BadOption("sink", "has no effect without jobId or exactlyOnce: set jobId, or use write_batch")
        return None
    if once.mode == "off":
        if once.job is not None:
            raise BadOption("jobId", "has no effect with exactlyOnce=off: at least once, every run writes all rows")
        return None
    if once.job is None and once.sink is None:
        raise BadOption(
            "sink",
            "is missing: exactly once needs jobId, or within foreachBatch a name for each write (write_batch)",
        )
    return _check_transactional(options, Scope.PARTITION if once.mode == "partition" else Scope.BATCH)


def _check_transactional(options: SinkOptions, scope: Scope) -> Scope:
    if not options.client.enable_idempotence:
        raise BadOption("kafka.acks", "and kafka.enable.idempotence must keep their defaults, or set exactlyOnce=off")
    if options.topic == MARKERS:
        raise BadOption("topic", f"must not be {MARKERS}: the sink commits its markers there")
    return scope


def _compression_level(text: str | None, codec: str) -> int | None:
    name = f"kafka.compression.{codec}.level"
    low, high = _LEVELS[codec]
    level = ParsedOptions({} if text is None else {name: text}).integer(name, None, low)
    if level is not None and level > high:
        raise BadOption(name, f"must be a whole number of at most {high}, not {level}")
    return level


def check_schema(schema: Any, topic: str | None) -> None:
    """Check that rows of this schema can be written. `schema`: Spark's StructType. Raises BadRows."""
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    if "value" not in types:
        raise BadRows("the column `value` is missing: select what is to be written as `value`")
    if topic is None and "topic" not in types:
        raise BadRows("no topic: set the option topic, or add a column `topic`")
    for name, allowed in _TYPES.items():
        if name in types and types[name] not in allowed:
            raise BadRows(f"the column `{name}` must be {' or '.join(allowed)}, not {types[name]}")
