"""Removal: groups that are deleted, offsets that expire, offsets in topics that are deleted.

Zone: pure. Each step writes a bounded number of tombstones; the caller repeats it until nothing is left.

When an offset expires (KIP-211): `offsets.retention.minutes` after

- its group became empty, in a group that had members;
- its commit, in a group that only stores offsets (no protocol type);
- its commit, in a stable group none of whose members subscribes to the topic.

An offset that an old client committed with a retention time of its own expires after that time instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ottla.coordinator.shard import AnswerEffect, Decision
from ottla.errors import ErrorCode
from ottla.groups.commands import DeleteGroup, ForgetTopics
from ottla.groups.group import CONSUMER, Group, GroupState
from ottla.groups.offsets import Offsets, PartitionKey
from ottla.groups.rebalancing import GroupForgotten
from ottla.groups.records import GroupSaved, OffsetCommitted, Position

TOMBSTONES: Final = 1000
"""The most tombstones of one step, which takes some milliseconds."""
LOOKED_AT: Final = 20_000
"""A step ends once this many offsets are searched, also when few of them are removed."""
_MS_PER_MINUTE: Final = 60_000


class GroupSwept(NamedTuple):
    """Volatile: the sweep has finished a group."""

    group_id: str


def delete_group(group: Group | None, offsets: Offsets, command: DeleteGroup) -> Decision:
    """Decide about one step of a DeleteGroups."""
    if group is None:
        return _deletion_result(command, ErrorCode.GROUP_ID_NOT_FOUND)
    if group.state is not GroupState.EMPTY:
        return _deletion_result(command, ErrorCode.NON_EMPTY_GROUP)
    places = [place for place, _ in islice(offsets.of_group(group.group_id), TOMBSTONES + 1)]
    records: list[object] = [OffsetCommitted(group.group_id, *place, None) for place in places[:TOMBSTONES]]
    # The group's own record comes last: until then a failover finds a group that can be deleted again.
    if len(places) > TOMBSTONES:
        again = AnswerEffect(command.ticket, None)  # type: ignore[arg-type]
        return Decision(records=records, committed=(again,))
    records.append(GroupSaved(group.group_id, None))
    done = AnswerEffect(command.ticket, ErrorCode.NONE)  # type: ignore[arg-type]
    return Decision(records=records, committed=(done,))


def _deletion_result(command: DeleteGroup, code: ErrorCode) -> Decision:
    return Decision(now=(AnswerEffect(command.ticket, code),))  # type: ignore[arg-type]


def forget_topics(groups: Sequence[str], offsets: Offsets, command: ForgetTopics) -> Decision:
    """Decide about one step of dropping the offsets of deleted topics. The result: the groups of the next steps.

    A step ends after `TOMBSTONES`, or after the group with which it has searched `LOOKED_AT` offsets.
    """
    records: list[object] = []
    seen = through = 0
    for group_id in groups:
        doomed = list(islice(offsets.in_topics(group_id, command.topics), TOMBSTONES - len(records)))
        records += [OffsetCommitted(group_id, *place, None) for place in doomed]
        if len(records) >= TOMBSTONES:
            break  # this group may have more: it stays the first one of the next step
        through += 1
        # A group without offsets counts as well: a million of them would otherwise be one step.
        seen += 1 + offsets.count_of(group_id)
        if seen >= LOOKED_AT:
            break
    left = groups[through:]
    return Decision(records=records, committed=(AnswerEffect(command.ticket, left),))  # type: ignore[arg-type]


def sweep_group(group_id: str, group: Group | None, offsets: Offsets, retention_minutes: int, now_ms: int) -> Decision:
    """Decide about one step of the search for expired offsets in a group. An empty group without offsets is removed."""
    if group is None:
        return Decision((GroupSwept(group_id),))
    retention_ms = retention_minutes * _MS_PER_MINUTE
    doomed = list(islice(_expired_partitions(group, offsets, retention_ms, now_ms), TOMBSTONES))
    records: list[object] = [OffsetCommitted(group_id, *place, None) for place in doomed]
    # 1. A full step may have left some: without GroupSwept the same group is swept again.
    if len(doomed) == TOMBSTONES:
        return Decision(records=records)
    # 2. The group is done. It goes with its last offset, unless a member or a transaction may still use it.
    volatile: list[object] = [GroupSwept(group_id)]
    left = sum(1 for _ in offsets.of_group(group_id)) - len(doomed)
    if group.state is GroupState.EMPTY and not left and not group.pending and not any(offsets.open_of_group(group_id)):
        if group.generation > 0:  # else it never had a generation, and nothing of it is journaled
            records.append(GroupSaved(group_id, None))
        else:
            volatile.append(GroupForgotten(group_id))
    return Decision(volatile, records)


def _expired_partitions(group: Group, offsets: Offsets, retention_ms: int, now_ms: int) -> Iterator[PartitionKey]:
    consumed = group.subscribed_topics() if group.state is GroupState.STABLE else None
    in_use = group.protocol_type is not None and group.state is not GroupState.EMPTY
    if in_use and (group.protocol_type != CONSUMER or consumed is None):
        return  # the topics that its members consume are unknown, so nothing of it expires
    for place, position in offsets.of_group(group.group_id):
        if offsets.is_open(group.group_id, place) or (consumed is not None and place[0] in consumed):
            continue
        if now_ms >= _expires_at(group, position, retention_ms):
            yield place


def _expires_at(group: Group, position: Position, retention_ms: int) -> int:
    # 1. The commit had a retention time of its own. 2. The group has become empty. 3. Otherwise the commit's time
    # counts.
    if position.expire_ms >= 0:
        return position.expire_ms
    since = position.commit_ms
    if group.protocol_type is not None and group.state is GroupState.EMPTY and group.since_ms >= 0:
        since = group.since_ms
    return since + retention_ms
