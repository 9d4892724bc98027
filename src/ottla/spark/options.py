"""The options of the source: one row for each, and the values that are computed from several.

Zone: pure. Turns text into values; `source/readers` and `lookup` apply them. Names, defaults and checks are those of
Spark's own Kafka source, which its "Structured Streaming + Kafka Integration Guide" describes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ottla.client.settings import ClientConfig
from ottla.config.options import (
    BOOLEAN,
    DURATION,
    INTEGER,
    JSON,
    LIST,
    TEXT,
    Bounds,
    Option,
    option,
    option_table,
    options_of,
)
from ottla.spark.errors import BadOption
from ottla.spark.kafka_keys import source_config
from ottla.spark.option_values import EARLIEST, LATEST, Offsets, ParsedOptions, duration_ms, partition_numbers
from ottla.types import TopicPartition

STREAMS: Final = "streaming queries"
"""The scope of options that are checked in batch reads, but have no effect there: these have no triggers."""
BATCHES: Final = "batch reads"
REFUSED: Final[Mapping[str, str]] = {
    "exactlyOnce": "it is an option of the sink",
    "transactionalIdPrefix": "it is an option of the sink",
}
GROUP_PREFIX: Final = "spark-kafka-source"


class Topics(NamedTuple):
    """The topics to read: exactly one of the three fields is set."""

    subscribe: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assign: tuple[TopicPartition, ...] = ()


class Position(NamedTuple):
    """A start or an end. Exactly one of `everywhere` (LATEST, EARLIEST), `offsets`, `timestamp`, `timestamps`, `group`
    is set."""

    everywhere: int | None = None
    offsets: Offsets | None = None
    """May hold LATEST and EARLIEST."""
    timestamp: int | None = None
    timestamps: Offsets | None = None
    or_latest: bool = False
    """A timestamp after the last record means the end of the partition; otherwise it is an error."""
    group: str | None = None
    """Start at this group's committed offsets; partitions without one start at their beginning."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """All options of a source: first the values that are computed from several options, then one field per row."""

    client: ClientConfig
    topics: Topics
    start: Position
    end: Position
    commit_group: str | None = None
    """The consumer group to which the query's progress is committed; None: no commits."""
    delays_ms: Mapping[str, int] = field(default_factory=dict)
    """Topics whose records are read only when they are this old, by their timestamps."""
    delays_at_ms: int | None = option(
        "topicDelaysAt",
        INTEGER,
        None,
        "The time for which `topicDelays` are applied, in milliseconds since 1970: for tests, and to repeat a run.",
        Bounds(0),
        default_text="the machine's clock",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        BOOLEAN,
        True,
        "Whether the query stops when records are gone before they were read; a gap that compaction left does not "
        "count.",
    )
    include_headers: bool = option("includeHeaders", BOOLEAN, False, "Whether rows have the column `headers`.")
    min_partitions: int | None = option(
        "minPartitions", INTEGER, None, "Split what a batch reads into at least this many tasks.", Bounds(1)
    )
    max_records_per_partition: int | None = option(
        "maxRecordsPerPartition",
        INTEGER,
        None,
        "Split what a batch reads into tasks of at most this many records.",
        Bounds(1),
    )
    max_records_on_driver: int = option(
        "maxRecordsOnDriver",
        INTEGER,
        0,
        "A batch of at most this many offsets is read by the driver while it plans the batch, and one task gets all of "
        "it, without a Python worker that reads. 0: none. The sink `ottla` then writes the batch as a whole.",
        Bounds(0, 100_000),
        scope=STREAMS,
    )
    max_offsets_per_trigger: int | None = option(
        "maxOffsetsPerTrigger",
        INTEGER,
        None,
        "The most offsets of a batch, shared out by the lag of the partitions.",
        Bounds(1),
        scope=STREAMS,
    )
    min_offsets_per_trigger: int | None = option(
        "minOffsetsPerTrigger",
        INTEGER,
        None,
        "A batch waits for this many offsets, but not longer than `maxTriggerDelay`.",
        Bounds(1),
        scope=STREAMS,
    )
    max_trigger_delay_ms: int = option(
        "maxTriggerDelay",
        DURATION,
        900_000,
        "How long a batch waits for `minOffsetsPerTrigger`.",
        scope=STREAMS,
        default_text="`15m`",
    )
    poll_timeout_ms: int = option(
        "kafkaConsumer.pollTimeoutMs",
        INTEGER,
        120_000,
        "How long a task waits for a record that must be there, in milliseconds.",
        Bounds(1),
    )
    fetch_retries: int = option(
        "fetchOffset.numRetries", INTEGER, 3, "How often a failed request about offsets is repeated.", Bounds(0)
    )
    fetch_retry_interval_ms: int = option(
        "fetchOffset.retryIntervalMs", INTEGER, 10, "The wait before such a repetition, in milliseconds.", Bounds(0)
    )
    check_topic_ids: bool = option(
        "checkTopicIds",
        BOOLEAN,
        False,
        "Whether the ids of topics are kept in the checkpoint, so that a restart notices a topic that was created "
        "again, or another cluster. Spark's own source cannot continue such a checkpoint.",
        scope=STREAMS,
    )


_TOPICS: Final = "Exactly one of `subscribe`, `subscribePattern` and `assign` must be set."
FIELD_OPTIONS: Final[Mapping[str, Option]] = options_of(SourceOptions)
"""The rows that are a field."""
SOURCE_OPTIONS: Final[Mapping[str, Option]] = {
    **option_table(
        Option("subscribe", LIST, None, f"Topics to read, with commas between them. {_TOPICS}"),
        Option(
            "subscribePattern",
            TEXT,
            None,
            f"A regular expression of Python for the whole names of topics to read. {_TOPICS}",
        ),
        Option("assign", JSON, None, f'Partitions to read, as `{{"topic":[0,1]}}`. {_TOPICS}'),
        Option(
            "startingOffsets",
            TEXT,
            None,
            "Where the first batch starts: `earliest`, `latest`, JSON with an offset of each partition "
            '(`{"topic":{"0":23,"1":-2}}`; -2 is the earliest, -1 the latest), or `group`: the committed offsets of '
            "`kafka.group.id`, and the beginning of partitions without one.",
            default_text="`latest` in streams, `earliest` in batches",
        ),
        Option(
            "startingTimestamp",
            INTEGER,
            None,
            "Start at the first records with at least this timestamp (milliseconds). Overrides "
            "`startingOffsetsByTimestamp`.",
            Bounds(0),
        ),
        Option(
            "startingOffsetsByTimestamp",
            JSON,
            None,
            'The same with a timestamp per partition, as `{"topic":{"0":1000}}`. Overrides `startingOffsets`.',
        ),
        Option(
            "startingOffsetsByTimestampStrategy",
            TEXT,
            "error",
            "What happens where no record is that young: an error, or a start at the end.",
            ("error", "latest"),
        ),
        Option(
            "endingOffsets",
            TEXT,
            "latest",
            "Where the read ends: `latest`, or JSON as of `startingOffsets` (-1 is the latest).",
            scope=BATCHES,
        ),
        Option(
            "endingTimestamp",
            INTEGER,
            None,
            "End before the first records with at least this timestamp. Overrides `endingOffsetsByTimestamp`.",
            Bounds(0),
            scope=BATCHES,
        ),
        Option(
            "endingOffsetsByTimestamp",
            JSON,
            None,
            "The same with a timestamp per partition. Overrides `endingOffsets`.",
            scope=BATCHES,
        ),
        Option(
            "kafka.group.id",
            TEXT,
            None,
            "The consumer group to which a stream commits its position, and of `startingOffsets=group`.",
        ),
        Option(
            "groupIdPrefix",
            TEXT,
            GROUP_PREFIX,
            "Without `kafka.group.id`, the group is this, `-`, and eight digits of a hash of the topics to read.",
        ),
        Option(
            "commitOffsets",
            BOOLEAN,
            None,
            "Whether the offsets of each finished batch are committed for the group, so that its lag is known.",
            scope=STREAMS,
            default_text="`true` with `kafka.group.id`, else `false`",
        ),
        Option(
            "topicDelays",
            JSON,
            None,
            'Records of these topics are read when their timestamps are this old, as `{"orders.retry":"30s"}`.',
        ),
    ),
    **FIELD_OPTIONS,
}


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a batch read or a streaming query. Raises BadOption."""
    given = ParsedOptions(options, SOURCE_OPTIONS)
    given.refuse_misspelt(REFUSED)
    ends = (name for name, row in SOURCE_OPTIONS.items() if row.scope == BATCHES and name in given)
    if streaming and (wrong := next(ends, None)):
        raise BadOption(wrong, "is not valid in streaming queries: they have no end")
    found = SourceOptions(
        source_config(given.kafka()),
        _parse_topics(given),
        _parse_start(given, streaming),
        _parse_end(given),
        _commit_group(given),
        _parse_delays(given),
        **given.fields(FIELD_OPTIONS),
    )
    least, most = found.min_offsets_per_trigger, found.max_offsets_per_trigger
    if least is not None and most is not None and least > most:
        raise BadOption("minOffsetsPerTrigger", f"({least}) must not exceed maxOffsetsPerTrigger ({most})")
    return found


def _commit_group(given: ParsedOptions) -> str | None:
    wanted = given.value("commitOffsets")
    is_on = "kafka.group.id" in given if wanted is None else wanted
    return _group_name(given) if is_on else None


def _group_name(given: ParsedOptions) -> str:
    """`kafka.group.id`, else `groupIdPrefix` with a hash of the topics: the same name after every restart."""
    if (named := given.text("kafka.group.id")) is not None:
        if not named:
            raise BadOption("kafka.group.id", "must not be empty")
        return named
    what = "\n".join(f"{name}={given.text(name)}" for name in ("subscribe", "subscribePattern", "assign"))
    mark = hashlib.sha256(what.encode()).hexdigest()[:8]
    return f"{given.value('groupIdPrefix')}-{mark}"


def _parse_delays(given: ParsedOptions) -> Mapping[str, int]:
    """Milliseconds by topic, from JSON like {"orders.retry": "30s"}."""
    text = given.text("topicDelays")
    if not text:
        return {}
    wrong = BadOption("topicDelays", f'must be JSON like {{"orders.retry":"30s"}}, not {text!r}')
    try:
        found = json.loads(text)
        return {topic: duration_ms("topicDelays", str(delay)) for topic, delay in found.items()}
    except (ValueError, AttributeError) as error:
        raise error if isinstance(error, BadOption) else wrong from None


def _parse_topics(given: ParsedOptions) -> Topics:
    named = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(named) != 1:
        what = f"and {' and '.join(named[1:])} exclude each other" if named else "is missing"
        raise BadOption(named[0] if named else "subscribe", f"{what}: set one of subscribe, subscribePattern, assign")
    text = given.text(named[0]) or ""
    if named[0] == "assign":
        return Topics(assign=_parse_assignment(text))
    if named[0] == "subscribePattern":
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise BadOption("subscribePattern", f"is not a regular expression of Python: {error}") from error
        if not text:
            raise BadOption("subscribePattern", "must not be empty")
        return Topics(pattern=pattern)
    topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not topics:
        raise BadOption("subscribe", "must name at least one topic")
    return Topics(subscribe=topics)


def _parse_assignment(text: str) -> tuple[TopicPartition, ...]:
    wrong = BadOption("assign", f'must be JSON like {{"topic":[0,1]}}, not {text!r}')
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not all(isinstance(parts, list) for parts in found.values()):
        raise wrong
    pairs = [(topic, part) for topic, parts in found.items() for part in parts]
    if not pairs or not all(type(part) is int and part >= 0 for _, part in pairs):
        raise wrong
    return tuple(sorted({TopicPartition(topic, part) for topic, part in pairs}))


def _parse_start(given: ParsedOptions, streaming: bool) -> Position:
    strategy = given.value("startingOffsetsByTimestampStrategy")
    default = LATEST if streaming else EARLIEST
    start = _parse_position(given, "starting", default, or_latest=strategy == "latest")
    if not streaming and (start.everywhere == LATEST or LATEST in (start.offsets or {}).values()):
        raise BadOption("startingOffsets", "must not be latest (-1) in batch reads: there would be nothing to read")
    return start


def _parse_end(given: ParsedOptions) -> Position:
    end = _parse_position(given, "ending", LATEST, or_latest=True)
    if end.everywhere == EARLIEST or EARLIEST in (end.offsets or {}).values():
        raise BadOption("endingOffsets", "must not be earliest (-2): there would be nothing to read")
    return end


def _parse_position(given: ParsedOptions, side: str, default: int, *, or_latest: bool) -> Position:
    """A position; `…Timestamp` overrides `…OffsetsByTimestamp`, which overrides `…Offsets`."""
    if (moment := given.value(f"{side}Timestamp")) is not None:
        return Position(timestamp=moment, or_latest=or_latest)
    if text := given.text(f"{side}OffsetsByTimestamp"):
        return Position(timestamps=partition_numbers(f"{side}OffsetsByTimestamp", text, 0), or_latest=or_latest)
    text = given.text(f"{side}Offsets") or ""
    if not text:
        return Position(everywhere=default)
    if text.lower() in ("earliest", "latest"):
        return Position(everywhere=EARLIEST if text.lower() == "earliest" else LATEST)
    if text.lower() == "group":
        return _group_position(given, side)
    return Position(offsets=partition_numbers(f"{side}Offsets", text, EARLIEST))


def _group_position(given: ParsedOptions, side: str) -> Position:
    if side == "ending":
        raise BadOption("endingOffsets", "cannot be 'group': a group's offsets are a start, not an end")
    if "kafka.group.id" not in given and "groupIdPrefix" not in given:
        raise BadOption("startingOffsets", "is 'group', but no group is named: set kafka.group.id")
    return Position(group=_group_name(given))
