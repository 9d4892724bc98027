"""JoinGroup of classic groups: which members are accepted, and when a rebalance begins.

Zone: pure.

Rules
- A new member without a member id gets one. Since version 4 it must join again with it (KIP-394): a client that gives
  up and tries again leaves no member behind that the group would wait for. Static members (KIP-345) join at once.
- At most `MAX_PENDING` member ids may be given out and unused. The oldest is withdrawn for a new one, so a client that
  requests ids without end costs neither memory nor time.
- Members share a protocol type and at least one protocol.
- A static member that joins without its member id replaces its predecessor, which is fenced. In a stable group whose
  protocol does not change this begins no rebalance; a static leader gets `skip_assignment` then (KIP-814).
- A leader that joins again, or a member with changed metadata, begins a rebalance.
"""

from __future__ import annotations

from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import AnswerEffect, Decision
from ottla.errors import ErrorCode, cut_text
from ottla.groups.commands import Join
from ottla.groups.deadlines import DeadlineKind
from ottla.groups.group import Group, GroupState, JoinResult, Member, SyncResult
from ottla.groups.rebalancing import (
    NEW_MEMBER_MS,
    GroupDraft,
    continue_rebalance,
    prepare_rebalance,
    remove_member,
    try_complete,
    without_pending,
)
from ottla.seams import Instant
from ottla.wire.limits import MAX_STRING

MAX_PENDING: Final = 10_000
"""The most member ids of one group that are given out and not used yet."""


def join_group(group: Group | None, command: Join, limits: BrokerConfig, now: Instant) -> Decision:
    """Decide about a JoinGroup."""
    # 1. Requests that are invalid for any group.
    low, high = limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms
    if not command.group_id:
        return refused(command, ErrorCode.INVALID_GROUP_ID)
    if not low <= command.session_timeout_ms <= high:
        return refused(command, ErrorCode.INVALID_SESSION_TIMEOUT)
    # 2. An unknown group is created, but only for a new member: one with an id belonged to a group that is gone.
    if group is None:
        if command.member_id:
            return refused(command, ErrorCode.UNKNOWN_MEMBER_ID)
        group = Group(command.group_id, now.wall_ms)
    # 3. Size before protocols: a full group answers GROUP_MAX_SIZE_REACHED whatever the member supports.
    if not _has_room(group, command.member_id, limits.group_max_size):
        return _too_many(group, command, limits, now)
    if not group.accepts_protocols(command.protocol_type, [name for name, _ in command.protocols]):
        return refused(command, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    # 4. The member may join.
    draft = GroupDraft(group, limits, now)
    if command.member_id:
        _join_again(draft, command)
    else:
        _join_new(draft, command)
    return draft.to_decision()


def refused(command: Join, code: ErrorCode) -> Decision:
    """A decision that only answers with an error."""
    return Decision(now=(AnswerEffect(command.ticket, JoinResult(code, command.member_id)),))  # type: ignore[arg-type]


def _has_room(group: Group, member_id: str, max_size: int) -> bool:
    """Whether the group has room for the member. During a rebalance only members that have joined it count."""
    if group.state is GroupState.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        return group.awaiting_join < max_size or (member is not None and member.join is not None)
    return member is not None or len(group.members) < max_size


def _too_many(group: Group, command: Join, limits: BrokerConfig, now: Instant) -> Decision:
    """Refuse a member. If the group has it already, because the limit was lowered since, the member is removed."""
    outcome = refused(command, ErrorCode.GROUP_MAX_SIZE_REACHED)
    if command.member_id not in group.members:
        return outcome
    draft = GroupDraft(group, limits, now)
    draft.now_effects += outcome.now
    remove_member(draft, command.member_id)
    try_complete(draft)
    return draft.to_decision()


def _join_new(draft: GroupDraft, command: Join) -> None:
    member_id = new_member_id(command)
    # 1. A static member is new, or replaces the holder of its instance id.
    if command.instance_id is not None:
        predecessor = draft.group.statics.get(command.instance_id)
        if predecessor is None:
            _add_member(draft, command, member_id)
        else:
            _replace_static(draft, command, predecessor, member_id)
    # 2. Version 4 and later: the client must join again with the id. Its session runs from now on.
    elif command.require_known:
        _make_room(draft)
        draft.group.pending[member_id] = None
        draft.set_deadline(DeadlineKind.SESSION, command.session_timeout_ms, member_id)
        draft.answer_member(command.ticket, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    # 3. Older versions cannot join twice.
    else:
        _add_member(draft, command, member_id)


def new_member_id(command: Join) -> str:
    """A member id, composed as in Kafka: client id or instance id, then the unique part.

    Records and old versions hold strings of at most 32,767 bytes, so the client's part is cut to the room that is left.
    """
    suffix = f"-{command.new_id}"
    name = command.client_id if command.instance_id is None else command.instance_id
    return cut_text(name, MAX_STRING - len(suffix), "") + suffix


def _make_room(draft: GroupDraft) -> None:
    pending = draft.group.pending
    if len(pending) >= MAX_PENDING:
        without_pending(draft, next(iter(pending)))


def _join_again(draft: GroupDraft, command: Join) -> None:
    group, member_id = draft.group, command.member_id
    # 1. The second JoinGroup of a new member (KIP-394).
    if member_id in group.pending and command.instance_id is None:
        _add_member(draft, command, member_id)
        return
    # 2. An unknown or fenced member.
    code = group.check_member(member_id, command.instance_id)
    if code:
        draft.answer_member(command.ticket, JoinResult(code, member_id))
        return
    # 3. A member takes part in the rebalance, or begins one.
    member = group.members[member_id]
    same = member.protocols == command.protocols
    leads = group.state is GroupState.STABLE and group.leader == member_id
    if group.state is GroupState.PREPARING_REBALANCE or not same or leads:
        _update_member(draft, member, command)
        continue_rebalance(draft)
    # 4. Nothing has changed for the group: the response to its first JoinGroup was lost. It gets the same one again.
    else:
        draft.answer_member(command.ticket, group.join_result(member_id))
        draft.restart_session(member)


def _new_member(command: Join, member_id: str) -> Member:
    return Member(
        member_id,
        command.instance_id,
        command.client_id,
        command.client_host,
        command.session_timeout_ms,
        command.rebalance_timeout_ms,
        command.protocols,
        join=command.ticket,
    )


def _add_member(draft: GroupDraft, command: Join, member_id: str) -> None:
    group = draft.group
    group.pending.pop(member_id, None)
    if not group.members:
        group.protocol_type = command.protocol_type
    if group.state is GroupState.PREPARING_REBALANCE and group.in_delay:
        group.newcomers = True
    group.put_member(_new_member(command, member_id)._replace(is_new=True))
    # As in Kafka (KAFKA-7610): its own session begins with the response, which has the member id that heartbeats need.
    draft.set_deadline(DeadlineKind.SESSION, NEW_MEMBER_MS, member_id)
    continue_rebalance(draft)


def _update_member(draft: GroupDraft, member: Member, command: Join) -> None:
    """Let the member wait for the rebalance with this request. An earlier request of it that waits is refused."""
    if member.join is not None:
        draft.answer_member(member.join, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    fresh = _new_member(command, member.member_id)
    draft.group.put_member(fresh._replace(assignment=member.assignment, sync=member.sync, is_new=member.is_new))
    if not member.is_new:
        draft.set_deadline(DeadlineKind.SESSION, None, member.member_id)  # its waiting request keeps it alive


def _replace_static(draft: GroupDraft, command: Join, old_id: str, member_id: str) -> None:
    """Replace a static member: the same instance id under a new member id. Requests with the old one are fenced."""
    group = draft.group
    leader_before, state = group.leader, group.state
    # 1. The new member takes the old one's place: assignment, leadership, missing SyncGroup.
    fresh = _new_member(command, member_id)._replace(assignment=group.members[old_id].assignment)
    # `remove_member` would make another member the leader.
    old = group.replace_member_id(old_id, fresh)
    if old_id in group.pending_sync:
        del group.pending_sync[old_id]
        group.pending_sync[member_id] = None
    # 2. The old member's session and waiting requests end.
    draft.set_deadline(DeadlineKind.SESSION, None, old_id)
    if old.join is not None:
        draft.answer_member(old.join, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id))
    if old.sync is not None:
        draft.answer_member(old.sync, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
    # 3. A stable group keeps its generation if its protocol does not change. Else the new member joins the rebalance,
    #    or begins one.
    if state is GroupState.STABLE and group.select_protocol() == group.protocol:
        group.put_member(fresh._replace(join=None))
        draft.restart_session(fresh)
        # The member id has changed. A new coordinator without this record would know the old one, and fence the member
        # that holds the instance id now.
        draft.journal_group()
        _welcome_back(draft, command, member_id, leader_before)
    elif state is GroupState.PREPARING_REBALANCE:
        try_complete(draft)
    else:
        prepare_rebalance(draft)


def _welcome_back(draft: GroupDraft, command: Join, member_id: str, leader_before: str | None) -> None:
    """Answer a replaced static member without a rebalance.

    A client that does not know `skip_assignment` gets the old leader's member id: else a leader would assign.
    """
    group = draft.group
    result = group.join_result(member_id)
    if command.can_skip:
        result = result._replace(skip_assignment=member_id == group.leader)
    else:
        result = result._replace(leader=leader_before or "", members=())
    draft.committed.append(AnswerEffect(command.ticket, result))  # type: ignore[arg-type]
