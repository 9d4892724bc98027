"""The groups of one partition of `__consumer_offsets`, as a state machine of the coordinator runtime.

Zone: deterministic. The state, and the dispatch of commands to their decisions; only `apply` changes the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import NOTHING, AnswerEffect, Command, Decision, EntryOrigin, TransactionEnd
from ottla.errors import ApiError
from ottla.groups import commits, expiration
from ottla.groups.commands import (
    Commit,
    DeleteGroup,
    DeleteOffsets,
    Describe,
    FetchOffsets,
    ForgetTopics,
    Heartbeat,
    Join,
    Leave,
    Sync,
)
from ottla.groups.deadlines import DeadlineKey, DeadlineKind, Deadlines
from ottla.groups.expiration import GroupSwept
from ottla.groups.group import Group, tickets_of
from ottla.groups.joining import join_group
from ottla.groups.membership import answer_heartbeat, leave_group, on_time, sync_group
from ottla.groups.offsets import Offsets
from ottla.groups.rebalancing import DeadlineSet, GroupForgotten, GroupRebalanced, GroupReplaced
from ottla.groups.records import GroupSaved, OffsetCommitted
from ottla.metrics import Histogram
from ottla.seams import Instant

_NS_PER_MS: Final = 1_000_000
_SWEEP: Final = DeadlineKey(DeadlineKind.SWEEP)
REBALANCE_BOUNDS_MS: Final = (1, 10, 50, 100, 500, 1000, 3000, 5000, 10_000, 30_000, 60_000, 300_000)


class GroupShard:
    """Implements `ottla.coordinator.shard.Shard`."""

    def __init__(self, limits: Callable[[], BrokerConfig]) -> None:
        """`limits` returns the broker's current settings."""
        self._limits = limits
        self._calendar = Deadlines()
        self._sweeping: deque[str] = deque()
        self.groups: dict[str, Group] = {}
        """By group id. Read only."""
        self.offsets = Offsets()
        """Read only."""
        self.rebalances = 0
        """The number of rebalances that have begun."""
        self.rebalance_ms = Histogram(REBALANCE_BOUNDS_MS)
        """The duration of the rebalances that have ended."""

    # -- deciding ------------------------------------------------------------------------------------------------------

    def handle(self, command: Command, now: Instant) -> Decision:
        """Decide about a command of `ottla.groups.commands`."""
        return _DECISIONS[type(command)](self, command, now)

    def _join_group(self, command: Join, now: Instant) -> Decision:
        return join_group(self.groups.get(command.group_id), command, self._limits(), now)

    def _sync_group(self, command: Sync, now: Instant) -> Decision:
        return sync_group(self.groups.get(command.group_id), command, self._limits(), now)

    def _answer_heartbeat(self, command: Heartbeat, now: Instant) -> Decision:
        return answer_heartbeat(self.groups.get(command.group_id), command, now)

    def _leave_group(self, command: Leave, now: Instant) -> Decision:
        return leave_group(self.groups.get(command.group_id), command, self._limits(), now)

    def _commit_offsets(self, command: Commit, now: Instant) -> Decision:
        return commits.commit_offsets(self.groups.get(command.group_id), command, self._limits(), now)

    def _fetch_offsets(self, command: FetchOffsets, _: Instant) -> Decision:
        return commits.fetch_offsets(self.offsets, command)

    def _delete_offsets(self, command: DeleteOffsets, _: Instant) -> Decision:
        return commits.delete_offsets(self.groups.get(command.group_id), self.offsets, command)

    def _describe_group(self, command: Describe, _: Instant) -> Decision:
        return Decision(committed=(AnswerEffect(command.ticket, self.groups.get(command.group_id)),))  # type: ignore[arg-type]

    def _delete_group(self, command: DeleteGroup, _: Instant) -> Decision:
        return expiration.delete_group(self.groups.get(command.group_id), self.offsets, command)

    def _forget_topics(self, command: ForgetTopics, _: Instant) -> Decision:
        groups = list(self.groups) if command.groups is None else command.groups
        return expiration.forget_topics(groups, self.offsets, command)

    # -- applying ------------------------------------------------------------------------------------------------------

    def apply(self, entry: object, origin: EntryOrigin) -> None:
        """Apply a record, the end of a transaction, or an event. The only method that changes the state."""
        # In the order of their frequency: every heartbeat sets a deadline.
        if type(entry) is DeadlineSet:
            key, deadline_ns = entry
            if deadline_ns is None:
                self._calendar.clear_deadline(key)
            else:
                self._calendar.set_deadline(key, deadline_ns)
        elif type(entry) is OffsetCommitted:
            # A group that only stores offsets has no record of its own.
            if entry.position is not None and entry.group_id not in self.groups:
                self.groups[entry.group_id] = Group(entry.group_id)
            self.offsets.apply_commit(entry, origin.offset, origin.producer_id)
        elif type(entry) is GroupReplaced:
            self.groups[entry.group.group_id] = entry.group
        elif type(entry) is GroupSaved:
            self._save_entry(entry)
        elif type(entry) is TransactionEnd:
            self.offsets.end_transaction(entry.producer_id, entry.commit)
        else:
            self._note_event(entry)

    def _save_entry(self, entry: GroupSaved) -> None:
        if entry.value is not None:
            # When this record was just decided, the draft replaces the group right after it (`GroupReplaced`): only the
            # draft has the waiting requests.
            self.groups[entry.group_id] = Group.from_value(entry.group_id, entry.value)
        else:
            self.groups.pop(entry.group_id, None)
            self.offsets.forget_group(entry.group_id)

    def _note_event(self, event: object) -> None:
        if isinstance(event, GroupRebalanced):
            if event.took_ms is None:
                self.rebalances += 1
            else:
                self.rebalance_ms.observe(event.took_ms)
        elif isinstance(event, GroupForgotten):
            self.groups.pop(event.group_id, None)
        elif isinstance(event, EndsFurther):
            self.offsets.carry_out()
        elif isinstance(event, GroupSwept):
            self._sweeping.popleft()
        else:
            assert isinstance(event, SweepBegins), event
            self._sweeping = deque(self.groups)

    # -- time ----------------------------------------------------------------------------------------------------------

    def on_loaded(self, now: Instant) -> Decision:
        """Start the session of every loaded member, and plan the first sweep."""
        # Each for its full time: when the former coordinator last heard of a member is not journaled, and members need
        # time to find the new one.
        sessions = [
            DeadlineSet(
                DeadlineKey(DeadlineKind.SESSION, group.group_id, member.member_id),
                now.mono_ns + member.session_timeout_ms * _NS_PER_MS,
            )
            for group in self.groups.values()
            for member in group.members.values()
        ]
        return Decision((*sessions, self._next_sweep(now)))

    def _next_sweep(self, now: Instant) -> DeadlineSet:
        return DeadlineSet(_SWEEP, now.mono_ns + self._limits().offsets_retention_check_interval_ms * _NS_PER_MS)

    def next_deadline(self) -> int | None:
        """Monotonic ns at which `on_time` has work; 0: it has work now."""
        if self._sweeping or self.offsets.is_ending:
            return 0
        first = self._calendar.next_deadline()
        return None if first is None else first[0]

    def on_time(self, now: Instant) -> Decision:
        """Decide about one step of the work that is due."""
        # 1. Deadlines of members come first: they decide how long a rebalance takes.
        first = self._calendar.next_deadline()
        if first is not None and first[0] <= now.mono_ns:
            key = first[1]
            if key.kind is DeadlineKind.SWEEP:
                # The next one is planned from the beginning of this one. If this one takes longer, it begins again with
                # all groups.
                return Decision((SweepBegins(), self._next_sweep(now)))
            return on_time(self.groups.get(key.group_id), key, self._limits(), now)
        # 2. Transactions that have ended: queries are slower until they are carried out.
        if self.offsets.is_ending:
            return Decision((EndsFurther(),))
        # 3. Expired offsets, group by group, when there is nothing else to do.
        if self._sweeping:
            group_id = self._sweeping[0]
            minutes = self._limits().offsets_retention_minutes
            return expiration.sweep_group(group_id, self.groups.get(group_id), self.offsets, minutes, now.wall_ms)
        return NOTHING

    def waiting_tickets(self) -> Sequence[Callable[[ApiError], None]]:
        """The tickets of all JoinGroup and SyncGroup requests that wait for a rebalance."""
        return tickets_of(self.groups.values())


class EndsFurther:
    """Volatile: the next slice of a transaction that has ended is carried out."""


class SweepBegins:
    """Volatile: a search of all groups for expired offsets begins."""


_DECISIONS: Final[Mapping[type, Callable[..., Decision]]] = MappingProxyType(
    {
        Join: GroupShard._join_group,
        Sync: GroupShard._sync_group,
        Heartbeat: GroupShard._answer_heartbeat,
        Leave: GroupShard._leave_group,
        Commit: GroupShard._commit_offsets,
        FetchOffsets: GroupShard._fetch_offsets,
        DeleteOffsets: GroupShard._delete_offsets,
        Describe: GroupShard._describe_group,
        DeleteGroup: GroupShard._delete_group,
        ForgetTopics: GroupShard._forget_topics,
    }
)
