"""kafka-groups: list the groups of all types.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from ottla.client.admin.groups import GroupAdmin, GroupListed
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, UnreachableError
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import error_class, error_message
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    Option,
    Options,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    WrongWords,
    flag,
    parse_words,
    refuse_together,
    value,
)

_TYPES: Final = ("classic", "consumer", "share", "streams")
_NARROWEST: Final = 20
_KAFKA_EXCEPTION: Final = "org.apache.kafka.common.KafkaException"


def run_groups(options: Options) -> int:
    """Print the groups that pass the filters."""
    _check_options(options)
    with open_cluster(options) as cluster:
        try:
            groups = _list_groups(cluster)
            options.value_of("protocol")  # an option that was given twice is an error without groups as well
            _print_groups([group for group in groups if _passes(group, options)])
        except ClientError as error:
            return _print_error(*_error_words(error))
        except ToolError as error:  # an option that was given twice: Kafka's tool reads it after the list
            return _print_error(error.message, error.java_class)
    return 0


def _parse_groups_words(options: Sequence[Option], words: Sequence[str]) -> Options:
    """The options in the words. As in Kafka's tool, the address is missed before anything else."""
    parsed = parse_words(options, words)
    if not any(map(parsed.has, ("bootstrap-server", "help", "version"))):
        raise WrongWords("Missing required option(s) [bootstrap-server]")
    return parsed


def _check_options(options: Options) -> None:
    if not options.has("list"):
        raise WrongUsage("Command must include exactly one action: --list.")
    if options.has("group-type") and options.value_of("group-type").lower() not in _TYPES:
        raise ToolError("--group-type must be a valid group type.", "java.lang.IllegalArgumentException")
    kinds = ("consumer", "share", "streams")
    for kind in kinds:
        others = [other for other in kinds if other != kind]
        refuse_together(options, kind, ("group-type", "protocol", *others))


def _list_groups(cluster: Cluster) -> list[GroupListed]:
    """The groups of all brokers. Raises the first error of a broker."""
    groups, failed = GroupAdmin(cluster).list_groups()
    for error in failed.values():
        raise error
    return groups


def _passes(group: GroupListed, options: Options) -> bool:
    kind = (group.kind or "").lower()
    if options.has("group-type") or options.has("protocol"):
        wanted = options.value_of("group-type").lower()
        return (not wanted or kind == wanted) and (
            not options.has("protocol") or group.protocol_type == options.value_of("protocol")
        )
    # Classic groups of consumers, also those that only commit offsets, and those of the newer protocol.
    if options.has("consumer"):
        return group.protocol_type in ("consumer", "") or kind == "consumer"
    return all(kind == name for name in ("share", "streams") if options.has(name))


def _print_groups(groups: Sequence[GroupListed]) -> None:
    rows = [(group.group_id, (group.kind or "").capitalize(), group.protocol_type) for group in groups]
    wide = max([_NARROWEST, *(len(cell) for row in rows for cell in row)])
    print(" ".join(f"{name:<{wide}}" for name in ("GROUP", "TYPE", "PROTOCOL")))
    for row in rows:
        print("".join(f"{cell:<{wide}} " for cell in row))


def _error_words(error: ClientError) -> tuple[str, str]:
    """The message and the class of the exception."""
    # The words and the class of Kafka's tool when no broker answers; ours, with the reason, follow.
    if isinstance(error, UnreachableError):
        return f"Failed to find brokers to send ListGroups. {error_message(error)}", _KAFKA_EXCEPTION
    return error_message(error), error_class(error)


def _print_error(message: str, java_class: str) -> int:
    print(f"Error while executing groups command : {message}", flush=True)
    print(f"{java_class}: {message}", file=sys.stderr)
    return 1


TOOL: Final = Tool(
    "This tool helps to list groups of all types.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        flag("list", "List the groups."),
        value("group-type", "Filter the groups by type: 'classic', 'consumer', 'share' or 'streams'."),
        value("protocol", "Filter the groups by protocol type."),
        flag("consumer", "Show all kinds of consumer groups, including classic and simple ones."),
        flag("share", "Show share groups."),
        flag("streams", "Show streams groups."),
    ),
    run_groups,
    wrong_words=WordsReport.WITH_USAGE,
    parse=_parse_groups_words,
)
