"""Descriptions of share groups in the layout of kafka-share-groups --describe: offsets, members or state.

Zone: real.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from ottla.client.admin.share_groups import ShareGroupAdmin, ShareGroupMember, ShareGroupView, ShareOffset
from ottla.client.cluster import Cluster
from ottla.client.errors import ClientError
from ottla.kafka_tools.java_errors import error_text, tool_error
from ottla.kafka_tools.options import Options
from ottla.types import TopicPartition

_MISSING: Final = "-"
_NARROWEST: Final = 15


def describe_share_groups(cluster: Cluster, names: Sequence[str], options: Options) -> None:
    """Print the description that the options name. Raises ToolError, ClientError."""
    admin = ShareGroupAdmin(cluster)
    # All groups are described before the first is printed: an unknown one leaves no half of an output.
    try:
        groups = [admin.describe_share_group(name) for name in names]
    except ClientError as error:
        raise tool_error(error, wrapped=True) from error
    verbose = options.has("verbose")
    if options.has("members"):
        for group in groups:
            _print_members(group, verbose=verbose)
    elif options.has("state"):
        for group in groups:
            _print_state(cluster, group, verbose=verbose)
    else:
        offsets = {group.group_id: admin.share_group_offsets(group.group_id) for group in groups}
        for name, found in offsets.items():
            _print_offsets(name, _read_offsets(found), verbose=verbose)


def _print_activity(group: ShareGroupView) -> None:
    """Print the sentence about a group without active members."""
    if group.state == "Dead":
        print(f"\nError: Share group '{group.group_id}' does not exist.", flush=True)
    elif group.state == "Empty":
        # On standard error, so that scripts read only the table; the sentence about a dead group is an error on stdout.
        print(f"\nShare group '{group.group_id}' has no active members.", file=sys.stderr)


def _print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int]) -> None:
    """Print an empty line, titles and rows. widths: the least of each column but the last, which has none."""
    print()
    for row in (titles, *rows):
        cells = [f"{cell:<{wide}}" for cell, wide in zip(row, widths, strict=False)]
        print(" ".join([*cells, row[-1]]))


# -- offsets -----------------------------------------------------------------------------------------------------------


def _read_offsets(
    found: Mapping[TopicPartition, ShareOffset | ClientError | None],
) -> dict[TopicPartition, ShareOffset | None]:
    """The offsets that could be read. As in Kafka's tool, the others are warnings."""
    offsets: dict[TopicPartition, ShareOffset | None] = {}
    for tp, offset in found.items():
        if isinstance(offset, ClientError):
            print(f"WARN The offset of {tp} is left out: {error_text(offset)}", file=sys.stderr)
        else:
            offsets[tp] = offset
    return offsets


def _print_offsets(name: str, offsets: Mapping[TopicPartition, ShareOffset | None], *, verbose: bool) -> None:
    if not offsets:
        print(f"\nShare group '{name}' has no offset information.")
        return
    titles = ["GROUP", "TOPIC", "PARTITION", "START-OFFSET", "LAG"]
    widths = [max(_NARROWEST, len(name)), max([_NARROWEST, *(len(tp.topic) for tp in offsets)]), 10, 13]
    rows = [[name, tp.topic, str(tp.partition), *_offset_cells(offset)] for tp, offset in offsets.items()]
    if verbose:
        titles.insert(3, "LEADER-EPOCH")
        widths.insert(3, 13)
        for row, offset in zip(rows, offsets.values(), strict=True):
            row.insert(3, _number_text(-1 if offset is None else offset.leader_epoch))
    _print_table(titles, rows, widths)


def _offset_cells(offset: ShareOffset | None) -> tuple[str, str]:
    if offset is None:
        return _MISSING, _MISSING
    return str(offset.start_offset), _number_text(offset.lag)


def _number_text(number: int) -> str:
    return str(number) if number >= 0 else _MISSING


# -- members and state -------------------------------------------------------------------------------------------------


def _print_members(group: ShareGroupView, *, verbose: bool) -> None:
    _print_activity(group)
    if group.state == "Dead" or not group.members:
        return
    members = sorted(group.members, key=lambda member: member.member_id)
    titles = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS", "ASSIGNMENT"]
    rows = [
        [group.group_id, each.member_id, each.host, each.client_id, str(len(each.assignment)), _assignment_text(each)]
        for each in members
    ]
    widths = [*(max([_NARROWEST, *(len(row[column]) for row in rows)]) for column in range(4)), 12]
    if verbose:
        titles.insert(5, "MEMBER-EPOCH")
        widths.append(13)
        for row, member in zip(rows, members, strict=True):
            row.insert(5, str(member.member_epoch))
    _print_table(titles, rows, widths)


def _assignment_text(member: ShareGroupMember) -> str:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(member.assignment):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return ";".join(sorted(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items()))


def _print_state(cluster: Cluster, group: ShareGroupView, *, verbose: bool) -> None:
    _print_activity(group)
    node = cluster.view.nodes.get(group.coordinator)
    address = _MISSING if node is None else f"{node.host}:{node.port}"
    coordinator = f"{address}  ({group.coordinator})"
    titles = ["GROUP", "COORDINATOR (ID)", "STATE", "#MEMBERS"]
    row = [group.group_id, coordinator, group.state, str(len(group.members))]
    widths = [max(_NARROWEST, len(group.group_id)), max(25, len(coordinator)), 15]
    if verbose:
        titles[3:3] = ["GROUP-EPOCH", "ASSIGNMENT-EPOCH"]
        row[3:3] = [str(group.group_epoch), str(group.assignment_epoch)]
        widths += [12, 17]
    _print_table(titles, [row], widths)
