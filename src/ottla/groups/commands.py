"""What is asked of a group's coordinator, and what it answers.

Zone: pure. Values only. Each command carries the ticket of whoever asks, which gets a result or an ApiError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.coordinator.shard import Completion, JournalProducer
from ottla.errors import ErrorCode
from ottla.groups.group import Group, JoinResult, SyncResult
from ottla.groups.records import Position


class Join(NamedTuple):
    """JoinGroup."""

    ticket: Completion[JoinResult]
    group_id: str
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    new_id: str
    """What makes a member id unique, if one is to be made."""
    require_known: bool = False
    """Whether a newcomer has to come back with the member id it is given (KIP-394)."""
    can_skip: bool = False
    """Whether a static leader understands that it shall leave the assignment alone (KIP-814)."""


class Sync(NamedTuple):
    """SyncGroup."""

    ticket: Completion[SyncResult]
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    protocol_type: str | None
    protocol: str | None
    assignments: Mapping[str, bytes]


class Heartbeat(NamedTuple):
    """Heartbeat. The result is an ErrorCode."""

    ticket: Completion[ErrorCode]
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None


class Leave(NamedTuple):
    """LeaveGroup: (member id, instance id) of those who go. The result has an ErrorCode for each."""

    ticket: Completion[Sequence[ErrorCode]]
    group_id: str
    members: Sequence[tuple[str, str | None]]


class CommitPartition(NamedTuple):
    """One partition of a commit."""

    topic: str
    partition: int
    position: Position


class Commit(NamedTuple):
    """OffsetCommit, and with a producer TxnOffsetCommit. The result has an ErrorCode for each item."""

    ticket: Completion[Sequence[ErrorCode]]
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None
    items: Sequence[CommitPartition]
    producer: JournalProducer | None = None


class FoundOffset(NamedTuple):
    """One partition of an OffsetFetch."""

    topic: str
    partition: int
    position: Position | None
    code: ErrorCode = ErrorCode.NONE


class FetchOffsets(NamedTuple):
    """OffsetFetch of one group: (topic, partitions), None for all. The result has a Found for each."""

    ticket: Completion[Iterable[FoundOffset]]
    group_id: str
    wanted: Sequence[tuple[str, Sequence[int]]] | None
    require_stable: bool = False


class DeleteOffsets(NamedTuple):
    """OffsetDelete. The result: an ErrorCode of the whole, and without one an ErrorCode for each place."""

    ticket: Completion[tuple[ErrorCode, Sequence[ErrorCode]]]
    group_id: str
    places: Sequence[tuple[str, int]]


class Describe(NamedTuple):
    """DescribeGroups of one group. The result is the group, only to be read; None when there is none."""

    ticket: Completion[Group | None]
    group_id: str


class DeleteGroup(NamedTuple):
    """DeleteGroups of one group. The result is an ErrorCode; None: much of it is gone, ask again for the rest."""

    ticket: Completion[ErrorCode | None]
    group_id: str


class ForgetTopics(NamedTuple):
    """Topics are deleted: what was committed for them goes. The result: groups that are still to be looked through,
    with which whoever asks comes again; none: done."""

    ticket: Completion[Sequence[str]]
    topics: frozenset[str]
    groups: Sequence[str] | None = None
    """Those of the last result; None: all groups."""
