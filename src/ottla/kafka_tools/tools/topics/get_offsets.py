"""kafka-get-offsets: offsets of partitions, one `topic:partition:offset` a line.

Zone: real.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.errors import ClientError
from ottla.client.metadata import TopicView
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import error_message
from ottla.kafka_tools.name_filter import matching_names
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    Options,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    flag,
    value,
)
from ottla.types import TopicPartition

_TIMES: Final = {
    "latest": -1,
    "earliest": -2,
    "max-timestamp": -3,
    "earliest-local": -4,
    "latest-tiered": -5,
    "earliest-pending-upload": -6,
}
_RULE: Final = re.compile(r"([^:,]*)(?::(?:(\d+)(-)?(\d+)?|-(\d+))?)?")
_Wanted = Callable[[TopicPartition], bool]


def run_get_offsets(options: Options) -> None:
    """Print the offsets of the partitions that the options select."""
    if not (options.has("bootstrap-server") or options.has("broker-list")):
        raise WrongUsage('Missing required argument "[bootstrap-server]"')
    time = _parse_time(options.value_of("time", "latest"))
    wanted = _partition_filter(options)
    with open_cluster(options) as cluster:
        admin = Admin(cluster)
        topics = admin.list_topics(internal=not options.has("exclude-internal-topics"))
        found = [tp for tp in _all_partitions(topics) if wanted(tp)]
        if not found:
            raise ToolError("Could not match any topic-partitions with the specified filters")
        for tp, answer in sorted(admin.list_offsets(dict.fromkeys(found, time)).items()):
            if isinstance(answer, ClientError):
                print(
                    f"Skip getting offsets for topic-partition {tp} due to error: {error_message(answer)}",
                    file=sys.stderr,
                )
            elif answer.offset >= 0:
                print(f"{tp.topic}:{tp.partition}:{answer.offset}")


def _all_partitions(topics: list[TopicView]) -> Iterator[TopicPartition]:
    for topic in topics:
        for number in topic.partitions:
            yield TopicPartition(topic.name, number)


def _parse_time(text: str) -> int:
    if text in _TIMES:
        return _TIMES[text]
    try:
        return int(text)
    except ValueError:
        names = " / ".join(f"{number} or {name}" for name, number in _TIMES.items())
        raise ToolError(
            f"Malformed time argument {text}. Please use {names}, or a specified long format timestamp"
        ) from None


def _partition_filter(options: Options) -> _Wanted:
    if options.has("topic-partitions"):
        if options.has("topic") or options.has("partitions"):
            raise ToolError("--topic-partitions cannot be used with --topic or --partitions")
        rules = [parse_rule(rule) for rule in options.value_of("topic-partitions").split(",")]
        return lambda tp: any(rule(tp) for rule in rules)
    numbers = _parse_numbers(options.value_of("partitions")) if options.has("partitions") else None
    topic = options.value_of("topic", ".*")
    return lambda tp: (numbers is None or tp.partition in numbers) and bool(matching_names(topic, [tp.topic]))


def _parse_numbers(text: str) -> set[int]:
    numbers = set()
    for each in text.split(","):
        if not each.isdecimal():
            raise ToolError(
                f"--partitions expects a comma separated list of numeric partition ids, but received: {text}"
            )
        numbers.add(int(each))
    return numbers


def parse_rule(rule: str) -> _Wanted:
    """The partitions of `TOPIC`, `TOPIC:5`, `TOPIC:1-3` (without 3), `TOPIC:1-`, `TOPIC:-3`. Raises ToolError."""
    match = _RULE.fullmatch(rule.strip())
    if match is None:
        raise ToolError(
            f"org.apache.kafka.tools.TerseException: Invalid rule specification: {rule}", "java.lang.RuntimeException"
        )
    topic, first, dash, last, before = match.groups()
    low = int(first or 0)
    high = int(before) if before else int(last) if last else None if dash or not first else low + 1
    return lambda tp: (
        low <= tp.partition
        and (high is None or tp.partition < high)
        and (not topic or bool(matching_names(topic, [tp.topic])))
    )


TOOL: Final = Tool(
    "An interactive shell for getting topic-partition offsets.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        value("broker-list", "The old name of --bootstrap-server."),
        value("topic-partitions", "Comma separated list of topic-partition patterns: TOPIC:1-3."),
        value("topic", "The topic to get the offsets for; a regular expression."),
        value("partitions", "Comma separated list of partition ids to get the offsets for."),
        value("time", "Timestamp of the offsets, or latest, earliest, max-timestamp."),
        flag("exclude-internal-topics", "Exclude internal topics."),
    ),
    run_get_offsets,
    prefix="Error occurred: ",
    wrong_words=WordsReport.WITH_PREFIX,
)
