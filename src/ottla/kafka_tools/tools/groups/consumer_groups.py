"""kafka-consumer-groups: list, describe, delete and reset consumer groups.

Zone: real. Options, checks and small actions; `group_descriptions` prints descriptions, `offset_resets` resets offsets.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin, GroupListed
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import EXECUTION, error_class, error_message, error_text
from ottla.kafka_tools.options import (
    COMMAND_CONFIG,
    SERVER,
    Option,
    Options,
    Takes,
    Tool,
    ToolError,
    WordsReport,
    WrongUsage,
    flag,
    parse_words,
    refuse_together,
    refuse_unavailable,
    require_options,
    single_action,
    value,
    values,
)
from ottla.kafka_tools.tools.groups.group_descriptions import describe_as_kafka_1, describe_groups
from ottla.kafka_tools.tools.groups.offset_resets import SCENARIOS, reset_offsets, topic_partitions
from ottla.types import TopicPartition

_ACTIONS: Final = ("list", "describe", "delete", "reset-offsets", "delete-offsets", "validate-regex")
_STATES: Final = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Assigning", "Reconciling")
_PROTOCOLS: Final = ("consumer", "")
_NEW_CONSUMER: Final = "new-consumer"
_NOTES_OF_KAFKA_1: Final = (
    "The --new-consumer option is deprecated and will be removed in a future major release.The new consumer is used by "
    "default if the --bootstrap-server option is provided.\n"
    "Note: This will not show information about old Zookeeper-based consumers.\n"
)
_NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "members": ("describe",),
    "offsets": ("describe",),
    "state": ("describe", "list"),
    "type": ("list",),
    "verbose": ("describe",),
}
"""The actions of which one has to be given with an option."""
_LATER_DESCRIPTIONS: Final = ("members", "offsets", "state", "verbose")
"""Options that Kafka 1.0 did not have."""


def run_consumer_groups(options: Options) -> int:
    """Carry out the one action. As in Kafka's tool, an error of the cluster is printed, and the exit code is 0."""
    action = _checked_action(options)
    if action == "validate-regex":
        _validate_regex(options.value_of("validate-regex"))
        return 0
    if options.has(_NEW_CONSUMER):
        print(_NOTES_OF_KAFKA_1, file=sys.stderr)
    with open_cluster(options) as cluster:
        try:
            _RUNS[action](options, cluster)
        except ClientError as error:
            _print_cluster_error(error)
    return 0


def _print_cluster_error(error: ClientError) -> None:
    """Print an error of the cluster with the exceptions that Kafka's tool meets."""
    text, kind = error_text(error), EXECUTION
    # Kafka's tool looks topics up itself, and raises the error as it is.
    if isinstance(error, RefusedError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        text, kind = error_message(error), error_class(error)
    _print_failure(text, kind)


def _print_failure(text: str, kind: str) -> None:
    _print_error(f"Executing consumer group command failed due to {text}")
    sys.stdout.flush()
    print(f"{kind}: {text}", file=sys.stderr)


def _print_error(text: str) -> None:
    print(f"\nError: {text}")


def _parse_group_words(options: Sequence[Option], words: Sequence[str]) -> Options:
    """The options in the words. Raises WrongWords for one that belongs to another action."""
    parsed = parse_words(options, words)
    refuse_unavailable(parsed, _NEEDED)
    return parsed


def _checked_action(options: Options) -> str:
    named = ", ".join(f"--{each}" for each in _ACTIONS)
    action = single_action(options, _ACTIONS, f"Command must include exactly one action: {named}")
    require_options(options, "bootstrap-server")
    if action in ("describe", "delete", "reset-offsets") and not (options.has("group") or options.has("all-groups")):
        raise WrongUsage(f"Option [{action}] takes one of these options: [group], [all-groups]")
    if action == "delete-offsets" and not (options.has("group") and options.has("topic")):
        raise WrongUsage("Option [delete-offsets] takes the following options: [topic], [group]")
    if options.has("group") and options.has("all-groups"):
        raise WrongUsage('Option "[group]" can\'t be used with option "[all-groups]"')
    if action == "delete" and options.has("topic"):
        raise WrongUsage("The consumer does not support topic-specific offset deletion from a consumer group.")
    refuse_together(options, "group", ("list",))
    refuse_together(options, "topic", ("list", "describe"))
    # The option takes a value with --list, so that the parser has let it pass.
    if action == "describe" and options.value_of("state"):
        raise WrongUsage("Option [describe] does not take a value for [state]")
    if action == "describe" and sum(options.has(each) for each in ("members", "offsets", "state")) > 1:
        raise WrongUsage("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    if action == "reset-offsets":
        _check_reset(options)
    return action


def _check_reset(options: Options) -> None:
    if not options.has("execute") and not options.has("dry-run"):
        print(
            "WARN: No action will be performed as the --execute option is missing. In version 5.0, this command will "
            "require either --dry-run or --execute to be specified. You should add the --dry-run option explicitly if "
            "you are scripting this command and want to keep the current default behavior without prompting.",
            flush=True,
        )
    if options.has("execute") and options.has("dry-run"):
        raise WrongUsage("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    for scenario in SCENARIOS:
        refuse_together(options, scenario, [other for other in SCENARIOS if other != scenario])


def _validate_regex(text: str) -> None:
    try:
        re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        print(f"The regular expression `{text}` is invalid: {error}.")
    else:
        print(f"The regular expression `{text}` is valid.")


# -- list --------------------------------------------------------------------------------------------------------------


def _list_groups(options: Options, cluster: Cluster) -> None:
    states = _parse_states(options.value_of("state")) if options.has("state") else []
    kinds = [each.strip().lower() for each in options.value_of("type").split(",") if each.strip()]
    if wrong := [each for each in kinds if each not in ("classic", "consumer")]:
        raise WrongUsage(f"Invalid types list '{','.join(wrong)}'. Valid types are: Consumer, Classic")
    groups = [
        group
        for group in _consumer_groups(cluster)
        if (not states or group.state in states) and (not kinds or (group.kind or "classic").lower() in kinds)
    ]
    if not options.has("state") and not options.has("type"):
        for group in groups:
            print(group.group_id)
        return
    wide = max([15, *(len(group.group_id) for group in groups)]) + 10
    shown = [each for each in ("type", "state") if options.has(each)]
    print(f"{'GROUP':<{wide}} " + " ".join(f"{each.upper():<20}" for each in shown))
    for group in groups:
        cells = {"type": (group.kind or "classic").capitalize(), "state": group.state}
        print(f"{group.group_id:<{wide}} " + " ".join(f"{cells[each]:<20}" for each in shown))


def _parse_states(text: str) -> list[str]:
    known = {state.lower(): state for state in _STATES}
    given = [each.strip() for each in text.split(",") if each.strip()]
    if any(each.lower() not in known for each in given):
        raise WrongUsage(
            f"Invalid state list '{text}'. Valid states are: Empty, PreparingRebalance, Reconciling, "
            "CompletingRebalance, Assigning, Dead, Stable"
        )
    return [known[each.lower()] for each in given]


def _consumer_groups(cluster: Cluster) -> list[GroupListed]:
    """The groups of consumers. Raises the first error of a broker."""
    groups, failed = GroupAdmin(cluster).list_groups()
    for error in failed.values():
        raise error
    return [group for group in groups if group.protocol_type in _PROTOCOLS]


def _named_groups(options: Options, cluster: Cluster) -> list[str]:
    if options.has("all-groups"):
        return [group.group_id for group in _consumer_groups(cluster)]
    return list(dict.fromkeys(options.values_of("group")))


# -- describe, delete, offsets -----------------------------------------------------------------------------------------


def _describe_groups(options: Options, cluster: Cluster) -> None:
    names = _named_groups(options, cluster)
    # Kafka removed the option in 2.0: scripts that have it read the text of that age.
    if options.has(_NEW_CONSUMER) and not any(options.has(name) for name in _LATER_DESCRIPTIONS):
        for name in names:
            describe_as_kafka_1(cluster, name)
    else:
        describe_groups(cluster, names, options)


def _delete_groups(options: Options, cluster: Cluster) -> None:
    results = GroupAdmin(cluster).delete_groups(_named_groups(options, cluster))
    failed = {name: error for name, error in results.items() if error is not None}
    done = ", ".join(f"'{name}'" for name in results if name not in failed)
    if not failed:
        print(f"Deletion of requested consumer groups ({done}) was successful.")
        return
    _print_error("Deletion of some consumer groups failed:")
    for name, error in failed.items():
        print(f"* Group '{name}' could not be deleted due to: {_plain_text(error)}")
    if done:
        print(f"\nThese consumer groups were deleted successfully: {done}")


def _plain_text(error: ClientError) -> str:
    """The exception with Kafka's own message for its code, as the tool prints errors that have none of the broker."""
    return error_text(RefusedError(error.code, error.subject)) if isinstance(error, RefusedError) else error_text(error)


def _delete_offsets(options: Options, cluster: Cluster) -> None:
    try:
        group = options.value_of("group")
    except ToolError as error:  # a second one: Kafka's tool notices it only here
        _print_failure(error.message, error.java_class)
        return
    wanted, unknown = topic_partitions(Admin(cluster), options.values_of("topic"))
    try:
        results = GroupAdmin(cluster).delete_group_offsets(group, wanted) if wanted else {}
    except RefusedError as error:
        results = dict.fromkeys(wanted, error)
        _print_error(error_message(RefusedError(error.code, error.subject)))
    else:
        if any(error is not None for error in results.values()):
            _print_error("Encountered some partition-level error, see the follow-up details.")
        else:
            print(f"Request succeeded for deleting offsets from group {group}.")
    print(f"\n{'TOPIC':<15} {'PARTITION':<10} {'STATUS':<15}")
    unhosted = RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic")
    rows: list[tuple[str, str, ClientError | None]] = []
    rows += [(tp.topic, str(tp.partition), fault) for tp, fault in sorted(results.items(), key=_by_partition)]
    rows += [(name, "-", unhosted) for name in unknown]
    for topic, number, fault in rows:
        status = "Successful" if fault is None else f"Error: {_plain_text(fault)}"
        print(f"{topic:<15} {number:<10} {status:<15}")


def _by_partition(row: tuple[TopicPartition, ClientError | None]) -> TopicPartition:
    return row[0]


def _reset_groups(options: Options, cluster: Cluster) -> None:
    for group in _named_groups(options, cluster):
        reset_offsets(cluster, group, options)


_RUNS: Final[Mapping[str, Callable[[Options, Cluster], None]]] = {
    "list": _list_groups,
    "describe": _describe_groups,
    "delete": _delete_groups,
    "reset-offsets": _reset_groups,
    "delete-offsets": _delete_offsets,
}
_FLAGS: Final[Sequence[Option]] = (
    flag("list", "List all consumer groups."),
    flag("describe", "Describe consumer group and list offset lag (number of messages not yet processed)."),
    flag("delete", "Pass in groups to delete offsets and ownership information over the entire consumer group."),
    flag("reset-offsets", "Reset offsets of consumer group."),
    flag("delete-offsets", "Delete offsets of consumer group."),
    flag("all-groups", "Apply to all consumer groups."),
    flag("all-topics", "Consider all topics assigned to a group in the `reset-offsets` process."),
    flag("execute", "Execute operation."),
    flag("dry-run", "Only show results without executing changes on Consumer Groups."),
    flag("export", "Export operation execution to a CSV file."),
    flag("to-earliest", "Reset offsets to earliest offset."),
    flag("to-latest", "Reset offsets to latest offset."),
    flag("to-current", "Reset offsets to current offset."),
    flag("members", "Describe members of the group."),
    flag("offsets", "Describe the group and list all topic partitions in the group along with their offset lag."),
    flag(_NEW_CONSUMER, "DEPRECATED: the default; groups are described in the text of Kafka 1.0."),
    flag("verbose", "Provide additional information, if any, when describing the group."),
)
TOOL: Final = Tool(
    "This tool helps to list all consumer groups, describe a consumer group, delete consumer group info, or reset "
    "consumer group offsets.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        *_FLAGS,
        values("group", "The consumer group we wish to act on."),
        values("topic", "The topic whose offsets are reset or deleted: `topic1:0,1,2` for some partitions."),
        value("timeout", "How long to wait for the group, in ms."),
        value("to-datetime", "Reset offsets to offset from datetime: YYYY-MM-DDThh:mm:ss.sss"),
        value("to-offset", "Reset offsets to a specific offset."),
        value("shift-by", "Reset offsets shifting current offset by `n`, where `n` can be positive or negative."),
        value("by-duration", "Reset offsets to offset by duration from current timestamp: PnDTnHnMnS"),
        value("from-file", "Reset offsets to values defined in CSV file."),
        value("validate-regex", "Validate that a regular expression can be used."),
        Option("state", Takes.MAYBE, "Describe, or list with, the state of groups."),
        Option("type", Takes.MAYBE, "List with the types of groups."),
    ),
    run_consumer_groups,
    wrong_words=WordsReport.CLASS_ONLY,
    parse=_parse_group_words,
)
