"""A classic group: its members and where its rebalance stands.

Zone: pure. State, and questions about it. Decisions are made on a copy (`draft`), which then takes the group's place.

    Empty ──join──▶ PreparingRebalance ──all joined, or time──▶ CompletingRebalance ──leader syncs──▶ Stable
      ▲                │    ▲                                        │                                 │
      └──nobody left───┘    └──────────── a member comes, goes, changes ◀──────────────────────────────┘
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
"""The protocol type whose members' metadata the broker can read."""


class GroupState(Enum):
    """The values are Kafka's names."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    """What is said of a group that does not exist."""


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
    """For the leader: (member id, instance id, metadata)."""


class SyncResult(NamedTuple):
    """The answer to a SyncGroup."""

    code: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class Member(NamedTuple):
    """One member. Never changed, only replaced."""

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
    """Its JoinGroup, while that waits for the others."""
    sync: Completion[SyncResult] | None = None
    """Its SyncGroup, while that waits for the leader's."""
    is_new: bool = False
    """It has not been told its member id: until then its session is a fixed time."""

    def metadata(self, protocol: str | None) -> bytes:
        """What it says under a protocol; nothing under one that it does not speak."""
        return next((metadata for name, metadata in self.protocols if name == protocol), b"")


class Group:
    """A group. Only a draft is changed, and only by the decisions of this room."""

    __slots__ = (
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
        """An empty group. `since_ms`: the wall time at which it came into its state."""
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.since_ms = since_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}
        """instance id → member id (KIP-345)."""
        self.pending: dict[str, None] = {}
        """Member ids that were given out and have not joined yet (KIP-394)."""
        self.pending_sync: dict[str, None] = {}
        """Members of this generation that have not asked for their assignment."""
        self.in_delay = False
        """Whether the first rebalance of an empty group waits for more members (KIP-134)."""
        self.newcomers = False
        """Whether somebody came during that delay."""
        self.delay_left_ms = 0
        """How much longer that delay may be made."""
        self.rebalance_began_ms = -1
        """Wall time at which the present rebalance began."""

    def draft(self) -> Group:
        """A copy to be changed."""
        copy = Group(self.group_id)
        for name in Group.__slots__:
            value = getattr(self, name)
            setattr(copy, name, value.copy() if isinstance(value, dict) else value)
        return copy

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest that a member asks for."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_joined(self) -> bool:
        """Whether nobody is missing in this rebalance."""
        return not self.pending and all(member.join is not None for member in self.members.values())

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether this is a member, and the one that its instance id stands for now."""
        if instance_id is not None:
            owner = self.statics.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def supports(self, protocol_type: str, names: Sequence[str]) -> bool:
        """Whether somebody with these protocols can join: all members must share one.

        Without members nothing is to be shared, also while a rebalance waits that all of them have left.
        """
        if not self.members:
            return bool(protocol_type) and bool(names)
        return protocol_type == self.protocol_type and not self.shared_protocols().isdisjoint(names)

    def shared_protocols(self) -> set[str]:
        """Names that every member knows."""
        members = list(self.members.values())
        shared = {name for name, _ in members[0].protocols} if members else set()
        for member in members[1:]:
            shared &= {name for name, _ in member.protocols}
        return shared

    def select_protocol(self) -> str:
        """What most members prefer, of what all know."""
        shared = self.shared_protocols()
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in shared)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    def subscribed_topics(self) -> set[str] | None:
        """Topics that the members consume; None when that cannot be told."""
        if self.protocol_type != CONSUMER or self.protocol is None:
            return None
        topics: set[str] = set()
        for member in self.members.values():
            try:
                _, message = parse_versioned(ConsumerProtocolSubscription, member.metadata(self.protocol))
            except CorruptRecord:
                return None
            assert isinstance(message, ConsumerProtocolSubscription)
            topics.update(message.topics)
        return topics

    def joined(self, member_id: str) -> JoinResult:
        """What a member is told of the present generation; the leader hears of everybody."""
        rows = (
            [(each.member_id, each.instance_id, each.metadata(self.protocol)) for each in self.members.values()]
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
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self.statics[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member_id: str) -> Member:
        """Take a member out; another one leads then, if it led."""
        member = self.members.pop(member_id)
        self.pending_sync.pop(member_id, None)
        if member.instance_id is not None and self.statics.get(member.instance_id) == member_id:
            del self.statics[member.instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def elect_leader(self) -> bool:
        """Have a leader who has joined; False when nobody has."""
        if self.leader is not None and self.members[self.leader].join is not None:
            return True
        joined = next((member.member_id for member in self.members.values() if member.join is not None), None)
        self.leader = joined or self.leader
        return joined is not None

    # -- journal -------------------------------------------------------------------------------------------------------

    def to_value(self) -> GroupMetadataValue:
        """What is journaled of the group."""
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
        """A group as it is found again: stable, or empty without members."""
        group = cls(group_id, value.current_state_timestamp)
        group.generation = value.generation
        group.protocol_type = value.protocol_type or None
        group.protocol = value.protocol
        for row in value.members:
            group.put_member(_from_row(row, value.protocol or ""))
        group.leader = value.leader if value.leader in group.members else next(iter(group.members), None)
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
        subscription=member.metadata(protocol),
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
    """Everybody who waits in these groups."""
    found: list[Completion[JoinResult] | Completion[SyncResult]] = []
    for group in groups:
        for member in group.members.values():
            found += [ticket for ticket in (member.join, member.sync) if ticket is not None]
    return found
