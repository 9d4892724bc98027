"""The commands of a group's coordinator, and their results.

Zone: pure. Values only. Each command carries a ticket: the callback that gets the result or an ApiError.
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
    """The unique part of the member id, if one is created."""
    require_known: bool = False
    """Whether a new member must join again with the member id that it is given (KIP-394)."""
    can_skip: bool = False
    """Whether a static leader understands `skip_assignment` (KIP-814)."""


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
    """LeaveGroup: (member id, instance id) of each member that leaves. The result has an ErrorCode for each."""

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
    """OffsetFetch of one group: (topic, partitions), None for all. The result has a FoundOffset for each."""

    ticket: Completion[Iterable[FoundOffset]]
    group_id: str
    wanted: Sequence[tuple[str, Sequence[int]]] | None
    require_stable: bool = False


class DeleteOffsets(NamedTuple):
    """OffsetDelete. The result: an ErrorCode of the whole request, and if that is NONE, one for each of `places`."""

    ticket: Completion[tuple[ErrorCode, Sequence[ErrorCode]]]
    group_id: str
    places: Sequence[tuple[str, int]]


class Describe(NamedTuple):
    """DescribeGroups of one group. The result is the group (read only); None when it does not exist."""

    ticket: Completion[Group | None]
    group_id: str


class DeleteGroup(NamedTuple):
    """DeleteGroups of one group. The result is an ErrorCode; None: a part is deleted, submit again for the rest."""

    ticket: Completion[ErrorCode | None]
    group_id: str


class ForgetTopics(NamedTuple):
    """Topics are deleted: drop the offsets that were committed for them.

    The result: the groups that are not searched yet, to be submitted again; when it is empty, all are done.
    """

    ticket: Completion[Sequence[str]]
    topics: frozenset[str]
    groups: Sequence[str] | None = None
    """The groups of the last result; None: all groups."""
