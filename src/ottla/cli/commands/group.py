"""`ottla group`: show consumer groups and their lag, reset and delete their committed offsets.

Zone: real. Turns options into admin calls, and prints their results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ottla.cli.commands.topic import confirm_action, exit_with_errors
from ottla.cli.name_options import complete_groups, complete_topics
from ottla.cli.options import common_options, connect_cluster, output_option, print_note
from ottla.cli.views.output import TABLE_AND_DOCUMENTS, Json, write_documents, write_line, write_table
from ottla.cli.views.watch import watch_option, watch_view

if TYPE_CHECKING:
    from ottla.cli.offset_exports import GroupPosition
    from ottla.cli.reading.offset_grammar import Bound
    from ottla.cli.views.group_views import GroupState, OffsetChange
    from ottla.client.admin.groups import GroupMember, MemberIdentity
    from ottla.types import TopicPartition

_ONLY = "Only these topics and partitions."
F = TypeVar("F", bound=Callable[..., Any])
_OFFSETS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)


@click.group()
def group() -> None:
    """Show consumer groups and their lag, and change their offsets."""


@group.command("list")
@click.option("--state", "states", multiple=True, metavar="STATE", help="Only groups in this state: Stable, Empty, …")
@output_option(*TABLE_AND_DOCUMENTS, "name")
@common_options
def list_(states: tuple[str, ...], output: str) -> None:
    """List groups."""
    from ottla.client.admin.groups import GroupAdmin

    with connect_cluster() as cluster:
        found, failed = GroupAdmin(cluster).list_groups(states)
    if output == "name":
        for each in found:
            write_line(each.group_id)
    elif output != "table":
        write_documents(output, [each._asdict() for each in found])
    else:
        rows = [(each.group_id, each.state, each.protocol_type or None, each.coordinator) for each in found]
        write_table(("GROUP", "STATE", "PROTOCOL TYPE", "COORDINATOR"), rows)
    exit_with_errors({str(node): error for node, error in failed.items()})


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@click.option("--members", "view", flag_value="members", help="Show the members instead of the offsets.")
@click.option("--state", "view", flag_value="state", help="Show the state of the group only.")
@click.option("--offsets", "view", flag_value="offsets", default=True, help="Show offsets and lag (the default).")
@watch_option
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def describe(names: tuple[str, ...], view: str, watch_s: float | None, output: str) -> None:
    """Show offsets, lag, owners and members of groups."""
    watch_view(watch_s, lambda: _read_groups(names), lambda results: _write_described(results, view, output))


def _write_described(results: Mapping[str, GroupState | Exception], view: str, output: str) -> None:
    found = [result for result in results.values() if not isinstance(result, Exception)]
    if output != "table":
        write_documents(output, [each.document() for each in found])
    elif view == "state":
        write_table(
            ("GROUP", "COORDINATOR", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"),
            [(each.view.group_id, each.view.coordinator, each.view.protocol or None, each.view.state,
              len(each.view.members)) for each in found],
        )  # fmt: skip
    elif view == "members":
        write_table(
            ("GROUP", "CONSUMER-ID", "INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"),
            [(each.view.group_id, member.member_id, member.instance_id, member.host, member.client_id,
              len(member.assignment)) for each in found for member in each.view.members],
        )  # fmt: skip
    else:
        for each in found:
            if not each.view.members:
                print_note(f"group {each.view.group_id} has no active members")
        write_table(_OFFSETS, [row.table_row(each.view.group_id) for each in found for row in each.partitions])
    exit_with_errors(results)


@group.command()
@click.argument("names", nargs=-1, shell_complete=complete_groups)
@output_option(*TABLE_AND_DOCUMENTS)
@common_options
def lag(names: tuple[str, ...], output: str) -> None:
    """Show the lag of groups, the largest first; of all groups when none is named."""
    results = _read_groups(names or None)
    found = sorted(
        (result for result in results.values() if not isinstance(result, Exception)),
        key=lambda each: (-each.lag, each.view.group_id),
    )
    if output != "table":
        documents: list[Json] = [
            {"group": each.view.group_id, "state": each.view.state, "members": len(each.view.members),
             "partitions": len(each.partitions), "lag": each.lag, "worst_lag": each.worst}
            for each in found
        ]  # fmt: skip
        write_documents(output, documents)
    else:
        rows = [(e.view.group_id, e.view.state, len(e.view.members), len(e.partitions), e.lag, e.worst) for e in found]
        write_table(("GROUP", "STATE", "MEMBERS", "PARTITIONS", "LAG", "WORST PARTITION"), rows)
    exit_with_errors(results)


def _read_groups(names: Sequence[str] | None) -> dict[str, GroupState | Exception]:
    from ottla.cli.views.group_views import read_group
    from ottla.client import ClientError
    from ottla.client.admin.groups import GroupAdmin

    results: dict[str, GroupState | Exception] = {}
    with connect_cluster() as cluster:
        if names is None:
            listed, failed = GroupAdmin(cluster).list_groups()
            names = [each.group_id for each in listed]
            results |= {f"broker {node}": error for node, error in failed.items()}
        for name in dict.fromkeys(names):
            try:
                results[name] = read_group(cluster, name)
            except ClientError as error:
                results[name] = error
    return results


# -- changing ----------------------------------------------------------------------------------------------------------


def _where_to(command: F) -> F:
    """The options for the new offsets: `--to`, which can express all of them, and those of Kafka's own tool."""
    for name, kind, text in reversed(
        (
            ("--to", str, "New offset: start, end, N, +N after the start, -N before the end, or @TIME."),
            ("--to-offset", int, "New offset: this number."),
            ("--to-datetime", str, "New offset: of the first record at or after this time: 2026-11-21T08:30:00Z."),
            ("--by-duration", str, "New offset: of the first record since this long ago: 90s, 5m, 1h, 2d."),
            ("--shift-by", int, "New offset: the present one plus this number, which may be negative."),
        )
    ):
        command = click.option(name, type=kind, help=text)(command)
    for name, text in (
        ("--to-current", "New offset: the present one; prints it for a later reset."),
        ("--to-latest", "New offset: the end."),
        ("--to-earliest", "New offset: the start."),
    ):
        command = click.option(name, is_flag=True, help=text)(command)
    return command


@group.command()
@click.argument("name", shell_complete=complete_groups)
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:P,P]", shell_complete=complete_topics,
    help="Only these topics and partitions; by default all with committed offsets.",
)  # fmt: skip
@_where_to
@click.option("--execute", is_flag=True, help="Commit the new offsets; without this they are only shown.")
@output_option("table", "json", "jsonl")
@common_options
def reset(name: str, topics: tuple[str, ...], execute: bool, output: str, **where_to: Any) -> None:
    """Set the offsets of a group that has no members. Shows the new offsets, and with --execute commits them."""
    from ottla.cli.views.group_views import OffsetChange, explain_use, partitions_of, reset_targets
    from ottla.client import Admin, ClientError
    from ottla.client.admin.groups import GroupAdmin
    from ottla.client.positions import OffsetAndMetadata

    bound, shift = _parse_where(where_to)
    wanted = _parse_topic_words(topics)
    with connect_cluster() as cluster:
        groups, admin = GroupAdmin(cluster), Admin(cluster)
        offsets = groups.group_offsets(name)
        current = {tp: each.offset for tp, each in offsets.items() if not isinstance(each, ClientError)}
        places = partitions_of(admin, wanted, current)
        new = reset_targets(admin, dict.fromkeys(places, bound), current, shift)
        results: Mapping[TopicPartition, Exception | None] = {}
        if execute and new:
            results = explain_use(groups, name, groups.alter_group_offsets(name, new))
    changes = [OffsetChange(name, tp, current.get(tp), OffsetAndMetadata(offset)) for tp, offset in new.items()]
    _write_changes(output, [each for each in changes if results.get(each.tp) is None])
    if not execute:
        print_note("nothing was changed: add --execute to commit these offsets")
    exit_with_errors({str(tp): error for tp, error in results.items()})


def _parse_where(given: Mapping[str, Any]) -> tuple[Bound, int | None]:
    """The new offsets: a bound, and a shift from the present offset, or None without one."""
    from ottla.cli.reading.offset_grammar import END, START, parse_bound

    said = {name: value for name, value in given.items() if value not in (None, False)}
    # Two of them could contradict each other, and click cannot express that one is required.
    if len(said) != 1:
        raise click.UsageError("give one new offset: --to, --to-earliest, --to-latest, --to-offset, --shift-by, …")
    name, value = next(iter(said.items()))
    # 1. Relative to the present offset; --to-current is a shift by 0. 2. An end of the log. 3. The rest is written in
    #    the grammar of --to, so that there is one parser.
    if name in ("shift_by", "to_current"):
        return START, value if name == "shift_by" else 0
    if name in ("to_earliest", "to_latest"):
        return START if name == "to_earliest" else END, None
    text = {"to_datetime": f"@{value}", "by_duration": f"@-{value}"}.get(name, str(value))
    try:
        return parse_bound(text, int(time.time() * 1000)), None
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _write_changes(output: str, changes: Sequence[OffsetChange]) -> None:
    if output == "table":
        rows = [(each.group, each.tp.topic, each.tp.partition, each.old, each.new.offset) for each in changes]
        write_table(("GROUP", "TOPIC", "PARTITION", "OLD-OFFSET", "NEW-OFFSET"), rows)
        return
    documents: list[Json] = [
        {"group": each.group, "topic": each.tp.topic, "partition": each.tp.partition, "old_offset": each.old,
         "new_offset": each.new.offset}
        for each in changes
    ]  # fmt: skip
    write_documents(output, documents)


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@common_options
def delete(names: tuple[str, ...]) -> None:
    """Delete groups without members, with their committed offsets. Asks first in a terminal, needs --yes elsewhere."""
    from ottla.cli.views.group_views import explain_use
    from ottla.client.admin.groups import GroupAdmin

    confirm_action(f"Delete {', '.join(names)} with all committed offsets?")
    with connect_cluster() as cluster:
        admin = GroupAdmin(cluster)
        results = {
            name: explain_use(admin, name, {name: error})[name] for name, error in admin.delete_groups(names).items()
        }
    for name, error in results.items():
        if error is None:
            print_note(f"group {name} deleted")
    exit_with_errors(results)


@group.command("delete-offsets")
@click.argument("name", shell_complete=complete_groups)
@click.option("-t", "--topic", "topics", multiple=True, required=True, metavar="TOPIC[:P,P]",
              shell_complete=complete_topics, help="The topics whose offsets to delete.")  # fmt: skip
@common_options
def delete_offsets(name: str, topics: tuple[str, ...]) -> None:
    """Delete the committed offsets of a group for topics that no member consumes."""
    from ottla.cli.views.group_views import explain_use, partitions_of
    from ottla.client import Admin
    from ottla.client.admin.groups import GroupAdmin

    wanted = _parse_topic_words(topics)
    with connect_cluster() as cluster:
        places = partitions_of(Admin(cluster), wanted, ())
        admin = GroupAdmin(cluster)
        results = explain_use(admin, name, admin.delete_group_offsets(name, places))
    for tp, error in results.items():
        if error is None:
            print_note(f"offset of {tp} deleted")
    exit_with_errors({str(tp): error for tp, error in results.items()})


@group.command("remove-member")
@click.argument("name", shell_complete=complete_groups)
@click.argument("members", nargs=-1, metavar="[MEMBER]…")
@click.option("--instance", "instances", multiple=True, metavar="ID", help="The static member with this instance id.")
@click.option("--all", "everyone", is_flag=True, help="All members that the group has now.")
@click.option("--reason", default="removed by ottla", show_default=True, help="For the log of the brokers.")
@output_option("table", "json", "jsonl")
@common_options
def remove_member(
    name: str, members: tuple[str, ...], instances: tuple[str, ...], everyone: bool, reason: str, output: str
) -> None:
    """Remove members of a group, by their ids; their partitions go to the others. Asks first in a terminal.

    A consumer that still runs joins again.
    """
    from ottla.client.admin.groups import GroupAdmin, MemberIdentity

    if everyone == bool(members or instances):
        raise click.UsageError("name members, or --instance, or give --all")
    with connect_cluster() as cluster:
        admin = GroupAdmin(cluster)
        wanted = [*(MemberIdentity(each) for each in members), *(MemberIdentity("", each) for each in instances)]
        if everyone:
            wanted = [_identity(each) for each in admin.describe_group(name).members]
        confirm_action(f"Remove {len(wanted)} members from group {name}?")
        results = admin.remove_members(name, wanted, reason)
    removed = [each for each, error in results.items() if error is None]
    if output in ("json", "jsonl"):
        write_documents(
            output, [{"group": name, "member_id": e.member_id or None, "instance_id": e.instance_id} for e in removed]
        )
    else:
        for each in removed:
            write_line(f"{each} removed")
    exit_with_errors({str(each): error for each, error in results.items()})


def _identity(member: GroupMember) -> MemberIdentity:
    """By its instance id alone where there is one: its member id changes when it joins again."""
    from ottla.client.admin.groups import MemberIdentity

    return MemberIdentity(member.member_id) if member.instance_id is None else MemberIdentity("", member.instance_id)


# -- files of offsets --------------------------------------------------------------------------------------------------


@group.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_groups)
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:P,P]", shell_complete=complete_topics, help=_ONLY
)
@click.option("--with-group", is_flag=True, help="A column for the group in CSV also when one group is named.")
@output_option("csv", "json", "jsonl")
@common_options
def export(names: tuple[str, ...], topics: tuple[str, ...], with_group: bool, output: str) -> None:
    """Print the committed offsets of groups, for `ottla group import` or kafka-consumer-groups --from-file."""
    from ottla.cli.offset_exports import GroupPosition, csv_text
    from ottla.client.admin.groups import GroupAdmin
    from ottla.client.errors import values_of

    wanted = _parse_topic_words(topics)
    with connect_cluster() as cluster:
        admin = GroupAdmin(cluster)
        found = [
            GroupPosition(name, tp, position.offset, position.metadata)
            for name in dict.fromkeys(names)
            for tp, position in values_of(admin.group_offsets(name)).items()
            if _is_wanted(tp, wanted)
        ]
    if output == "csv":
        click.echo(csv_text(found, with_group=with_group or len(names) > 1), nl=False)
    else:
        write_documents(output, [each.to_document() for each in found])
    if not found:
        print_note("no offsets are committed there")


@group.command("import")
@click.argument("path", metavar="FILE")
@click.option("-g", "--group", "name", shell_complete=complete_groups,
              help="The group of rows that name none; of the other rows, only those of this group.")  # fmt: skip
@click.option(
    "-t", "--topic", "topics", multiple=True, metavar="TOPIC[:P,P]", shell_complete=complete_topics, help=_ONLY
)
@click.option("--execute", is_flag=True, help="Commit the offsets; without this they are only shown.")
@output_option("table", "json", "jsonl")
@common_options
def import_(path: str, name: str | None, topics: tuple[str, ...], execute: bool, output: str) -> None:
    """Commit the offsets in FILE (`-`: standard input), which `ottla group export` or Kafka's --export wrote.

    The groups must have no members. Shows the offsets, and with --execute commits them. A file with an error changes
    nothing.
    """
    from ottla.cli.views.group_views import explain_use, plan_import
    from ottla.client import Admin
    from ottla.client.admin.groups import GroupAdmin

    positions = _read_positions(path, name, _parse_topic_words(topics))
    results: dict[str, Exception | None] = {}
    changed: list[OffsetChange] = []
    with connect_cluster() as cluster:
        admin = GroupAdmin(cluster)
        for group_id, changes in plan_import(admin, Admin(cluster), positions, print_note).items():
            new = {each.tp: each.new for each in changes}
            failed: Mapping[TopicPartition, Exception | None] = {}
            if execute:
                failed = explain_use(admin, group_id, admin.alter_group_offsets(group_id, new))
            changed += [each for each in changes if failed.get(each.tp) is None]
            results |= {f"{group_id} {tp}": error for tp, error in failed.items()}
    _write_changes(output, changed)
    if not execute:
        print_note("nothing was changed: add --execute to commit these offsets")
    exit_with_errors(results)


def _read_positions(path: str, name: str | None, wanted: Mapping[str, list[int] | None]) -> list[GroupPosition]:
    """The positions in a file that the options select, each with its group. Raises click.UsageError, OSError."""
    from ottla.cli.offset_exports import parse_positions
    from ottla.cli.record_deletion import read_text

    try:
        found = parse_positions(read_text(path))
    except ValueError as error:
        raise click.UsageError(f"{path} has no offsets as `ottla group export` prints them: {error}") from error
    if name is None and any(each.group is None for each in found):
        raise click.UsageError(f"{path} does not name the group: add --group")
    named = [each._replace(group=name) if each.group is None else each for each in found]
    chosen = [each for each in named if name in (None, each.group) and _is_wanted(each.tp, wanted)]
    if not chosen:
        raise click.UsageError(f"{path} has no offsets of {name or 'a group'} for these topics")
    return chosen


def _parse_topic_words(topics: Sequence[str]) -> dict[str, list[int] | None]:
    from ottla.cli.views.group_views import parse_topics

    try:
        return parse_topics(topics)
    except ValueError as wrong:
        raise click.UsageError(f"--topic takes TOPIC or TOPIC:PARTITION,…: {wrong}") from wrong


def _is_wanted(tp: TopicPartition, wanted: Mapping[str, list[int] | None]) -> bool:
    """Whether a filter of topics and partitions lets a partition through; an empty one lets through all."""
    return not wanted or (tp.topic in wanted and tp.partition in (wanted[tp.topic] or [tp.partition]))
