"""The options and the schema of the sink, as in Spark's own Kafka sink, and the guarantee that they select.

Zone: pure. Turns text and schemas into values; rows are checked when they are written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from ottla.client.columns.columnar import BATCH_BYTES
from ottla.client.producer.config import PRODUCER_OPTIONS
from ottla.client.settings import ClientConfig
from ottla.config.options import BOOLEAN, INT_MAX, INTEGER, TEXT, Bounds, Option, option, option_table, options_of
from ottla.spark.errors import BadOption, BadRows
from ottla.spark.kafka_keys import sink_config
from ottla.spark.option_values import ParsedOptions
from ottla.spark.sink.exactly_once import MARKERS, RUNNING

PREFIX: Final = "ottla-"
DEFAULT_SINK: Final = "sink"
_LONGEST_NAME: Final = 200
_LEVELED: Final = ("gzip", "lz4", "zstd")
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
    """The whole batch: one transaction per task, and the driver decides about all of them and ends them."""


@dataclass(frozen=True, slots=True)
class ExactlyOnceOptions:
    """The options about writing exactly once."""

    mode: str = option(
        "exactlyOnce",
        TEXT,
        "auto",
        "The unit that is written as a whole or not at all: `partition` or `batch`; `off` is at least once. `auto` is "
        "`partition` in streams whose tasks read the rows that they write, else `batch`, and may be both in a batch of "
        "which only some tasks do; in `df.write` it is `batch` with `jobId`, else `off`.",
        ("auto", "partition", "batch", "off"),
    )
    prefix: str = option(
        "transactionalIdPrefix",
        TEXT,
        PREFIX,
        "The beginning of the names of transactional ids and groups, for ACLs; at most 200 characters.",
    )
    sink: str | None = option(
        "sink",
        TEXT,
        None,
        "Distinguishes several writes of one batch within foreachBatch, where it must be given: letters, digits, `.` "
        "and `_`, at most 200.",
        default_text=f"`{DEFAULT_SINK}` in streams",
    )
    job: str | None = option(
        "jobId",
        TEXT,
        None,
        "The name under which a `df.write` is done once, however often it is run: at most 200 characters without "
        "spaces.",
        scope="df.write",
    )
    running: str | None = option(
        "runningBatch",
        TEXT,
        None,
        "Set by `write_batch` in a session of Spark Connect, where Spark does not name the batch to tasks: the ids of "
        "the query and of its run, and the number of the batch, with `/` between them.",
        scope="df.write",
    )
    timeout_ms: int = option(
        "kafka.transaction.timeout.ms",
        INTEGER,
        60_000,
        "How long a transaction may be open: from the first 32 MiB of a task, or its end, to its commit, which with "
        "`exactlyOnce=batch` comes after the last task.",
        Bounds(1, INT_MAX),
    )
    offsets: str = option(
        "offsetsInTransaction",
        TEXT,
        "auto",
        "Whether the offsets of the source's group are committed in the transaction of the rows: `auto` where that is "
        "possible, `true` (or an error), or `false`.",
        ("auto", "true", "false"),
        scope="writeStream",
    )
    group: str | None = option(
        "sourceGroup",
        TEXT,
        None,
        "The group of the source (its `kafka.group.id`), which `exactlyOnce=batch` needs for that.",
        scope="writeStream",
    )
    output: str | None = option(
        "outputId",
        TEXT,
        None,
        "A name of the output, which then belongs to one checkpoint: a query with another one (a checkpoint that was "
        "deleted, a full refresh of a declarative pipeline) would write all rows again, and is refused with "
        "`OtherCheckpoint`. Letters, digits, `.` and `_`, at most 200.",
        default_text="no check",
        scope="writeStream",
    )
    stable_rows: bool = option(
        "stableRows",
        BOOLEAN,
        False,
        "`true`: you guarantee that a batch that is run again has the same rows in the same partitions, and the sink "
        "does not check it.",
    )


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a sink: first the values that are computed from several options, then one field per row."""

    client: ClientConfig
    level: int | None
    """The level of compression; None for the codec's default."""
    batch_bytes: int
    once: ExactlyOnceOptions
    topic: str | None = option(
        "topic", TEXT, None, "The topic of all rows; overrides the column `topic`, which is needed without it."
    )
    ignore_keys: bool = option(
        "kafka.partitioner.ignore.keys",
        BOOLEAN,
        False,
        "Whether the partition of a row with a key is chosen as that of a row without one.",
    )


def _level_name(codec: str) -> str:
    return f"kafka.compression.{codec}.level"


_FIELDS: Final[Mapping[str, Option]] = options_of(SinkOptions)
_ONCE_FIELDS: Final[Mapping[str, Option]] = options_of(ExactlyOnceOptions)
SINK_OPTIONS: Final[Mapping[str, Option]] = {
    **_FIELDS,
    **_ONCE_FIELDS,
    **option_table(
        Option(
            "includeHeaders",
            BOOLEAN,
            None,
            "Spark's option for headers.",
            unused="headers are written where the column `headers` exists",
        ),
        *(
            PRODUCER_OPTIONS[f"compression.{codec}.level"]._replace(
                name=_level_name(codec), default=None, default_text="the codec's own", attribute=""
            )
            for codec in _LEVELED
        ),
    ),
}
"""The rows of the sink by name."""


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Parse the options of a sink. Raises BadOption."""
    given = ParsedOptions(options, SINK_OPTIONS)
    given.refuse_misspelt({})
    kafka = given.kafka()
    client = sink_config(kafka)
    levels = {codec: given.value(_level_name(codec)) for codec in _LEVELED}
    largest = max(1, client.max_request_size - _OVERHEAD)
    wanted = max(1, client.batch_size) if "batch.size" in kafka else BATCH_BYTES
    for name in ("topic", "sourceGroup"):
        if given.text(name) == "":
            raise BadOption(name, "must not be empty")
    return SinkOptions(
        client,
        levels.get(client.compression_type),
        min(wanted, largest),
        _exactly_once_options(given),
        **given.fields(_FIELDS),
    )


def _exactly_once_options(given: ParsedOptions) -> ExactlyOnceOptions:
    # No '-' in the name of a sink, because it separates the parts of a transactional id.
    patterns = {
        "transactionalIdPrefix": r".*",
        "sink": r"[A-Za-z0-9._]+",
        "outputId": r"[A-Za-z0-9._]+",
        "jobId": r"\S+",
        "runningBatch": RUNNING,
    }
    for name, pattern in patterns.items():
        _check_name(given, name, pattern)
    found = given.fields(_ONCE_FIELDS)
    # An empty prefix is a prefix, where an empty text otherwise means the default.
    return ExactlyOnceOptions(**{**found, **({"prefix": ""} if given.text("transactionalIdPrefix") == "" else {})})


def _check_name(given: ParsedOptions, option: str, pattern: str) -> None:
    text = given.text(option)
    if text is not None and (len(text) > _LONGEST_NAME or not re.fullmatch(pattern, text)):
        allowed = {r".*": "text", r"\S+": "text without spaces", RUNNING: "query/run/batch"}.get(
            pattern, "letters, digits, '.' and '_'"
        )
        raise BadOption(option, f"must be {allowed}, of at most {_LONGEST_NAME} characters, not {text[:50]!r}")


def stream_scope(options: SinkOptions) -> Scope | None:
    """The unit in which a streaming query writes exactly once; None: at least once. Raises BadOption."""
    once = options.once
    if once.output is not None and once.mode == "off":
        raise BadOption("outputId", "needs exactly once, and exactlyOnce=off writes at least once")
    if once.job is not None:
        raise BadOption("jobId", "is for df.write: a streaming query is identified by its checkpoint")
    if once.running is not None:
        raise BadOption("runningBatch", "is for write_batch: Spark names the batch of a streaming query")
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
    if once.output is not None:
        raise BadOption("outputId", "is for writeStream: a df.write is done once by its jobId")
    if once.offsets == "true":
        raise BadOption(
            "offsetsInTransaction", "is for writeStream: df.write need not write all rows of a batch of the source"
        )
    if once.running is not None and (once.job is not None or once.sink is None):
        raise BadOption("runningBatch", "is set by write_batch, with a name for the write: do not set it yourself")
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
