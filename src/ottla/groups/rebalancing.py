"""The rebalance of a classic group: when it begins, which members it waits for, how it ends.

Zone: pure. All functions change a draft and collect events, records and effects; the group changes when the decision is
applied.
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
"""The session time-out of a member without its member id. It cannot send heartbeats yet, and if its client gave up and
joined again as another member, the group must not wait for it for ever."""
_NS_PER_MS: Final = 1_000_000


class GroupReplaced(NamedTuple):
    """Volatile: a draft replaces its group."""

    group: Group


class GroupForgotten(NamedTuple):
    """Volatile: a group without records in the journal is removed."""

    group_id: str


class DeadlineSet(NamedTuple):
    """Volatile: a deadline is added, moved, or (None) removed."""

    key: DeadlineKey
    deadline_ns: int | None


class GroupRebalanced(NamedTuple):
    """Volatile: a rebalance has begun (None), or has ended after this many milliseconds."""

    took_ms: int | None


class GroupDraft:
    """A group that a decision changes, with the events, records and effects of the decision."""

    __slots__ = ("committed", "events", "group", "limits", "now", "now_effects", "records")

    def __init__(self, group: Group, limits: BrokerConfig, now: Instant) -> None:
        self.group = group.make_draft()
        self.limits = limits
        self.now = now
        self.events: list[object] = []
        self.records: list[object] = []
        self.now_effects: list[Effect] = []
        self.committed: list[Effect] = []

    def to_decision(self) -> Decision:
        """The decision."""
        # The runtime applies records before events. So a record of the group, which has neither tickets nor a rebalance
        # in progress, is applied first, and the draft then takes its place.
        return Decision((GroupReplaced(self.group), *self.events), self.records, self.now_effects, self.committed)

    def answer_member(
        self, ticket: Completion[JoinResult] | Completion[SyncResult], result: JoinResult | SyncResult
    ) -> None:
        """Answer a request without waiting for a commit."""
        self.now_effects.append(AnswerEffect(ticket, result))  # type: ignore[arg-type]  # callers pair each ticket with its type

    def set_deadline(self, kind: DeadlineKind, delay_ms: int | None, member_id: str = "") -> None:
        """Set a deadline after `delay_ms`; None: remove it."""
        key = DeadlineKey(kind, self.group.group_id, member_id)
        deadline_ns = None if delay_ms is None else self.now.mono_ns + delay_ms * _NS_PER_MS
        self.events.append(DeadlineSet(key, deadline_ns))

    def restart_session(self, member: Member) -> None:
        """Restart the session of a member."""
        self.set_deadline(DeadlineKind.SESSION, member.session_timeout_ms, member.member_id)

    def journal_group(self) -> None:
        """Journal the group in its present state."""
        self.records.append(GroupSaved(self.group.group_id, self.group.to_value()))


def continue_rebalance(draft: GroupDraft) -> None:
    """A member has joined or changed: begin a rebalance, or complete the current one if all have joined."""
    if draft.group.state is GroupState.PREPARING_REBALANCE:
        try_complete(draft)
    else:
        prepare_rebalance(draft)


def prepare_rebalance(draft: GroupDraft) -> None:
    """Begin a rebalance: all members have to join again. SyncGroup requests that wait get REBALANCE_IN_PROGRESS."""
    group = draft.group
    # 1. The assignment of the last generation will not come.
    if group.state is GroupState.COMPLETING_REBALANCE:
        refuse_syncs(draft)
    if group.pending_sync:
        draft.set_deadline(DeadlineKind.SYNC, None)
        group.pending_sync = {}
    # 2. Members have their rebalance time-out to join. The first rebalance of an empty group waits a fixed time
    #    instead, however many join: its members are usually started together (KIP-134).
    first = group.state is GroupState.EMPTY
    group.become_state(GroupState.PREPARING_REBALANCE, draft.now.wall_ms)
    group.rebalance_began_ms = draft.now.wall_ms
    draft.events.append(GroupRebalanced(None))
    delay_ms = draft.limits.group_initial_rebalance_delay_ms
    if first and delay_ms > 0:
        group.in_delay, group.newcomers = True, False
        # With all its extensions the delay ends with the rebalance time-out of the members, as in Kafka.
        group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        draft.set_deadline(DeadlineKind.JOIN, delay_ms)
        return
    # Before `try_complete`, which removes the deadline again if all have joined already.
    draft.set_deadline(DeadlineKind.JOIN, group.rebalance_timeout_ms)
    try_complete(draft)


def refuse_syncs(draft: GroupDraft) -> None:
    """Refuse SyncGroup requests that wait for an assignment, and drop the assignments of the generation."""
    group = draft.group
    for member in list(group.members.values()):
        if member.sync is not None:
            draft.answer_member(member.sync, SyncResult(ErrorCode.REBALANCE_IN_PROGRESS))
            draft.restart_session(member)
        group.put_member(member._replace(assignment=b"", sync=None))


def try_complete(draft: GroupDraft) -> None:
    """Complete the rebalance if all members have joined, unless the initial delay of an empty group is running."""
    group = draft.group
    if group.state is GroupState.PREPARING_REBALANCE and not group.in_delay and group.all_joined:
        complete_join(draft)


def on_join_deadline(draft: GroupDraft) -> None:
    """The time to join is over. The initial delay is extended, up to its limit, if members joined during it."""
    group = draft.group
    if group.in_delay and group.newcomers and group.delay_left_ms > 0:
        group.newcomers = False
        delay_ms = min(draft.limits.group_initial_rebalance_delay_ms, group.delay_left_ms)
        group.delay_left_ms -= delay_ms
        draft.set_deadline(DeadlineKind.JOIN, delay_ms)
    else:
        complete_join(draft)


def complete_join(draft: GroupDraft) -> None:
    """End the joining: members that have not joined are removed, except static ones; the next generation begins."""
    group = draft.group
    group.in_delay = False
    # 1. Static members keep their place until their session expires (KIP-345).
    for member in list(group.members.values()):
        if member.join is None and member.instance_id is None:
            group.remove_member(member.member_id)
            draft.set_deadline(DeadlineKind.SESSION, None, member.member_id)
    # 2. Only static members that are away are left: none can lead, so wait until one joins or all expire.
    if group.members and not group.elect_leader():
        draft.set_deadline(DeadlineKind.JOIN, group.rebalance_timeout_ms)
        return
    # 3. The next generation. An empty group has no leader to wait for, so it is journaled here.
    draft.set_deadline(DeadlineKind.JOIN, None)
    # After 2^31 - 1 comes 0: in requests a negative generation means that there is none.
    group.generation = (group.generation + 1) & 0x7FFFFFFF
    draft.events.append(GroupRebalanced(max(0, draft.now.wall_ms - group.rebalance_began_ms)))
    if not group.members:
        group.protocol = group.leader = None
        group.become_state(GroupState.EMPTY, draft.now.wall_ms)
        draft.journal_group()
    else:
        _begin_generation(draft)


def _begin_generation(draft: GroupDraft) -> None:
    group = draft.group
    group.protocol = group.select_protocol()
    group.become_state(GroupState.COMPLETING_REBALANCE, draft.now.wall_ms)
    group.pending_sync = dict.fromkeys(group.members)
    for member in list(group.members.values()):
        if member.join is not None:
            draft.answer_member(member.join, group.join_result(member.member_id))
            group.put_member(member._replace(join=None, is_new=False))
        # Of static members that are away as well: the rebalance has not removed them, so only their session can.
        draft.restart_session(member)
    draft.set_deadline(DeadlineKind.SYNC, group.rebalance_timeout_ms)


def remove_member(draft: GroupDraft, member_id: str) -> None:
    """Remove a member that leaves or has expired. Its requests that wait get UNKNOWN_MEMBER_ID."""
    member = draft.group.remove_member(member_id)
    draft.set_deadline(DeadlineKind.SESSION, None, member_id)
    if member.join is not None:
        draft.answer_member(member.join, JoinResult(ErrorCode.UNKNOWN_MEMBER_ID))
    if member.sync is not None:
        draft.answer_member(member.sync, SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))


def without_member(draft: GroupDraft, member_id: str) -> None:
    """Remove a member, and rebalance the others."""
    remove_member(draft, member_id)
    if draft.group.state is not GroupState.EMPTY:
        continue_rebalance(draft)


def without_pending(draft: GroupDraft, member_id: str) -> None:
    """Withdraw a member id that was given out. The rebalance may have waited for it."""
    del draft.group.pending[member_id]
    draft.set_deadline(DeadlineKind.SESSION, None, member_id)
    try_complete(draft)
