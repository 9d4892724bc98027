"""The rebalance of a classic group: when it begins, for whom it waits, how it ends.

Zone: pure. Everything works on a draft and gathers what follows; nothing has happened before the outcome is applied.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import AnswerEffect, Completion, Decision, Effect
from ottla.errors import ErrorCode
from ottla.groups.deadlines import DeadlineKey, DeadlineKind
from ottla.groups.group import Group, GroupState, JoinResult, Member, SyncResult
from ottla.groups.records import GroupSaved
from ottla.seams import Instant

NEW_MEMBER_MS: Final = 300_000
"""The session of a member that has not been told its id yet: it cannot send heartbeats, and a client that gave up and
came back must not be waited for for ever."""
_NS_PER_MS: Final = 1_000_000


class GroupReplaced(NamedTuple):
    """Volatile: a draft takes the place of its group."""

    group: Group


class GroupForgotten(NamedTuple):
    """Volatile: a group of which nothing was journaled is gone."""

    group_id: str


class DeadlineSet(NamedTuple):
    """Volatile: a deadline is made, moved, or (None) dropped."""

    key: DeadlineKey
    deadline_ns: int | None


class GroupRebalanced(NamedTuple):
    """Volatile: a rebalance has begun, or (the milliseconds that it took) has ended."""

    took_ms: int | None


class GroupDraft:
    """A group that is being changed, and what follows from it."""

    __slots__ = ("committed", "events", "group", "limits", "now", "now_effects", "records")

    def __init__(self, group: Group, limits: BrokerConfig, now: Instant) -> None:
        self.group = group.draft()
        self.limits = limits
        self.now = now
        self.events: list[object] = []
        self.records: list[object] = []
        self.now_effects: list[Effect] = []
        self.committed: list[Effect] = []

    def outcome(self) -> Decision:
        """All of it."""
        return Decision((GroupReplaced(self.group), *self.events), self.records, self.now_effects, self.committed)

    def answer_member(
        self, ticket: Completion[JoinResult] | Completion[SyncResult], result: JoinResult | SyncResult
    ) -> None:
        """Answer without waiting for a commit."""
        self.now_effects.append(AnswerEffect(ticket, result))  # type: ignore[arg-type]  # each ticket gets its own result

    def set_deadline(self, kind: DeadlineKind, delay_ms: int | None, member_id: str = "") -> None:
        """Have a deadline after that long; None: have none."""
        key = DeadlineKey(kind, self.group.group_id, member_id)
        deadline_ns = None if delay_ms is None else self.now.mono_ns + delay_ms * _NS_PER_MS
        self.events.append(DeadlineSet(key, deadline_ns))

    def session(self, member: Member) -> None:
        """The member was heard of."""
        self.set_deadline(DeadlineKind.SESSION, member.session_timeout_ms, member.member_id)

    def save(self) -> None:
        """Journal the group as it is."""
        self.records.append(GroupSaved(self.group.group_id, self.group.to_value()))


def go_on(draft: GroupDraft) -> None:
    """Somebody has joined or changed: begin a rebalance, or see whether the present one is complete."""
    if draft.group.state is GroupState.PREPARING_REBALANCE:
        try_complete(draft)
    else:
        prepare(draft)


def prepare(draft: GroupDraft) -> None:
    """Begin a rebalance: everybody has to join anew; those who wait for an assignment are told so."""
    group = draft.group
    if group.state is GroupState.COMPLETING_REBALANCE:
        refuse_syncs(draft)
    if group.pending_sync:
        draft.set_deadline(DeadlineKind.SYNC, None)
        group.pending_sync = {}
    first = group.state is GroupState.EMPTY
    group.become_state(GroupState.PREPARING_REBALANCE, draft.now.wall_ms)
    group.rebalance_began_ms = draft.now.wall_ms
    draft.events.append(GroupRebalanced(None))
    delay_ms = draft.limits.group_initial_rebalance_delay_ms
    if first and delay_ms > 0:
        group.in_delay, group.newcomers = True, False
        group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        draft.set_deadline(DeadlineKind.JOIN, delay_ms)
        return
    draft.set_deadline(DeadlineKind.JOIN, group.rebalance_timeout_ms)
    try_complete(draft)


def refuse_syncs(draft: GroupDraft) -> None:
    """The assignment that members wait for will not come, and none that was given holds."""
    group = draft.group
    for member in list(group.members.values()):
        if member.sync is not None:
            draft.answer_member(member.sync, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
            draft.session(member)
        group.put_member(member._replace(assignment=b"", sync=None))


def try_complete(draft: GroupDraft) -> None:
    """End the joining once nobody is missing; the first rebalance of an empty group waits its time in any case."""
    group = draft.group
    if group.state is GroupState.PREPARING_REBALANCE and not group.in_delay and group.all_joined:
        complete(draft)


def delay_over(draft: GroupDraft) -> None:
    """The time to wait for members is over; while some came during it, the first rebalance waits once more."""
    group = draft.group
    if group.in_delay and group.newcomers and group.delay_left_ms > 0:
        group.newcomers = False
        delay_ms = min(draft.limits.group_initial_rebalance_delay_ms, group.delay_left_ms)
        group.delay_left_ms -= delay_ms
        draft.set_deadline(DeadlineKind.JOIN, delay_ms)
    else:
        complete(draft)


def complete(draft: GroupDraft) -> None:
    """All who will come have come: the others are out, static members excepted; the next generation begins."""
    group = draft.group
    group.in_delay = False
    for member in list(group.members.values()):
        if member.join is None and member.instance_id is None:
            group.remove(member.member_id)
            draft.set_deadline(DeadlineKind.SESSION, None, member.member_id)
    if group.members and not group.elect_leader():
        draft.set_deadline(
            DeadlineKind.JOIN, group.rebalance_timeout_ms
        )  # only static members that are away: until they come or expire
        return
    draft.set_deadline(DeadlineKind.JOIN, None)
    group.generation = (group.generation + 1) & 0x7FFFFFFF
    draft.events.append(GroupRebalanced(max(0, draft.now.wall_ms - group.rebalance_began_ms)))
    if not group.members:
        group.protocol = group.leader = None
        group.become_state(GroupState.EMPTY, draft.now.wall_ms)
        draft.save()
    else:
        _begin_generation(draft)


def _begin_generation(draft: GroupDraft) -> None:
    group = draft.group
    group.protocol = group.select_protocol()
    group.become_state(GroupState.COMPLETING_REBALANCE, draft.now.wall_ms)
    group.pending_sync = dict.fromkeys(group.members)
    for member in list(group.members.values()):
        if member.join is not None:
            draft.answer_member(member.join, group.joined(member.member_id))
            group.put_member(member._replace(join=None, is_new=False))
        draft.session(member)
    draft.set_deadline(DeadlineKind.SYNC, group.rebalance_timeout_ms)


def remove_member(draft: GroupDraft, member_id: str) -> None:
    """A member leaves or has expired; if it waits for something, it is told that it is not known any more."""
    member = draft.group.remove(member_id)
    draft.set_deadline(DeadlineKind.SESSION, None, member_id)
    if member.join is not None:
        draft.answer_member(member.join, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
    if member.sync is not None:
        draft.answer_member(member.sync, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))


def without_member(draft: GroupDraft, member_id: str) -> None:
    """Remove a member, and rebalance among the others."""
    remove_member(draft, member_id)
    if draft.group.state is not GroupState.EMPTY:
        go_on(draft)


def without_pending(draft: GroupDraft, member_id: str) -> None:
    """A member id that was given out will not be used."""
    del draft.group.pending[member_id]
    draft.set_deadline(DeadlineKind.SESSION, None, member_id)
    try_complete(draft)
