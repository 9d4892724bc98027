"""JoinGroup of classic groups: who may come in, and what it sets off.

Zone: pure.

Rules
- A newcomer without a member id gets one; since version 4 it has to come back with it (KIP-394), so that clients which
  give up and try again leave nobody behind. Static members (KIP-345) need not.
- So many may be about to come back, and no more: whoever was given an id longest ago loses it, so that a client which
  asks for ids without end costs neither memory nor time.
- Members share a protocol type and at least one protocol.
- A static member that comes anew takes the place of its predecessor, who is fenced. In a stable group whose protocol
  stays the same that sets off no rebalance; if it leads, it is told to leave the assignment alone (KIP-814).
- A joining leader, or a member with other metadata, sets off a rebalance.
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
    go_on,
    prepare,
    remove_member,
    try_complete,
    without_pending,
)
from ottla.seams import Instant
from ottla.wire.limits import MAX_STRING

MAX_PENDING: Final = 10_000
"""Member ids of one group that were given out and are not used yet."""


def join(group: Group | None, command: Join, limits: BrokerConfig, now: Instant) -> Decision:
    """Decide about a JoinGroup."""
    low, high = limits.group_min_session_timeout_ms, limits.group_max_session_timeout_ms
    if not command.group_id:
        return refused(command, ErrorCode.INVALID_GROUP_ID)
    if not low <= command.session_timeout_ms <= high:
        return refused(command, ErrorCode.INVALID_SESSION_TIMEOUT)
    if group is None:
        if command.member_id:
            return refused(command, ErrorCode.UNKNOWN_MEMBER_ID)
        group = Group(command.group_id, now.wall_ms)
    if not _has_room(group, command.member_id, limits.group_max_size):
        return _too_many(group, command, limits, now)
    if not group.supports(command.protocol_type, [name for name, _ in command.protocols]):
        return refused(command, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    draft = GroupDraft(group, limits, now)
    if command.member_id:
        _join_again(draft, command)
    else:
        _join_new(draft, command)
    return draft.outcome()


def refused(command: Join, code: ErrorCode) -> Decision:
    """Only an error."""
    return Decision(now=(AnswerEffect(command.ticket, JoinResult(code, command.member_id)),))  # type: ignore[arg-type]


def _has_room(group: Group, member_id: str, max_size: int) -> bool:
    """Whether one more may be in. During a rebalance those count who have joined it: the first ones are in."""
    if group.state is GroupState.EMPTY:
        return True
    member = group.members.get(member_id)
    if group.state is GroupState.PREPARING_REBALANCE:
        joined = sum(each.join is not None for each in group.members.values())
        return joined < max_size or (member is not None and member.join is not None)
    return member is not None or len(group.members) < max_size


def _too_many(group: Group, command: Join, limits: BrokerConfig, now: Instant) -> Decision:
    """Refuse; a member of a generation from before the limit was lowered is out."""
    outcome = refused(command, ErrorCode.GROUP_MAX_SIZE_REACHED)
    if command.member_id not in group.members:
        return outcome
    draft = GroupDraft(group, limits, now)
    draft.now_effects += outcome.now
    remove_member(draft, command.member_id)
    try_complete(draft)
    return draft.outcome()


def _join_new(draft: GroupDraft, command: Join) -> None:
    member_id = new_member_id(command)
    if command.instance_id is not None:
        predecessor = draft.group.statics.get(command.instance_id)
        if predecessor is None:
            _add(draft, command, member_id)
        else:
            _replace_static(draft, command, predecessor, member_id)
    elif command.require_known:
        _make_room(draft)
        draft.group.pending[member_id] = None
        draft.set_deadline(DeadlineKind.SESSION, command.session_timeout_ms, member_id)
        draft.answer_member(command.ticket, JoinResult(ErrorCode.MEMBER_ID_REQUIRED, member_id))
    else:
        _add(draft, command, member_id)


def new_member_id(command: Join) -> str:
    """Composed as in Kafka. It is stored and repeated in versions whose strings have 32,767 bytes at most, so the
    client's part is cut to what is left."""
    suffix = f"-{command.new_id}"
    name = command.client_id if command.instance_id is None else command.instance_id
    return cut_text(name, MAX_STRING - len(suffix), "") + suffix


def _make_room(draft: GroupDraft) -> None:
    pending = draft.group.pending
    if len(pending) >= MAX_PENDING:
        without_pending(draft, next(iter(pending)))


def _join_again(draft: GroupDraft, command: Join) -> None:
    group, member_id = draft.group, command.member_id
    if member_id in group.pending and command.instance_id is None:
        _add(draft, command, member_id)
        return
    code = group.check_member(member_id, command.instance_id)
    if code:
        draft.answer_member(command.ticket, JoinResult(code, member_id))
        return
    member = group.members[member_id]
    same = member.protocols == command.protocols
    leads = group.state is GroupState.STABLE and group.leader == member_id
    if group.state is GroupState.PREPARING_REBALANCE or not same or leads:
        _update(draft, member, command)
        go_on(draft)
    else:  # it has not heard of its generation, or asks without need
        draft.answer_member(command.ticket, group.joined(member_id))
        draft.session(member)


def _member(command: Join, member_id: str) -> Member:
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


def _add(draft: GroupDraft, command: Join, member_id: str) -> None:
    group = draft.group
    group.pending.pop(member_id, None)
    if not group.members:
        group.protocol_type = command.protocol_type
    if group.state is GroupState.PREPARING_REBALANCE and group.in_delay:
        group.newcomers = True
    group.put_member(_member(command, member_id)._replace(is_new=True))
    draft.set_deadline(DeadlineKind.SESSION, NEW_MEMBER_MS, member_id)
    go_on(draft)


def _update(draft: GroupDraft, member: Member, command: Join) -> None:
    """The member waits for the rebalance; if an earlier request of it does so, that one is given up."""
    if member.join is not None:
        draft.answer_member(member.join, JoinResult(ErrorCode.REBALANCE_IN_PROGRESS, member.member_id))
    fresh = _member(command, member.member_id)
    draft.group.put_member(fresh._replace(assignment=member.assignment, sync=member.sync, is_new=member.is_new))
    if not member.is_new:
        draft.set_deadline(DeadlineKind.SESSION, None, member.member_id)  # alive as long as its request waits


def _replace_static(draft: GroupDraft, command: Join, old_id: str, member_id: str) -> None:
    """A static member under a new member id; whoever uses the old one is fenced."""
    group = draft.group
    leader_before, state = group.leader, group.state
    old = group.members.pop(old_id)
    fresh = _member(command, member_id)._replace(assignment=old.assignment)
    group.put_member(fresh)
    group.leader = member_id if leader_before == old_id else leader_before
    if old_id in group.pending_sync:
        del group.pending_sync[old_id]
        group.pending_sync[member_id] = None
    draft.set_deadline(DeadlineKind.SESSION, None, old_id)
    if old.join is not None:
        draft.answer_member(old.join, JoinResult(ErrorCode.FENCED_INSTANCE_ID, old_id))
    if old.sync is not None:
        draft.answer_member(old.sync, SyncResult(ErrorCode.FENCED_INSTANCE_ID))
    if state is GroupState.STABLE and group.select_protocol() == group.protocol:
        group.put_member(fresh._replace(join=None))
        draft.session(fresh)
        draft.save()
        _welcome_back(draft, command, member_id, leader_before)
    elif state is GroupState.PREPARING_REBALANCE:
        try_complete(draft)
    else:
        prepare(draft)


def _welcome_back(draft: GroupDraft, command: Join, member_id: str, leader_before: str | None) -> None:
    """No rebalance. Older clients hear the old leader's name, so that a leader does not think that it has to assign."""
    group = draft.group
    result = group.joined(member_id)
    if command.can_skip:
        result = result._replace(skip_assignment=member_id == group.leader)
    else:
        result = result._replace(leader=leader_before or "", members=())
    draft.committed.append(AnswerEffect(command.ticket, result))  # type: ignore[arg-type]
