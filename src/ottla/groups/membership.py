"""SyncGroup, Heartbeat, LeaveGroup of classic groups, and the time-outs of members.

Zone: pure.
"""

from __future__ import annotations

from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import AnswerEffect, Decision
from ottla.errors import ApiError, ErrorCode
from ottla.groups.commands import Heartbeat, Leave, Sync
from ottla.groups.deadlines import DeadlineKey, DeadlineKind
from ottla.groups.group import Group, GroupState, SyncResult
from ottla.groups.rebalancing import (
    DeadlineSet,
    GroupDraft,
    on_join_deadline,
    prepare_rebalance,
    remove_member,
    without_member,
    without_pending,
)
from ottla.seams import Instant

_NS_PER_MS = 1_000_000
NO_GROUP_ID: Final = ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
"""The error of a whole LeaveGroup, not of single members."""
_new = tuple.__new__  # a third of the time of the class's own, and heartbeats are many


def check_generation(group: Group | None, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
    """Check that this is a member of the current generation."""
    if group is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    # A dynamic member, the usual case, costs one look-up.
    if instance_id is not None or member_id not in group.members:
        code = group.check_member(member_id, instance_id)
        if code:
            return code
    return ErrorCode.NONE if generation == group.generation else ErrorCode.ILLEGAL_GENERATION


def check_heartbeat(
    group: Group | None, generation: int, member_id: str, instance_id: str | None, now: Instant
) -> tuple[DeadlineSet | None, ErrorCode]:
    """Decide about a heartbeat: (the new deadline of the member's session, the error code)."""
    code = check_generation(group, member_id, instance_id, generation)
    if code or group is None:
        return None, code
    if group.state is GroupState.PREPARING_REBALANCE:
        code = ErrorCode.REBALANCE_IN_PROGRESS  # the member must join again; its session is extended nevertheless
    session_ns = group.members[member_id].session_timeout_ms * _NS_PER_MS
    return _new(
        DeadlineSet, (_new(DeadlineKey, (DeadlineKind.SESSION, group.group_id, member_id)), now.mono_ns + session_ns)
    ), code


def answer_heartbeat(group: Group | None, command: Heartbeat, now: Instant) -> Decision:
    """Decide about a Heartbeat that was submitted as a command."""
    ticket, group_id, generation, member_id, instance_id = command
    alive, code = check_heartbeat(group, generation, member_id, instance_id, now)
    if code and not group_id:
        code = ErrorCode.INVALID_GROUP_ID
    return Decision(() if alive is None else (alive,), now=(AnswerEffect(ticket, code),))  # type: ignore[arg-type]


def member_code(code: ErrorCode) -> ErrorCode:
    """The error that a member gets: errors of size in the log are not its fault, so it gets UNKNOWN_SERVER_ERROR."""
    if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
        return ErrorCode.UNKNOWN_SERVER_ERROR
    return code


def sync_group(group: Group | None, command: Sync, limits: BrokerConfig, now: Instant) -> Decision:
    """Decide about a SyncGroup. The leader's has the assignment; all members get it once it is committed."""
    code = check_generation(group, command.member_id, command.instance_id, command.generation)
    if group is not None and not code:
        code = _check_protocol(group, command)
    if group is None or code:
        code = code if command.group_id else ErrorCode.INVALID_GROUP_ID
        return Decision(now=(AnswerEffect(command.ticket, SyncResult(code)),))  # type: ignore[arg-type]
    draft = GroupDraft(group, limits, now)
    member = draft.group.members[command.member_id]
    # In a stable group as well: otherwise the SYNC deadline removes a member that has asked in time.
    _has_synced(draft, command.member_id)
    # 1. The leader was faster: the assignment is known. It may not be committed yet, so the answer waits for that.
    if group.state is GroupState.STABLE:
        draft.restart_session(member)
        result = SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol, member.assignment)
        draft.committed.append(AnswerEffect(command.ticket, result))  # type: ignore[arg-type]
        return draft.to_decision()
    # 2. A repeated request replaces the one that waits.
    if member.sync is not None:
        draft.answer_member(member.sync, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
    draft.group.put_member(member._replace(sync=command.ticket))
    # 3. The leader's assignment answers all requests that wait; those of other members wait for it.
    if group.leader == command.member_id:
        _assign_members(draft, command)
    else:
        draft.set_deadline(DeadlineKind.SESSION, None, command.member_id)  # its waiting request keeps it alive
    return draft.to_decision()


def _check_protocol(group: Group, command: Sync) -> ErrorCode:
    if command.protocol_type not in (None, group.protocol_type) or command.protocol not in (None, group.protocol):
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _has_synced(draft: GroupDraft, member_id: str) -> None:
    pending = draft.group.pending_sync
    if pending.pop(member_id, member_id) is None and not pending:
        draft.set_deadline(DeadlineKind.SYNC, None)


def _assign_members(draft: GroupDraft, command: Sync) -> None:
    group = draft.group
    group.become_state(GroupState.STABLE, draft.now.wall_ms)
    for member in list(group.members.values()):
        assignment = command.assignments.get(member.member_id, b"")
        group.put_member(member._replace(assignment=assignment, sync=None))
        if member.sync is not None:
            result = SyncResult(ErrorCode.NONE, group.protocol_type, group.protocol, assignment)
            draft.committed.append(AnswerEffect(member.sync, result))  # type: ignore[arg-type]
            draft.restart_session(member)
    draft.journal_group()


def leave_group(group: Group | None, command: Leave, limits: BrokerConfig, now: Instant) -> Decision:
    """Decide about a LeaveGroup, member by member."""
    if not command.group_id:
        return Decision(now=(AnswerEffect(command.ticket, NO_GROUP_ID),))  # type: ignore[arg-type]
    if group is None:
        return _leave_decision(command, [ErrorCode.UNKNOWN_MEMBER_ID] * len(command.members))
    draft = GroupDraft(group, limits, now)
    codes = [_leave_one(draft, *identity) for identity in command.members]
    # Without a change the draft is dropped: it would only replace the group by an equal one.
    if any(code is ErrorCode.NONE for code in codes):
        draft.now_effects.append(AnswerEffect(command.ticket, codes))  # type: ignore[arg-type]
        return draft.to_decision()
    return _leave_decision(command, codes)


def _leave_decision(command: Leave, codes: list[ErrorCode]) -> Decision:
    return Decision(now=(AnswerEffect(command.ticket, codes),))  # type: ignore[arg-type]


def _leave_one(draft: GroupDraft, member_id: str, instance_id: str | None) -> ErrorCode:
    group = draft.group
    # Administrators remove static members by their instance ids only (KIP-345).
    if not member_id and instance_id is not None:
        member_id = group.statics.get(instance_id, "")
    if member_id in group.pending and instance_id is None:
        without_pending(draft, member_id)
        return ErrorCode.NONE
    code = group.check_member(member_id, instance_id)
    if not code:
        without_member(draft, member_id)
    return code


# -- time-outs ---------------------------------------------------------------------------------------------------------


def on_time(group: Group | None, key: DeadlineKey, limits: BrokerConfig, now: Instant) -> Decision:
    """Decide about a deadline of a group that has passed."""
    if group is None:
        # A deletion of the group leaves its deadlines, each of which ends here.
        return Decision((DeadlineSet(key, None),))
    draft = GroupDraft(group, limits, now)
    draft.events.append(DeadlineSet(key, None))
    if key.kind is DeadlineKind.SESSION:
        _session_over(draft, key.member_id)
    elif key.kind is DeadlineKind.JOIN:
        if group.state is GroupState.PREPARING_REBALANCE:
            on_join_deadline(draft)
    else:
        _sync_over(draft)
    return draft.to_decision()


def _session_over(draft: GroupDraft, member_id: str) -> None:
    """The session of a member, or of a pending member id, has expired."""
    group = draft.group
    if member_id in group.pending:
        without_pending(draft, member_id)
    elif member_id in group.members:
        member = group.members[member_id]
        # A waiting request keeps a member alive; that of a new one does not, because its client may have given up.
        if member.is_new or (member.join is None and member.sync is None):
            without_member(draft, member_id)


def _sync_over(draft: GroupDraft) -> None:
    """Remove members that joined the generation but sent no SyncGroup; the others begin a new rebalance."""
    group = draft.group
    missing = [member_id for member_id in group.pending_sync if member_id in group.members]
    for member_id in missing:
        remove_member(draft, member_id)
    group.pending_sync = {}
    if missing and group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
        prepare_rebalance(draft)
