"""A classic group: its members and the state of its rebalance.

Zone: pure. State, and queries of it. Decisions change a copy (`make_draft`), which replaces the group when it is
applied.

    Empty ──join──▶ PreparingRebalance ──all joined, or time──▶ CompletingRebalance ──leader syncs──▶ Stable
      ▲                │    ▲                                        │                                 │
      └──no members────┘    └──────── a member joins, leaves, changes ◀────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from ottla.coordinator.shard import Completion
from ottla.errors import ErrorCode
from ottla.record.errors import CorruptRecord
from ottla.record.internal.consumer_protocol import ConsumerProtocolSubscription
from ottla.record.internal.groups import GroupMetadataValue
from ottla.record.internal.parsing import parse_versioned

CONSUMER: Final = "consumer"
"""The protocol type of Kafka's consumers. The broker can read the metadata of its members."""


class GroupState(Enum):
    """The values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """DescribeGroups reports this state for a group that does not exist."""


class JoinResult(NamedTuple):
    """The answer to a JoinGroup."""

    code: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[tuple[str, str | None, bytes]] = ()
    """For the leader: (member id, instance id, metadata) of every member."""


class SyncResult(NamedTuple):
    """The answer to a SyncGroup."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Member(NamedTuple):
    """One member. It is immutable: a change replaces it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata), the preferred one first."""
    assignment: bytes = b""
    join: Completion[JoinResult] | None = None
    """The ticket of its JoinGroup, while that waits for the other members."""
    sync: Completion[SyncResult] | None = None
    """The ticket of its SyncGroup, while that waits for the leader's assignment."""
    is_new: bool = False
    """It does not have its member id yet: until then its session time-out is `NEW_MEMBER_MS`."""

    @property
    def protocol_names(self) -> list[str]:
        """The protocols that it supports, the preferred one first."""
        return [name for name, _ in self.protocols]

    def metadata_for(self, protocol: str | None) -> bytes:
        """The metadata that it sent for a protocol; empty for a protocol that it does not support."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class Group:
    """A group. Only a draft is changed, and only by the decisions of this package."""

    __slots__ = (
        "_shared_protocols",
        "awaiting_join",
        "delay_left_ms",
        "generation",
        "group_id",
        "in_delay",
        "leader",
        "members",
        "newcomers",
        "pending",
        "pending_sync",
        "protocol",
        "protocol_type",
        "rebalance_began_ms",
        "since_ms",
        "state",
        "statics",
    )

    def __init__(self, group_id: str, since_ms: int = -1) -> None:
        """An empty group. `since_ms`: the wall time at which it entered its state."""
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.since_ms = since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.awaiting_join = 0
        """The number of members whose JoinGroup waits for the others."""
        self._shared_protocols: frozenset[str] | None = None
        """The protocols that every member supports; None: not known, `shared_protocols` finds them."""
        self.statics: dict[str, str] = {}
        """instance id → member id (KIP-345)."""
        self.pending: dict[str, None] = {}
        """Member ids that were given to clients, which have not joined with them yet (KIP-394). Oldest first."""
        self.pending_sync: dict[str, None] = {}
        """Members of this generation that have not sent a SyncGroup."""
        self.in_delay = False
        """Whether the first rebalance of an empty group waits for more members (KIP-134)."""
        self.newcomers = False
        """Whether a member joined during that delay."""
        self.delay_left_ms = 0
        """The time by which that delay may still be extended."""
        self.rebalance_began_ms = -1
        """The wall time at which the current rebalance began."""

    def make_draft(self) -> Group:
        """A copy that a decision may change."""
        # Members are immutable, so new dicts with the same members are a full copy.
        copy = Group(self.group_id)
        for name in Group.__slots__:
            value = getattr(self, name)
            setattr(copy, name, value.copy() if isinstance(value, dict) else value)
        return copy

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance time-out of its members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Whether every member, and every holder of a pending member id, has joined this rebalance."""
        return not self.pending and self.awaiting_join == len(self.members)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Check that this is a member, and the current holder of its instance id."""
        # The instance id first: a replaced static member has to learn that it is fenced. On UNKNOWN_MEMBER_ID it would
        # join again, and fence its successor.
        if instance_id is not None:
            owner = self.statics.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def accepts_protocols(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Whether a member with these protocols can join: all members must share one.

        A group without members accepts any, also while it is in a rebalance that all its members have left.
        """
        if not self.members:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and not self.shared_protocols().isdisjoint(names)

    def shared_protocols(self) -> frozenset[str]:
        """The protocols that every member supports. Walks the members once after one has left or changed."""
        if self._shared_protocols is None:
            members = iter(self.members.values())
            shared = set(next(members).protocol_names) if self.members else set()
            for member in members:
                shared.intersection_update(member.protocol_names)
            self._shared_protocols = frozenset(shared)
        return self._shared_protocols

    def select_protocol(self) -> str:
        """The shared protocol with the most votes; each member votes for the first one of its list."""
        shared = self.shared_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in shared)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def subscribed_topics(self) -> set[str] | None:
        """The topics that the members subscribe to; None when their metadata cannot be read."""
        if self.protocol_type != CONSUMER or self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                _, message = parse_versioned(ConsumerProtocolSubscription, member.metadata_for(self.protocol))
            except CorruptRecord:
                return None
            assert isinstance(message, ConsumerProtocolSubscription)
            topics.update(message.topics)
        return topics

    def join_result(self, member_id: str) -> JoinResult:
        """The JoinGroup result of a member in the current generation. Only the leader's lists all members."""
        rows = (
            [(each.member_id, each.instance_id, each.metadata_for(self.protocol)) for each in self.members.values()]
            if member_id == self.leader
            else ()
        )
        return JoinResult(
            ErrorCode.NONE,
            member_id,
            self.generation,
            self.protocol_type,
            self.protocol,
            self.leader or "",
            members=rows,
        )

    # -- changes to a draft --------------------------------------------------------------------------------------------

    def become_state(self, state: GroupState, now_ms: int) -> None:
        """Enter a state."""
        self.state = state
        self.since_ms = now_ms

    def put_member(self, member: Member) -> None:
        """Add or replace a member."""
        self._count_member(self.members.get(member.member_id), member)
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def replace_member_id(self, old_id: str, member: Member) -> Member:
        """Put a member in the place of one with another id, also as leader. Returns the old one."""
        old = self.members.pop(old_id)
        self._count_member(old, None)
        if self.leader == old_id:
            self.leader = member.member_id
        self.put_member(member)
        return old

    def remove_member(self, member_id: str) -> Member:
        """Remove a member. If it was the leader, the next member becomes leader."""
        member = self.members.pop(member_id)
        self._count_member(member, None)
        self.pending_sync.pop(member_id, None)
        if member.instance_id is not None and self.statics.get(member.instance_id) == member_id:
            del self.statics[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def _count_member(self, before: Member | None, after: Member | None) -> None:
        """Update `awaiting_join` and `_shared_protocols`, so that no JoinGroup has to walk all members."""
        if before is not None and before.join is not None:
            self.awaiting_join -= 1
        if after is not None and after.join is not None:
            self.awaiting_join += 1
        if before is not None and after is not None and before.protocol_names == after.protocol_names:
            return
        if before is None and after is not None and self.members and self._shared_protocols is not None:
            self._shared_protocols = self._shared_protocols.intersection(after.protocol_names)
        else:
            self._shared_protocols = None

    def elect_leader(self) -> bool:
        """Make a member that has joined the leader. Returns False when none has joined."""
        if self.leader is not None and self.members[self.leader].join is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.join is not None), None)
        self.leader = joined or self.leader
        return joined is not None

    # -- journal -------------------------------------------------------------------------------------------------------

    def to_value(self) -> GroupMetadataValue:
        """The value of the group's record in `__consumer_offsets`."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            current_state_timestamp=self.since_ms,
            members=[_to_row(member, self.protocol) for member in self.members.values()],
        )

    @classmethod
    def from_value(cls, group_id: str, value: GroupMetadataValue) -> Group:
        """The group of a record: Stable, or Empty when it has no members."""
        group = cls(group_id, value.current_state_timestamp)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        for row in value.members:
            group.put_member(_from_row(row, value.protocol or ""))
        group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
        # A group is only journaled with an assignment or without members: any other state is not in the records.
        if group.members:
            group.state = GroupState.STABLE
        return group


def _to_row(member: Member, protocol: str | None) -> GroupMetadataValue.MemberMetadata:
    return GroupMetadataValue.MemberMetadata(
        member_id=member.member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms,
        subscription=member.metadata_for(protocol),
        assignment=member.assignment,
    )


def _from_row(row: GroupMetadataValue.MemberMetadata, protocol: str) -> Member:
    rebalance_timeout_ms = row.rebalance_timeout or row.session_timeout  # records of version 0 have only the latter
    return Member(
        row.member_id,
        row.group_instance_id,
        row.client_id,
        row.client_host,
        row.session_timeout,
        rebalance_timeout_ms,
        ((protocol, row.subscription),),
        row.assignment,
    )


def tickets_of(groups: Iterable[Group]) -> list[Completion[JoinResult] | Completion[SyncResult]]:
    """The tickets of all waiting JoinGroup and SyncGroup requests of these groups."""
    found: list[Completion[JoinResult] | Completion[SyncResult]] = []
    for group in groups:
        for member in group.members.values():
            found += [ticket for ticket in (member.join, member.sync) if ticket is not None]
    return found
