"""The options of the source: names, defaults, checks and errors as in Spark's own Kafka source.

Zone: pure. Turns text into values; `source/readers` and `lookup` apply them. Options are described in Spark's
"Structured Streaming + Kafka Integration Guide".
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.client.settings import ClientConfig
from ottla.spark.errors import BadOption
from ottla.spark.kafka_keys import PREFIX, source_config
from ottla.types import TopicPartition

LATEST: Final = -1
EARLIEST: Final = -2

Offsets = dict[TopicPartition, int]

COMMON: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "groupIdPrefix",
    "topicDelays",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
STREAM_ONLY: Final = (
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "commitOffsets",
    "checkTopicIds",
)
"""Checked in batch reads, but without effect, as in Spark's source: these have no triggers."""
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
REFUSED: Final[Mapping[str, str]] = {
    "exactlyOnce": "it is an option of the sink",
    "transactionalIdPrefix": "it is an option of the sink",
}
GROUP_PREFIX: Final = "spark-kafka-source"
_UNITS: Final = {"us": 0.001, "ms": 1, "s": 1e3, "m": 60e3, "min": 60e3, "h": 3600e3, "d": 86400e3}


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


class SourceOptions(NamedTuple):
    """All options of a source."""

    client: ClientConfig
    topics: Topics
    start: Position
    end: Position
    fail_on_data_loss: bool
    include_headers: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    poll_timeout_ms: int
    fetch_retries: int
    fetch_retry_interval_ms: int
    commit_group: str | None = None
    """The consumer group to which the query's progress is committed; None: no commits."""
    delays_ms: Mapping[str, int] = {}
    """Topics whose records are read only when they are this old, by their timestamps."""
    check_topic_ids: bool = False
    """Store topic ids in the checkpoint, which Spark's own source can then not continue."""


class ParsedOptions:
    """Options as a user wrote them; names are case-insensitive."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {key.lower(): value for key, value in options.items()}

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._options

    def text(self, name: str) -> str | None:
        """The value without surrounding space, None when the option is not set."""
        value = self._options.get(name.lower())
        return None if value is None else value.strip()

    def integer(self, name: str, default: int | None, least: int) -> int | None:
        """A whole number ≥ `least`, or `default`. Raises BadOption."""
        if (text := self.text(name)) is None:
            return default
        if not re.fullmatch(r"[+-]?\d{1,19}", text) or int(text) < least:
            raise BadOption(name, f"must be a whole number of at least {least}, not {text!r}")
        return int(text)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean. Raises BadOption for other text than true and false."""
        text = (self.text(name) or str(default)).lower()
        if text not in ("true", "false"):
            raise BadOption(name, f"must be true or false, not {text!r}")
        return text == "true"

    def kafka(self) -> dict[str, str]:
        """The options that start with `kafka.`, without that prefix."""
        return {key[len(PREFIX) :]: value for key, value in self._options.items() if key.startswith(PREFIX)}

    def refuse_misspelt(self, known: tuple[str, ...], refused: Mapping[str, str]) -> None:
        """Raise BadOption for a refused option, and for one that is nearly a known one.

        Spark passes on options of all kinds, so that an unknown option alone is not an error.
        `refused`: options that are not supported, and why.
        """
        for name, reason in refused.items():
            if name in self:
                raise BadOption(name, f"is not supported: {reason}")
        names = {name.lower(): name for name in known}
        for key in self._options:
            if key not in names and not key.startswith(PREFIX):
                close = difflib.get_close_matches(key, names, n=1, cutoff=0.85)
                if close:
                    raise BadOption(key, f"is not known; did you mean {names[close[0]]}?")


def source_options(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    """The options of a batch read or a streaming query. Raises BadOption."""
    given = ParsedOptions(options)
    given.refuse_misspelt((*COMMON, *STREAM_ONLY, *BATCH_ONLY), REFUSED)
    if streaming and (wrong := next((name for name in BATCH_ONLY if name in given), None)):
        raise BadOption(wrong, "is not valid in streaming queries: they have no end")
    least, most = given.integer("minOffsetsPerTrigger", None, 1), given.integer("maxOffsetsPerTrigger", None, 1)
    if least is not None and most is not None and least > most:
        raise BadOption("minOffsetsPerTrigger", f"({least}) must not exceed maxOffsetsPerTrigger ({most})")
    return SourceOptions(
        client=source_config(given.kafka()),
        topics=_parse_topics(given),
        start=_parse_start(given, streaming),
        end=_parse_end(given),
        fail_on_data_loss=given.flag("failOnDataLoss", True),
        include_headers=given.flag("includeHeaders", False),
        min_partitions=given.integer("minPartitions", None, 1),
        max_records_per_partition=given.integer("maxRecordsPerPartition", None, 1),
        max_offsets_per_trigger=most,
        min_offsets_per_trigger=least,
        max_trigger_delay_ms=_duration_option(given, "maxTriggerDelay", "15m"),
        poll_timeout_ms=given.integer("kafkaConsumer.pollTimeoutMs", 120_000, 1) or 0,
        fetch_retries=given.integer("fetchOffset.numRetries", 3, 0) or 0,
        fetch_retry_interval_ms=given.integer("fetchOffset.retryIntervalMs", 10, 0) or 0,
        commit_group=_group_name(given) if given.flag("commitOffsets", "kafka.group.id" in given) else None,
        delays_ms=_parse_delays(given),
        check_topic_ids=given.flag("checkTopicIds", False),
    )


def _group_name(given: ParsedOptions) -> str:
    """`kafka.group.id`, else `groupIdPrefix` with a hash of the topics: the same name after every restart."""
    if (named := given.text("kafka.group.id")) is not None:
        if not named:
            raise BadOption("kafka.group.id", "must not be empty")
        return named
    what = "\n".join(f"{name}={given.text(name)}" for name in ("subscribe", "subscribePattern", "assign"))
    mark = hashlib.sha256(what.encode()).hexdigest()[:8]
    return f"{given.text('groupIdPrefix') or GROUP_PREFIX}-{mark}"


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
    strategy = (given.text("startingOffsetsByTimestampStrategy") or "error").lower()
    if strategy not in ("error", "latest"):
        raise BadOption("startingOffsetsByTimestampStrategy", f"must be error or latest, not {strategy!r}")
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
    if (moment := given.integer(f"{side}Timestamp", None, 0)) is not None:
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


def partition_numbers(name: str, text: str, least: int) -> Offsets:
    """Numbers per partition from JSON like {"topic":{"0":23,"1":-1}}. Raises BadOption."""
    example = f'must be JSON like {{"topicA":{{"0":23,"1":{max(least, LATEST)}}}}}, not {text!r}'
    try:
        found = json.loads(text)
        pairs = {TopicPartition(t, int(p)): number for t, parts in found.items() for p, number in parts.items()}
    except (ValueError, AttributeError):
        raise BadOption(name, example) from None
    if not pairs or not all(type(number) is int and number >= least for number in pairs.values()):
        raise BadOption(name, example)
    return pairs


def _duration_option(given: ParsedOptions, name: str, default: str) -> int:
    return duration_ms(name, given.text(name) or default)


def duration_ms(name: str, text: str) -> int:
    """Milliseconds of a duration such as 500, 500ms, 30s, 15m, 2h, 1d. `name`: the option's, for BadOption."""
    match = re.fullmatch(r"(\d{1,15})\s*(us|ms|s|m|min|h|d)?", text.strip().lower())
    if match is None:
        raise BadOption(name, f"must be a duration such as 30s or 15m, not {text!r}")
    return int(int(match[1]) * _UNITS[match[2] or "ms"])
