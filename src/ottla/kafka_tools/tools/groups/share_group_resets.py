"""Resets of a share group's offsets, as kafka-share-groups --reset-offsets.

Zone: real.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.share_groups import ShareGroupAdmin
from ottla.client.admin.types import EARLIEST, LATEST
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.client.metadata import TopicView
from ottla.errors import ErrorCode
from ottla.kafka_tools.java_errors import EXECUTION, error_class, error_text, java_class, tool_error
from ottla.kafka_tools.options import Options, ToolError, WrongUsage
from ottla.kafka_tools.tools.groups.offset_resets import parse_datetime_ms, print_new_offsets, search_offsets
from ottla.types import TopicPartition

SCENARIOS: Final = ("to-datetime", "to-earliest", "to-latest")
_RUNTIME: Final = "java.lang.RuntimeException"
_NUMBER: Final = re.compile(r"[+-]?\d{1,10}", re.ASCII)


def reset_share_offsets(cluster: Cluster, group: str, options: Options) -> int:
    """Print the new start offsets of a group, and set them with --execute. Raises ClientError, ToolError, WrongUsage.

    The exit code is 1 for a group whose state is not known, or that has members: they hold records of their own.
    """
    shares = ShareGroupAdmin(cluster)
    if refusal := _refusal_of(shares, group):
        print(refusal, file=sys.stderr)
        return 1
    admin = Admin(cluster)
    # Checked before anything is set: the request would set the other partitions, and fail for those that are missing.
    partitions = _partitions_to_reset(admin, shares, group, options)
    _check_partitions(admin, partitions)
    plan = search_offsets(admin, dict.fromkeys(partitions, _wanted_time(options)))
    if options.has("execute") and plan:
        _set_offsets(shares, group, plan)
    print_new_offsets(group, plan)
    return 0


def _set_offsets(shares: ShareGroupAdmin, group: str, plan: Mapping[TopicPartition, int]) -> None:
    """Raises ClientError; for offsets that are refused, ToolError with their partitions."""
    try:
        results = shares.alter_share_group_offsets(group, plan)
    except RefusedError as error:
        # As Kafka's client: an error of the group is one of each partition.
        results = dict.fromkeys(plan, error)
    failed = {tp: error for tp, error in sorted(results.items(), key=lambda row: row[0]) if error is not None}
    if failed:
        # The class is that of the first error, and the reasons are left out, as by Kafka's client.
        named = ", ".join(map(str, failed))
        message = f"Failed altering group offsets for the following partitions: [{named}]"
        raise ToolError(message, error_class(next(iter(failed.values()))))


def _refusal_of(shares: ShareGroupAdmin, group: str) -> str:
    """Why the offsets of a group cannot be set; empty for one without members, which need not exist yet."""
    try:
        state = shares.describe_share_group(group).state
    except ClientError as error:
        if isinstance(error, RefusedError) and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return ""
        return tool_error(error).message
    return "" if state in ("Empty", "Dead") else f"Share group '{group}' is not empty."


def _partitions_to_reset(
    admin: Admin, shares: ShareGroupAdmin, group: str, options: Options
) -> Sequence[TopicPartition]:
    if not options.has("topic"):
        found = shares.share_group_offsets(group)
        return [tp for tp, offset in found.items() if not isinstance(offset, ClientError)]
    words = options.values_of("topic")
    partitions = {tp for word in words if ":" in word for tp in _parse_partitions(word)}
    if names := [word for word in words if ":" not in word]:
        for name, view in _topic_views(admin, names).items():
            partitions |= {TopicPartition(name, number) for number in view.partitions}
    return sorted(partitions)


def _parse_partitions(word: str) -> list[TopicPartition]:
    topic, *numbers = word.rstrip(":").split(":")
    if len(numbers) != 1:
        raise WrongUsage(f"Invalid topic arg '{word}', expected topic name and partitions")
    for number in numbers[0].split(","):
        if not _NUMBER.fullmatch(number) or not -(2**31) <= int(number) < 2**31:
            raise WrongUsage(f"Invalid partition '{number}' specified in topic arg '{word}''")
    return [TopicPartition(topic, int(number)) for number in numbers[0].split(",")]


def _topic_views(admin: Admin, names: Sequence[str]) -> dict[str, TopicView]:
    """The topics. Raises the first error."""
    views: dict[str, TopicView] = {}
    for name, view in admin.describe_topics(names).items():
        if not isinstance(view, TopicView):
            raise view
        views[name] = view
    return views


def _check_partitions(admin: Admin, partitions: Sequence[TopicPartition]) -> None:
    """Raises ToolError for partitions that do not exist, or that have no leader."""
    if not partitions:
        return
    try:
        views = _topic_views(admin, sorted({tp.topic for tp in partitions}))
    except ClientError as error:
        raise ToolError(f"{EXECUTION}: {error_text(error)}", _RUNTIME) from error
    if unknown := ",".join(str(tp) for tp in partitions if tp.partition not in views[tp.topic].partitions):
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise ToolError(f'The partitions "{unknown}" do not exist', java_class(code))
    if headless := ",".join(str(tp) for tp in partitions if _leader(views, tp) < 0):
        raise ToolError(f'The partitions "{headless}" have no leader', java_class(ErrorCode.LEADER_NOT_AVAILABLE))


def _leader(views: Mapping[str, TopicView], tp: TopicPartition) -> int:
    return views[tp.topic].partitions[tp.partition].leader


def _wanted_time(options: Options) -> int:
    if not options.has("to-datetime"):
        return EARLIEST if options.has("to-earliest") else LATEST
    # The messages are those of Kafka's parser, which looks for the letter first.
    text = options.value_of("to-datetime")
    if "T" not in text:
        message = "Error parsing timestamp. It does not contain a 'T' according to ISO8601 format"
        raise ToolError(f"java.text.ParseException: {message}", _RUNTIME)
    try:
        return parse_datetime_ms(text)
    except ToolError as error:
        raise ToolError(f"{error.java_class}: {error.message}", _RUNTIME) from error
