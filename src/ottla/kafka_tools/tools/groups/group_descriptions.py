"""Descriptions of groups in the layout of kafka-consumer-groups --describe: offsets, members or state.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ottla.client.admin.admin import Admin
from ottla.client.admin.groups import GroupAdmin, GroupMember, GroupOffset, GroupView
from ottla.client.admin.types import LATEST, OffsetFound
from ottla.client.cluster import Cluster
from ottla.client.errors import RefusedError
from ottla.errors import ErrorCode
from ottla.kafka_tools.options import Options
from ottla.types import TopicPartition

MISSING = "-"
_OLD_LINE: Final = "{:<30} {:<10} {:<15} {:<15} {:<10} {:<50}{:<30} {}"
"""A line of Kafka 1.0. There is no space before the host, as in its tool."""
_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


class _OffsetRow(NamedTuple):
    """A partition of a group."""

    group: str
    topic: str
    partition: str
    epoch: str
    current: str
    end: str
    lag: str
    member: str
    host: str
    client: str


def describe_groups(cluster: Cluster, names: Sequence[str], options: Options) -> None:
    """Print the description that the options name. Raises ClientError."""
    admin = GroupAdmin(cluster)
    groups = [admin.describe_group(name) for name in sorted(names)]
    verbose = options.has("verbose")
    if not groups:
        print("No consumer groups found.")
    if options.has("members"):
        for group in groups:
            if _print_activity(group):
                _print_members(group, verbose=verbose)
        return
    if options.has("state"):
        for group in groups:
            if _print_activity(group):
                _print_state(cluster, group, verbose=verbose)
        return
    for group in groups:
        rows = _offset_rows(cluster, admin, group)
        if _print_activity(group) and rows:
            _print_offsets(rows, verbose=verbose)


def _print_activity(group: GroupView) -> bool:
    """Print the sentence about a group without active members; False if there is nothing else to print."""
    if group.state == "Dead":
        print(f"\nError: Consumer group '{group.group_id}' does not exist.")
        return False
    if group.state == "Empty":
        print(f"\nConsumer group '{group.group_id}' has no active members.", file=sys.stderr)
    elif group.state in _REBALANCING:
        print(f"\nWarning: Consumer group '{group.group_id}' is rebalancing.", file=sys.stderr)
    return True


def _offset_rows(cluster: Cluster, admin: GroupAdmin, group: GroupView) -> list[_OffsetRow]:
    committed = admin.group_offsets(group.group_id)
    owners = {tp: member for member in group.members for tp in member.assignment}
    wanted = sorted({*committed, *owners})
    # An offset may outlive its topic: such a partition has no end, and is shown nevertheless.
    known = {name for name, found in cluster.refresh({tp.topic for tp in wanted}).topics.items() if _is_known(found)}
    ends = Admin(cluster).list_offsets(dict.fromkeys((tp for tp in wanted if tp.topic in known), LATEST))
    # As in Kafka's tool: partitions of members first, by member, then those that have offsets and no member.
    owned = [
        _offset_row(group, tp, committed.get(tp), ends.get(tp), member)
        for member in sorted(group.members, key=lambda member: -len(member.assignment))
        for tp in sorted(member.assignment)
    ]
    return owned + [_offset_row(group, tp, committed[tp], ends.get(tp), None) for tp in wanted if tp not in owners]


def _is_known(found: object) -> bool:
    return not (isinstance(found, RefusedError) and found.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def _offset_row(
    group: GroupView, tp: TopicPartition, committed: object, end: object, member: GroupMember | None
) -> _OffsetRow:
    current = committed.offset if isinstance(committed, GroupOffset) else None
    epoch = committed.leader_epoch if isinstance(committed, GroupOffset) and committed.leader_epoch >= 0 else None
    last = end.offset if isinstance(end, OffsetFound) else None
    lag = None if current is None or last is None else last - current
    who = (MISSING, MISSING, MISSING) if member is None else (member.member_id, member.host, member.client_id)
    name, host, client = who
    return _OffsetRow(
        group.group_id,
        tp.topic,
        str(tp.partition),
        _cell(epoch),
        _cell(current),
        _cell(last),
        _cell(lag),
        name,
        host,
        client,
    )


def _cell(number: int | None) -> str:
    return MISSING if number is None else str(number)


def _print_offsets(rows: Sequence[_OffsetRow], *, verbose: bool) -> None:
    group, topic, member, host = (
        max([15, *(len(getattr(row, name)) for row in rows)]) for name in ("group", "topic", "member", "host")
    )

    def line(row: _OffsetRow) -> str:
        epoch = f"{row.epoch:<15} " if verbose else ""
        return (
            f"{row.group:<{group}} {row.topic:<{topic}} {row.partition:<10} {epoch}{row.current:<15} {row.end:<15} "
            f"{row.lag:<15} {row.member:<{member}} {row.host:<{host}} {row.client}"
        )

    titles = ("GROUP", "TOPIC", "PARTITION", "LEADER-EPOCH", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID")
    print("\n" + line(_OffsetRow(*titles, "HOST", "CLIENT-ID")))
    for row in rows:
        print(line(row))


# -- as Kafka 1.0 does -------------------------------------------------------------------------------------------------


def describe_as_kafka_1(cluster: Cluster, name: str) -> None:
    """Print the offsets of a group in the table of Kafka 1.0, which does not name the group. Raises ClientError."""
    admin = GroupAdmin(cluster)
    group = _find_group(admin, name)
    if group is None:
        print(f"Error: Consumer group '{name}' does not exist.")
        return
    if group.state == "Empty":
        print(f"Consumer group '{name}' has no active members.", file=sys.stderr)
    elif group.state in _REBALANCING:
        print(f"Warning: Consumer group '{name}' is rebalancing.", file=sys.stderr)
    titles = ("TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST", "CLIENT-ID")
    print("\n" + _OLD_LINE.format(*titles))
    for row in _old_rows(group, _offset_rows(cluster, admin, group)):
        cells = (row.topic, row.partition, row.current, row.end, row.lag, row.member, row.host, row.client)
        print(_OLD_LINE.format(*cells))


def _find_group(admin: GroupAdmin, name: str) -> GroupView | None:
    try:
        group = admin.describe_group(name)
    except RefusedError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return None
    return None if group.state == "Dead" else group


def _old_rows(group: GroupView, rows: Sequence[_OffsetRow]) -> list[_OffsetRow]:
    """The rows that Kafka 1.0 shows: none without an offset, else also one for each member without partitions."""
    if all(row.current == MISSING for row in rows):
        return []
    owned = [row for row in rows if row.member != MISSING]
    blank = dict.fromkeys(_OffsetRow._fields, MISSING)
    idle = [
        _OffsetRow(**blank | {"member": member.member_id, "host": member.host, "client": member.client_id})
        for member in group.members
        if not member.assignment
    ]
    return [*owned, *idle, *rows[len(owned) :]]


# -- members and state -------------------------------------------------------------------------------------------------


def _print_members(group: GroupView, *, verbose: bool) -> None:
    members = group.members
    names = max([15, *(len(member.member_id) for member in members)])
    wide = max([15, len(group.group_id)])
    hosts = max([15, *(len(member.host) for member in members)])
    clients = max([15, *(len(member.client_id) for member in members)])
    instances = max([17, *(len(member.instance_id or "") for member in members)])
    static = any(member.instance_id for member in members)

    def line(cells: Sequence[str], instance: str) -> str:
        name, owner, host, client, count = cells
        own = f"{instance:<{instances}} " if static else ""
        return f"{name:<{wide}} {owner:<{names}} {own}{host:<{hosts}} {client:<{clients}} {count:<15} "

    details = _member_details(group) if verbose else [""] * (len(members) + 1)
    print("\n" + line(("GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"), "GROUP-INSTANCE-ID") + details[0])
    for member, more in zip(members, details[1:], strict=True):
        cells = (group.group_id, member.member_id, member.host, member.client_id, str(len(member.assignment)))
        print(line(cells, member.instance_id or "") + more)


def _member_details(group: GroupView) -> list[str]:
    """The columns of --verbose: their titles, and the cells of each member."""
    rows = [
        (
            _cell(member.member_epoch),
            _assignment_text(member.assignment) or MISSING,
            _cell(group.assignment_epoch),
            _assignment_text(member.target_assignment) or MISSING,
            MISSING if member.upgraded is None else str(member.upgraded).lower(),
        )
        for member in group.members
    ]
    titles = ("CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED")
    current, target = (max([20, *(len(row[column]) for row in rows)]) for column in (1, 3))
    # Only while a group has members of both protocols.
    both = {False, True} <= {member.upgraded for member in group.members}
    return [
        f"{epoch:<15} {assigned:<{current}} {aim_epoch:<15} {aim:<{target}}" + (f" {upgraded}" if both else "")
        for epoch, assigned, aim_epoch, aim, upgraded in (titles, *rows)
    ]


def _assignment_text(assignment: Iterable[TopicPartition]) -> str:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(assignment):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items())


def _print_state(cluster: Cluster, group: GroupView, *, verbose: bool) -> None:
    node = cluster.view.nodes.get(group.coordinator)
    address = MISSING if node is None else f"{node.host}:{node.port}"
    coordinator = f"{address}  ({group.coordinator})"
    wide = max(15, len(group.group_id))
    where = max(25, len(coordinator))
    epochs = f"{'GROUP-EPOCH':<15} {'TARGET-ASSIGNMENT-EPOCH':<25} " if verbose else ""
    head = f"{'GROUP':<{wide}} {'COORDINATOR (ID)':<{where}} {'ASSIGNMENT-STRATEGY':<20} {'STATE':<20}"
    print(f"\n{head} {epochs}#MEMBERS")
    epochs = f"{_cell(group.group_epoch):<15} {_cell(group.assignment_epoch):<25} " if verbose else ""
    strategy = group.protocol or MISSING
    row = f"{group.group_id:<{wide}} {coordinator:<{where}} {strategy:<20} {group.state:<20}"
    print(f"{row} {epochs}{len(group.members)}")
