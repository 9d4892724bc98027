"""kafka-share-groups: list, describe and delete share groups, reset and delete their offsets.

Zone: real. Options, checks and small actions; `share_group_descriptions` prints tables, `share_group_resets` resets
offsets.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from ottla.client.admin.groups import GroupAdmin, GroupListed
from ottla.client.admin.share_groups import ShareGroupAdmin
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError, RefusedError, UnreachableError
from ottla.errors import ErrorCode
from ottla.kafka_tools.connection import open_cluster
from ottla.kafka_tools.java_errors import EXECUTION, error_message, error_text, java_class, tool_error
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
from ottla.kafka_tools.tools.groups.share_group_descriptions import describe_share_groups
from ottla.kafka_tools.tools.groups.share_group_resets import SCENARIOS, reset_share_offsets

_ACTIONS: Final = ("list", "describe", "delete", "reset-offsets", "delete-offsets")
_STATES: Final = ("Dead", "Empty", "Stable")
_VIEWS: Final = ("members", "offsets", "state")
_TIMEOUT_MS: Final = 30_000
_NEEDED: Final[Mapping[str, Sequence[str]]] = {
    "members": ("describe",),
    "offsets": ("describe",),
    "state": ("describe", "list"),
    "verbose": ("describe",),
}
"""The actions of which one has to be given with an option."""
_REPORTED: Final = frozenset(
    {
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.NON_EMPTY_GROUP,
    }
)
"""Errors of a group that Kafka's tool prints as the message alone."""


def run_share_groups(options: Options) -> int:
    """Carry out the one action. As in Kafka's tool, most errors are printed with exit code 0."""
    action = _checked_action(options)
    # 1. Words that do not fit together end with the list of options and exit code 1. 2. Everything else that fails,
    #    such as an option that was given twice, is read by Kafka's tool while it runs: it prints it, and exits with 0.
    try:
        timeout_ms = options.number_of("timeout", _TIMEOUT_MS)
        with open_cluster(options, timeout_ms=timeout_ms) as cluster:
            return _RUNS[action](options, cluster) or 0
    except WrongUsage:
        raise
    except ToolError as error:
        _print_failure(error)
    except ClientError as error:
        _print_failure(tool_error(error))
    return 0


def _print_failure(error: ToolError) -> None:
    _print_error(f"Executing share group command failed due to {error.message}")
    print(f"{error.java_class}: {error.message}", file=sys.stderr)


def _print_error(text: str) -> None:
    print(f"\nError: {text}", flush=True)


# -- options -----------------------------------------------------------------------------------------------------------


def _parse_share_words(options: Sequence[Option], words: Sequence[str]) -> Options:
    """The options in the words. Raises WrongWords for one that belongs to another action."""
    parsed = parse_words(options, words)
    refuse_unavailable(parsed, _NEEDED)
    return parsed


def _checked_action(options: Options) -> str:
    # In the order of Kafka's tool: with several mistakes, its message is about the first of them.
    require_options(options, "bootstrap-server")
    for action, check in _CHECKS.items():
        if options.has(action):
            check(options)
    refuse_together(options, "group", ("all-groups", "list"))
    refuse_together(options, "topic", ("list", "describe"))
    named = ", ".join(f"--{each}" for each in _ACTIONS)
    return single_action(options, _ACTIONS, f"Command must include exactly one action: {named}.")


def _require_one(options: Options, action: str, names: Sequence[str]) -> None:
    if not any(map(options.has, names)):
        raise WrongUsage(f"Option [{action}] takes one of these options: {', '.join(f'[{name}]' for name in names)}")


def _check_describe(options: Options) -> None:
    _require_one(options, "describe", ("all-groups", "group"))
    if sum(map(options.has, _VIEWS)) > 1:
        raise WrongUsage("Option [describe] takes at most one of these options: [members], [offsets], [state]")
    # The option takes a value with --list, so that the parser has let it pass.
    if options.value_of("state"):
        raise WrongUsage("Option [describe] does not take a value for [state]")


def _check_delete(options: Options) -> None:
    if not (options.has("group") or options.has("all-groups")):
        raise WrongUsage("Option [delete] takes the options [group] or [all-groups]")
    if options.has("group") and options.has("all-groups"):
        raise WrongUsage("Option [delete] takes either [group] or [all-groups], not both.")
    if options.has("topic"):
        raise WrongUsage("Option [delete] does not take the option: [topic]")


def _check_delete_offsets(options: Options) -> None:
    if not (options.has("group") and options.has("topic")):
        raise WrongUsage("Option [delete-offsets] takes the following options: [group], [topic]")


def _check_reset(options: Options) -> None:
    if options.has("dry-run") and options.has("execute"):
        raise WrongUsage("Option [reset-offsets] only accepts one of [execute] and [dry-run]")
    if not options.has("dry-run") and not options.has("execute"):
        raise WrongUsage("Option [reset-offsets] takes the option: [execute] or [dry-run]")
    if not options.has("group"):
        raise WrongUsage("Option [reset-offsets] takes the option: [group]")
    _require_one(options, "reset-offsets", ("all-topics", "topic"))
    _require_one(options, "reset-offsets", SCENARIOS)
    for scenario in SCENARIOS:
        refuse_together(options, scenario, [other for other in SCENARIOS if other != scenario])


_CHECKS: Final[Mapping[str, Callable[[Options], None]]] = {
    "describe": _check_describe,
    "delete": _check_delete,
    "delete-offsets": _check_delete_offsets,
    "reset-offsets": _check_reset,
}


# -- list and describe -------------------------------------------------------------------------------------------------


def _list_groups(options: Options, cluster: Cluster) -> None:
    if not options.has("state"):
        for group in _share_groups(cluster):
            print(group.group_id)
        return
    groups = _share_groups(cluster, _parse_states(options.value_of("state")), wrapped=True)
    wide = max([15, *(len(group.group_id) for group in groups)])
    print(f"{'GROUP':<{wide}} STATE")
    for group in groups:
        print(f"{group.group_id:<{wide}} {group.state}")


def _parse_states(text: str) -> list[str]:
    known = {state.lower(): state for state in _STATES}
    given = [each.strip().lower() for each in text.split(",") if text]
    if any(each not in known for each in given):
        raise WrongUsage(f"Invalid state list '{text}'. Valid states are: {', '.join(_STATES)}")
    return [known[each] for each in given]


def _share_groups(cluster: Cluster, states: Sequence[str] = (), *, wrapped: bool = False) -> list[GroupListed]:
    """The share groups of all brokers. Raises the first error of a broker, ToolError.

    wrapped: errors are the cause of an ExecutionException, as where Kafka's tool does not unwrap them.
    """
    try:
        groups, failed = GroupAdmin(cluster).list_groups(states, kinds=("share",))
        for error in failed.values():
            raise error
    except ClientError as error:
        # The words and the classes of Kafka's tool when no broker answers; ours, with the reason, follow.
        if isinstance(error, UnreachableError):
            lost = f"org.apache.kafka.common.KafkaException: Failed to find brokers to send ListGroups. {error}"
            outer = EXECUTION if wrapped else "java.lang.RuntimeException"
            raise ToolError(f"{EXECUTION}: {lost}", outer) from error
        raise tool_error(error, wrapped=wrapped) from error
    return groups


def _describe_groups(options: Options, cluster: Cluster) -> None:
    if options.has("all-groups"):
        names = [group.group_id for group in _share_groups(cluster)]
    else:
        names = sorted(set(options.values_of("group")))
    describe_share_groups(cluster, names, options)


# -- delete ------------------------------------------------------------------------------------------------------------


def _delete_groups(options: Options, cluster: Cluster) -> None:
    listed = {group.group_id: group.state for group in _share_groups(cluster)}
    # DeleteGroups deletes groups of every type: the list keeps a consumer group of that name alive.
    names = list(listed) if options.has("all-groups") else sorted(set(options.values_of("group")))
    failed = {name: reason for name in names if (reason := _undeletable(name, listed))}
    results = GroupAdmin(cluster).delete_groups([name for name in names if name not in failed])
    failed |= {name: _plain_text(error) for name, error in results.items() if error is not None}
    done = ", ".join(f"'{name}'" for name in names if name not in failed)
    if not failed:
        print(f"Deletion of requested share groups ({done}) was successful.")
        return
    _print_error("Deletion of some share groups failed:")
    for name, reason in sorted(failed.items()):
        print(f"* Group '{name}' could not be deleted due to: {reason}")
    if done:
        print(f"\nThese share groups were deleted successfully: {done}")


def _undeletable(name: str, listed: Mapping[str, str]) -> str:
    """The exception for a group that is not a share group, or that is in use; empty for one that can be deleted."""
    if name not in listed:
        return f"java.lang.IllegalArgumentException: Group '{name}' is not a share group."
    if listed[name] == "Dead":
        return f"java.lang.IllegalStateException: Share group '{name}' group state is DEAD."
    if listed[name] != "Empty":
        return f"{java_class(ErrorCode.NON_EMPTY_GROUP)}: Share group '{name}' is not EMPTY."
    return ""


def _plain_text(error: ClientError) -> str:
    """The exception with Kafka's own message for its code: the response to DeleteGroups has none of the broker."""
    return error_text(RefusedError(error.code, error.subject)) if isinstance(error, RefusedError) else error_text(error)


def _delete_offsets(options: Options, cluster: Cluster) -> None:
    group = options.value_of("group")
    names = sorted(set(options.values_of("topic")))
    results: Mapping[str, ClientError | None]
    try:
        results = ShareGroupAdmin(cluster).delete_share_group_offsets(group, names)
    except ClientError as error:
        # As in Kafka's tool, the error of the group is also that of each topic.
        results = dict.fromkeys(names, error)
        _print_group_error(error)
    wide = max([15, *map(len, names)])
    print(f"\n{'TOPIC':<{wide}} STATUS")
    for name, fault in results.items():
        print(f"{name:<{wide}} {'Successful' if fault is None else f'Error: {tool_error(fault).message}'}")


def _print_group_error(error: ClientError) -> None:
    if isinstance(error, RefusedError) and error.code in _REPORTED:
        _print_error(error_message(error))
    else:
        found = tool_error(error)
        _print_error(f"Encounter some unknown error: {found.java_class}: {found.message}")


# -- reset -------------------------------------------------------------------------------------------------------------


def _reset_offsets(options: Options, cluster: Cluster) -> int:
    return reset_share_offsets(cluster, options.value_of("group"), options)


_RUNS: Final[Mapping[str, Callable[[Options, Cluster], int | None]]] = {
    "list": _list_groups,
    "describe": _describe_groups,
    "delete": _delete_groups,
    "reset-offsets": _reset_offsets,
    "delete-offsets": _delete_offsets,
}
_FLAGS: Final[Sequence[Option]] = (
    flag("list", "List all share groups."),
    flag("describe", "Describe share group, members and offset information."),
    flag("delete", "Delete share group."),
    flag("reset-offsets", "Reset offsets of a share group without members: with --dry-run or --execute."),
    flag("delete-offsets", "Delete offsets of share group: of one group, and of one or more topics."),
    flag("all-groups", "Apply to all share groups."),
    flag("all-topics", "Consider all topics assigned to a share group in the 'reset-offsets' process."),
    flag("execute", "Execute operation. Supported operations: reset-offsets."),
    flag("dry-run", "Only show results without executing changes on share groups."),
    flag("to-earliest", "Reset offsets to earliest offset."),
    flag("to-latest", "Reset offsets to latest offset."),
    flag("members", "Describe members of the group."),
    flag("offsets", "Describe the group and list all topic partitions in the group along with their offsets."),
    flag("verbose", "Provide additional information, if any, when describing the group."),
)
TOOL: Final = Tool(
    "This tool helps to list, describe, reset and delete share groups.",
    (
        *SERVER,
        *COMMAND_CONFIG,
        *_FLAGS,
        values("group", "The share group we wish to act on."),
        values("topic", "The topic whose offsets are reset or deleted: `topic1:0,1,2` for some partitions."),
        value("timeout", "How long to wait for an answer, in ms. Default: 30000."),
        value("to-datetime", "Reset offsets to offset from datetime. Format: 'YYYY-MM-DDThh:mm:ss.sss'"),
        Option("state", Takes.MAYBE, "Describe, or list with, the state of groups: Empty, Stable or Dead."),
    ),
    run_share_groups,
    wrong_words=WordsReport.CLASS_ONLY,
    parse=_parse_share_words,
)
