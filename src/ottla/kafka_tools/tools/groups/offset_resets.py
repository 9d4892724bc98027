"""Resets of a group's offsets, as kafka-consumer-groups --reset-offsets: plans, files and commits.

Zone: real.
"""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin, GroupOffset
from ottla.client.admin.types import EARLIEST, LATEST
from ottla.client.cluster import Cluster
from ottla.client.errors import RefusedError, values_of
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import read_file
from ottla.kafka_tools.options import Options, ToolError, WrongUsage
from ottla.types import TopicPartition

SCENARIOS: Final = (
    "to-offset",
    "to-datetime",
    "by-duration",
    "to-earliest",
    "to-latest",
    "to-current",
    "shift-by",
    "from-file",
)
_DURATION: Final = re.compile(
    r"([-+])?P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d{1,9})?)S)?)?", re.IGNORECASE
)
_HOST: Final = 2**31


def reset_offsets(cluster: Cluster, group: str, options: Options) -> None:
    """Print the new offsets of a group, and commit them with --execute. Raises ClientError, ToolError, WrongUsage."""
    admin, groups = Admin(cluster), GroupAdmin(cluster)
    state = _group_state(groups, group)
    plan: dict[TopicPartition, int] = {}
    # Members would overwrite the offsets by their next commit. A group that does not exist yet may get offsets.
    if state in ("Empty", "Dead"):
        plan = _planned_offsets(admin, groups, group, options)
        if options.has("execute") and plan:
            for error in groups.alter_group_offsets(group, plan).values():
                if error is not None:
                    raise error
    else:
        print(
            f"\nError: Assignments can only be reset if the group '{group}' is inactive, but the current state is "
            f"{state}."
        )
    if options.has("export"):
        _print_csv(group, plan, several=len(options.values_of("group")) > 1 or options.has("all-groups"))
    else:
        print_new_offsets(group, plan)


def _group_state(groups: GroupAdmin, group: str) -> str:
    try:
        return groups.describe_group(group).state
    except RefusedError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return "Dead"
        raise


def topic_partitions(admin: Admin, words: Iterable[str]) -> tuple[list[TopicPartition], list[str]]:
    """The partitions of `topic` and `topic:0,1` words, and the topics that do not exist. Raises ToolError."""
    found: list[TopicPartition] = []
    unknown: list[str] = []
    for word in words:
        name, colon, numbers = word.partition(":")
        # Partitions that are named are not looked up: the brokers refuse those that do not exist.
        if colon:
            if not all(each.isdecimal() and int(each) < _HOST for each in numbers.split(",")):
                raise ToolError(f'For input string: "{numbers}"', "java.lang.NumberFormatException")
            found += [TopicPartition(name, int(each)) for each in numbers.split(",")]
            continue
        view = admin.describe_topics([name])[name]
        if isinstance(view, TopicView):
            found += [TopicPartition(name, number) for number in view.partitions]
        elif isinstance(view, RefusedError) and view.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            unknown.append(name)
        else:
            raise view
    return found, unknown


def _planned_offsets(admin: Admin, groups: GroupAdmin, group: str, options: Options) -> dict[TopicPartition, int]:
    if options.has("from-file"):
        wanted = _offsets_of_file(read_file(options.value_of("from-file")), group)
        return _within_logs(admin, wanted)
    committed = {
        tp: found.offset for tp, found in groups.group_offsets(group).items() if isinstance(found, GroupOffset)
    }
    partitions = _partitions_to_reset(admin, committed, options)
    if options.has("to-earliest"):
        return search_offsets(admin, dict.fromkeys(partitions, EARLIEST))
    if options.has("to-latest"):
        return search_offsets(admin, dict.fromkeys(partitions, LATEST))
    if options.has("to-offset"):
        return _within_logs(admin, dict.fromkeys(partitions, options.number_of("to-offset", 0)))
    if options.has("shift-by"):
        missing = [tp for tp in partitions if tp not in committed]
        if missing:
            raise WrongUsage(
                f"Cannot shift offset for partition {missing[0]} since there is no current committed offset"
            )
        shift = options.number_of("shift-by", 0)
        return _within_logs(admin, {tp: committed[tp] + shift for tp in partitions})
    if options.has("to-current"):
        latest = search_offsets(admin, dict.fromkeys((tp for tp in partitions if tp not in committed), LATEST))
        return {tp: committed.get(tp, latest.get(tp, 0)) for tp in partitions}
    if not (options.has("by-duration") or options.has("to-datetime")):
        names = ", ".join(f"[{each}]" for each in SCENARIOS)
        raise WrongUsage(f"Option '[reset-offsets]' requires one of the following scenarios: [{names}]")
    return search_offsets(admin, dict.fromkeys(partitions, _wanted_time(options)))


def _partitions_to_reset(
    admin: Admin, committed: Mapping[TopicPartition, int], options: Options
) -> Sequence[TopicPartition]:
    if options.has("all-topics"):
        return sorted(committed)
    if not options.has("topic"):
        raise WrongUsage("One of the reset scopes should be defined: --all-topics, --topic.")
    found, unknown = topic_partitions(admin, options.values_of("topic"))
    if unknown:
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {unknown[0]}")
    return sorted(found)


def _wanted_time(options: Options) -> int:
    if options.has("by-duration"):
        return int(time.time() * 1000) - parse_duration_ms(options.value_of("by-duration"))
    return parse_datetime_ms(options.value_of("to-datetime"))


def parse_duration_ms(text: str) -> int:
    """Milliseconds of `PnDTnHnMnS`. Raises ToolError."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()[1:]):
        raise ToolError("Text cannot be parsed to a Duration", "java.time.format.DateTimeParseException")
    sign, days, hours, minutes, seconds = match.groups()
    total = ((int(days or 0) * 24 + int(hours or 0)) * 60 + int(minutes or 0)) * 60_000
    total += int(float(seconds or 0) * 1000)
    return -total if sign == "-" else total


def parse_datetime_ms(text: str) -> int:
    """Milliseconds of `YYYY-MM-DDThh:mm[:ss[.sss]][zone]`; UTC without a zone, as in Kafka. Raises ToolError."""
    try:
        parsed = datetime.fromisoformat(text)
        if "T" not in text:
            raise ValueError
    except ValueError:
        raise ToolError(f'Unparseable date: "{text}"', "java.text.ParseException") from None
    return int((parsed if parsed.tzinfo else datetime.fromisoformat(f"{text}+00:00")).timestamp() * 1000)


def search_offsets(admin: Admin, timestamps: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets of timestamps; the end of the log where no record is late enough."""
    found = values_of(admin.list_offsets(timestamps))
    late = [tp for tp, answer in found.items() if answer.offset < 0]
    for tp in late:
        print(f"\nWarn: Partition {tp.partition} from topic {tp.topic} is empty. Falling back to latest known offset.")
    ends = values_of(admin.list_offsets(dict.fromkeys(late, LATEST))) if late else {}
    return {tp: ends[tp].offset if answer.offset < 0 else answer.offset for tp, answer in found.items()}


def _within_logs(admin: Admin, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The offsets, where they are outside of the log its start or its end."""
    starts = values_of(admin.list_offsets(dict.fromkeys(wanted, EARLIEST)))
    ends = values_of(admin.list_offsets(dict.fromkeys(wanted, LATEST)))
    return {tp: min(max(offset, starts[tp].offset), ends[tp].offset) for tp, offset in wanted.items()}


def _offsets_of_file(text: str, group: str) -> dict[TopicPartition, int]:
    """The offsets of lines `topic,partition,offset` or `group,topic,partition,offset`. Raises ToolError."""
    found: dict[TopicPartition, int] = {}
    for row in csv.reader(io.StringIO(text)):
        if not row:
            continue
        owner, topic, partition, offset = (group, *row) if len(row) == 3 else row if len(row) == 4 else ("", "", "", "")
        if not (topic and partition.strip().isdecimal() and offset.strip().isdecimal()):
            raise ToolError(f"the line {','.join(row)[:200]} is not topic,partition,offset", "java.io.IOException")
        if owner == group:
            found[TopicPartition(topic, int(partition))] = int(offset)
    return found


def _print_csv(group: str, plan: Mapping[TopicPartition, int], *, several: bool) -> None:
    for tp, offset in sorted(plan.items()):
        print(f"{group + ',' if several else ''}{tp.topic},{tp.partition},{offset}")


def print_new_offsets(group: str, plan: Mapping[TopicPartition, int]) -> None:
    """Print the table of a group's new offsets."""
    wide = max(15, len(group))
    topics = max([15, *(len(tp.topic) for tp in plan)])
    print(f"\n{'GROUP':<{wide}} {'TOPIC':<{topics}} {'PARTITION':<10} {'NEW-OFFSET'}")
    for tp, offset in sorted(plan.items()):
        print(f"{group:<{wide}} {tp.topic:<{topics}} {tp.partition:<10} {offset}")
