"""Offsets: who may commit, what a fetch finds, what may be deleted.

Zone: pure.

Rules
- Without members anybody may commit who claims no generation (consumers that assign partitions themselves, tools).
  With members only those of the present generation, and not before they have their assignment.
- In the name of a transactional producer (KIP-447) the member is checked only if it is named at all.
- A position that a transaction is about to move is not stable; who requires stability is told so per partition.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard import AnswerEffect, Decision, Effect
from ottla.errors import ErrorCode
from ottla.groups.commands import Commit, DeleteOffsets, FetchOffsets, FoundOffset
from ottla.groups.deadlines import DeadlineKey, DeadlineKind
from ottla.groups.group import CONSUMER, Group, GroupState
from ottla.groups.offsets import Offsets, PartitionKey, position_of
from ottla.groups.rebalancing import DeadlineSet
from ottla.groups.records import OffsetCommitted
from ottla.groups.safeguards import GroupSafeguards
from ottla.seams import Instant

_NS_PER_MS = 1_000_000


def commit(
    group: Group | None, command: Commit, limits: BrokerConfig, now: Instant, safeguards: GroupSafeguards
) -> Decision:
    """Decide about an OffsetCommit or TxnOffsetCommit."""
    code = _may_commit(group, command)
    if code and (safeguards.generation_check or command.generation < 0):
        return _answer_commit([code] * len(command.items), command.ticket)
    codes: list[ErrorCode] = []
    records: list[OffsetCommitted] = []
    longest = limits.offset_metadata_max_bytes
    for topic, partition, position in command.items:
        if len(position.metadata) > longest:
            codes.append(ErrorCode.OFFSET_METADATA_TOO_LARGE)
        else:
            codes.append(ErrorCode.NONE)
            records.append(OffsetCommitted(command.group_id, topic, partition, position))
    answer: tuple[Effect, ...] = (AnswerEffect(command.ticket, codes),)  # type: ignore[arg-type]
    if not records:
        return Decision(now=answer)
    heard = _heard_of(group, command, now)
    if not safeguards.answer_when_committed:
        return Decision(heard, records, answer, (), command.producer)
    return Decision(heard, records, (), answer, command.producer)


def _may_commit(group: Group | None, command: Commit) -> ErrorCode:
    generation, transactional = command.generation, command.producer is not None
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
    empty = group.state is GroupState.EMPTY
    if generation < 0 and empty:
        return ErrorCode.NONE
    if generation >= 0 or command.member_id or command.instance_id is not None:
        code = group.check_member(command.member_id, command.instance_id)
        if code:
            return code
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    elif not transactional and not empty:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _heard_of(group: Group | None, command: Commit, now: Instant) -> tuple[object, ...]:
    """A commit is a sign of life, unless the member waits in a request anyway."""
    member = None if group is None else group.members.get(command.member_id)
    if member is None or member.join is not None or member.sync is not None:
        return ()
    key = DeadlineKey(DeadlineKind.SESSION, command.group_id, command.member_id)
    return (DeadlineSet(key, now.mono_ns + member.session_timeout_ms * _NS_PER_MS),)


def _answer_commit(codes: Sequence[ErrorCode], ticket: object) -> Decision:
    return Decision(now=(AnswerEffect(ticket, codes),))  # type: ignore[arg-type]


class AllFoundOffsets:
    """All positions of a group as they were when it was asked: each is looked at when its turn comes."""

    __slots__ = ("_added", "_held", "_unstable")

    def __init__(self, offsets: Offsets, group_id: str, stable: bool) -> None:
        """`stable`: positions that a transaction is about to move, or to give to the group, are errors."""
        self._held = offsets.copy_of_group(group_id)
        self._unstable = dict.fromkeys(offsets.open_of_group(group_id) if stable else ())
        self._added = [place for place in self._unstable if place not in self._held]

    def __len__(self) -> int:
        return len(self._held) + len(self._added)

    def __iter__(self) -> Iterator[FoundOffset]:
        return map(self.offset_of, self.places())

    def places(self) -> Iterator[PartitionKey]:
        """Where it has positions, in the order of their first commit."""
        return chain(self._held, self._added)

    def offset_of(self, place: PartitionKey) -> FoundOffset:
        """One of `places`."""
        if place in self._unstable:
            return FoundOffset(*place, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return FoundOffset(*place, position_of(self._held[place]))


def fetch(offsets: Offsets, command: FetchOffsets) -> Decision:
    """What is committed; told once everything that was applied so far is."""
    found: AllFoundOffsets | list[FoundOffset]
    if command.wanted is None:
        found = AllFoundOffsets(offsets, command.group_id, command.require_stable)
    else:
        found = list(_found(offsets, command, command.wanted))
    return Decision(committed=(AnswerEffect(command.ticket, found),))  # type: ignore[arg-type]


def _found(
    offsets: Offsets, command: FetchOffsets, wanted: Sequence[tuple[str, Sequence[int]]]
) -> Iterator[FoundOffset]:
    group_id, stable = command.group_id, command.require_stable
    for topic, partitions in wanted:
        for partition in partitions:
            place = (topic, partition)
            if stable and offsets.is_open(group_id, place):
                yield FoundOffset(*place, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            else:
                yield FoundOffset(*place, offsets.get(group_id, place))


def delete(group: Group | None, offsets: Offsets, command: DeleteOffsets) -> Decision:
    """Decide about an OffsetDelete (KIP-496): not of topics that members consume."""
    code = _may_delete(group) if command.group_id else ErrorCode.INVALID_GROUP_ID
    if group is None or code:
        return Decision(now=(AnswerEffect(command.ticket, (code, ())),))  # type: ignore[arg-type]
    consumed = None if group.state is GroupState.EMPTY else group.subscribed_topics()
    unknown = group.state is not GroupState.EMPTY and consumed is None
    codes: list[ErrorCode] = []
    records: list[OffsetCommitted] = []
    for topic, partition in command.places:
        if unknown or (consumed is not None and topic in consumed):
            codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        codes.append(ErrorCode.NONE)
        if offsets.get(command.group_id, (topic, partition)) is not None:
            records.append(OffsetCommitted(command.group_id, topic, partition, None))
    answer = AnswerEffect(command.ticket, (ErrorCode.NONE, codes))  # type: ignore[arg-type]
    return Decision(records=records, committed=(answer,))


def _may_delete(group: Group | None) -> ErrorCode:
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE
