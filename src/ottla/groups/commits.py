"""Offsets: which commits are accepted, what a fetch returns, what may be deleted.

Zone: pure.

Rules
- A group without members accepts every commit without a generation (consumers that assign partitions themselves,
  tools). A group with members accepts commits of the current generation only, and only once it has its assignment.
- A commit of a transactional producer (KIP-447) may leave the member out; then the member is not checked.
- An offset with a pending transactional commit is not stable. A fetch that requires stable offsets gets
  UNSTABLE_OFFSET_COMMIT for its partition.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from ottla.seams import Instant

_NS_PER_MS = 1_000_000


def commit_offsets(group: Group | None, command: Commit, limits: BrokerConfig, now: Instant) -> Decision:
    """Decide about an OffsetCommit or TxnOffsetCommit."""
    # 1. A member or generation that is wrong refuses the whole commit.
    code = _may_commit(group, command)
    if code:
        return _answer_commit([code] * len(command.items), command.ticket)
    # 2. Metadata that is too long refuses its partition only.
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
    # 3. The rest is journaled as one batch; the answer waits for its commit. An accepted commit is a sign of life; a
    # refused one may come from a former member.
    heard = _heard_of(group, command, now)
    return Decision(heard, records, (), answer, command.producer)


def _may_commit(group: Group | None, command: Commit) -> ErrorCode:
    generation, transactional = command.generation, command.producer is not None
    # 1. An unknown group is created by a commit without a generation; a generation names a group that is gone.
    if group is None:
        return ErrorCode.NONE if generation < 0 else ErrorCode.GROUP_ID_NOT_FOUND
    # 2. The group has no members: a consumer with partitions of its own choice, or a tool, commits.
    empty = group.state is GroupState.EMPTY
    if generation < 0 and empty:
        return ErrorCode.NONE
    # 3. A commit that names a member must be of this member and of this generation.
    if generation >= 0 or command.member_id or command.instance_id is not None:
        code = group.check_member(command.member_id, command.instance_id)
        if code:
            return code
        if generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
    # 4. One that names none is refused while members consume. Producers before KIP-447 name none, and may.
    elif not transactional and not empty:
        return ErrorCode.UNKNOWN_MEMBER_ID
    # 5. The member has joined the generation but has no assignment yet, so it cannot have consumed in it.
    if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _heard_of(group: Group | None, command: Commit, now: Instant) -> tuple[object, ...]:
    """A commit restarts the member's session, unless a waiting JoinGroup or SyncGroup keeps the member alive anyway."""
    member = None if group is None else group.members.get(command.member_id)
    if member is None or member.join is not None or member.sync is not None:
        return ()
    key = DeadlineKey(DeadlineKind.SESSION, command.group_id, command.member_id)
    return (DeadlineSet(key, now.mono_ns + member.session_timeout_ms * _NS_PER_MS),)


def _answer_commit(codes: Sequence[ErrorCode], ticket: object) -> Decision:
    return Decision(now=(AnswerEffect(ticket, codes),))  # type: ignore[arg-type]


def _show_all(_topic: str) -> bool:
    return True


class AllFoundOffsets:
    """All offsets of a group at the time of the fetch: a copy whose rows are made one by one, when they are sent."""

    __slots__ = ("_added", "_held", "_unstable", "shows")

    def __init__(self, offsets: Offsets, group_id: str, stable: bool) -> None:
        """`stable`: partitions with a pending transactional commit get an error instead of their offset."""
        self.shows: Callable[[str], bool] = _show_all
        """Whether the offsets of a topic are shown."""
        self._held = offsets.copy_of_group(group_id)
        self._unstable = dict.fromkeys(offsets.open_of_group(group_id) if stable else ())
        # Partitions that have no committed offset yet, only a pending one: a fetch of all must name them as well.
        self._added = [place for place in self._unstable if place not in self._held]

    def __len__(self) -> int:
        return len(self._held) + len(self._added)

    def __iter__(self) -> Iterator[FoundOffset]:
        return (self.offset_of(place) for place in self.found_partitions() if self.shows(place[0]))

    def found_partitions(self) -> Iterator[PartitionKey]:
        """The partitions with an offset, in the order of their first commit, including those that are not shown."""
        return chain(self._held, self._added)

    def offset_of(self, place: PartitionKey) -> FoundOffset:
        """The row of one of `found_partitions`."""
        if place in self._unstable:
            return FoundOffset(*place, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        return FoundOffset(*place, position_of(self._held[place]))


def fetch_offsets(offsets: Offsets, command: FetchOffsets) -> Decision:
    """Decide about an OffsetFetch. The answer waits until everything that was applied before is committed."""
    # Applied is not committed: a new leader may lack the last records, and offsets must not go back for a client.
    found: AllFoundOffsets | list[FoundOffset]
    if command.wanted is None:
        found = AllFoundOffsets(offsets, command.group_id, command.require_stable)
    else:
        found = list(_found_offsets(offsets, command, command.wanted))
    return Decision(committed=(AnswerEffect(command.ticket, found),))  # type: ignore[arg-type]


def _found_offsets(
    offsets: Offsets, command: FetchOffsets, wanted: Sequence[tuple[str, Sequence[int]]]
) -> Iterator[FoundOffset]:
    group_id, stable = command.group_id, command.require_stable
    for topic, partitions in wanted:
        for partition in partitions:
            place = (topic, partition)
            if stable and offsets.is_open(group_id, place):
                yield FoundOffset(*place, None, ErrorCode.UNSTABLE_OFFSET_COMMIT)
            else:
                yield FoundOffset(*place, offsets.get_offset(group_id, place))


def delete_offsets(group: Group | None, offsets: Offsets, command: DeleteOffsets) -> Decision:
    """Decide about an OffsetDelete (KIP-496). Offsets of topics that members consume are kept."""
    code = _may_delete(group) if command.group_id else ErrorCode.INVALID_GROUP_ID
    if group is None or code:
        return Decision(now=(AnswerEffect(command.ticket, (code, ())),))  # type: ignore[arg-type]
    consumed = None if group.state is GroupState.EMPTY else group.subscribed_topics()
    # Members whose subscription cannot be read may consume any topic.
    unknown = group.state is not GroupState.EMPTY and consumed is None
    codes: list[ErrorCode] = []
    records: list[OffsetCommitted] = []
    for topic, partition in command.places:
        if unknown or (consumed is not None and topic in consumed):
            codes.append(ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
            continue
        codes.append(ErrorCode.NONE)
        if offsets.get_offset(command.group_id, (topic, partition)) is not None:
            records.append(OffsetCommitted(command.group_id, topic, partition, None))
    answer = AnswerEffect(command.ticket, (ErrorCode.NONE, codes))  # type: ignore[arg-type]
    return Decision(records=records, committed=(answer,))


def _may_delete(group: Group | None) -> ErrorCode:
    if group is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    # As in Kafka. The broker can read the subscriptions of consumers only, so it cannot know what members of another
    # protocol type use.
    if group.state is not GroupState.EMPTY and group.protocol_type != CONSUMER:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.NONE
