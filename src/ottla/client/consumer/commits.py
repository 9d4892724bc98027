"""Commits and committed positions as messages.

Zone: pure. Builds requests and reads answers; `group` and `committer` send them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ottla.client.consumer.actions import Member
from ottla.client.errors import ClientError, CommitFailedError, MalformedReplyError, RefusedError, refused_error
from ottla.client.positions import OffsetAndMetadata as OffsetAndMetadata  # noqa: PLC0414  other modules import it from here
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.messages import OffsetCommitRequest, OffsetCommitResponse, OffsetFetchRequest, OffsetFetchResponse

BY_NAME: Final = 9
"""The last version of OffsetCommit and OffsetFetch that identifies topics by name."""
MOVED_ON: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID})
"""Errors of a coordinator for a member that it does not have any more."""


def commit_request(
    group_id: str, member: Member, instance_id: str | None, offsets: Mapping[TopicPartition, OffsetAndMetadata]
) -> OffsetCommitRequest:
    """A request that commits all `offsets`."""
    topics: dict[str, list[OffsetCommitRequest.OffsetCommitRequestPartition]] = {}
    for tp, position in offsets.items():
        part = OffsetCommitRequest.OffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=position.offset,
            committed_leader_epoch=position.leader_epoch,
            committed_metadata=position.metadata,
        )
        topics.setdefault(tp.topic, []).append(part)
    return OffsetCommitRequest(
        group_id=group_id,
        generation_id_or_member_epoch=member.generation,
        member_id=member.member_id,
        group_instance_id=instance_id,
        topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=n, partitions=p) for n, p in topics.items()],
    )


def commit_refusal(answer: OffsetCommitResponse) -> RefusedError | None:
    """The first error that is not retriable, else the first one."""
    found = [
        error
        for topic in answer.topics
        for part in topic.partitions
        if (error := refused_error(part.error_code, f"commit of {topic.name}-{part.partition_index}")) is not None
    ]
    # Waiting does not help here: a rebalance ends when the application polls, and a deleted topic does not return.
    for error in found:
        if error.code in (ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            error.retriable = False
    return min(found, key=lambda error: error.retriable, default=None)


def not_a_member_error(group_id: str) -> CommitFailedError:
    """The error of a subscribed consumer outside its group. Nothing is sent: an empty group would accept the commit."""
    return CommitFailedError(
        f"this consumer is not in group {group_id}, which may have assigned its partitions to other members",
        "Call poll, which joins the group or raises the reason, then commit the partitions that are assigned",
    )


def commit_error(error: ClientError) -> ClientError:
    """The error that the application gets for an error of a commit request."""
    code = error.code if isinstance(error, RefusedError) else None
    if code in MOVED_ON:
        return CommitFailedError(
            f"the group has assigned the partitions to other members ({error.cause})",
            "Process records faster, poll fewer at once (max.poll.records), or raise max.poll.interval.ms",
        )
    if code is ErrorCode.REBALANCE_IN_PROGRESS:
        return rebalance_error()
    return error


def rebalance_error() -> CommitFailedError:
    """The error of a commit during a rebalance, whether the coordinator or the member itself detects it."""
    return CommitFailedError(
        "the group is rebalancing (REBALANCE_IN_PROGRESS), so its partitions may be assigned to other members",
        "Call poll, which completes the rebalance, then commit the partitions that are still assigned",
    )


def fetch_request(group_id: str, version: int, partitions: Iterable[TopicPartition]) -> OffsetFetchRequest:
    """A request for stable positions: the coordinator makes it wait for open transactions (KIP-447)."""
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    if version >= 8:
        rows = [OffsetFetchRequest.OffsetFetchRequestTopics(name=n, partition_indexes=p) for n, p in topics.items()]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group_id, topics=rows)
        return OffsetFetchRequest(groups=[group], require_stable=True)
    # Version 8 asks for several groups (KIP-709). Before version 7 there is no require_stable: the coordinator answers
    # with the committed position while a transaction about a newer one is open.
    old = [OffsetFetchRequest.OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in topics.items()]
    return OffsetFetchRequest(group_id=group_id, topics=old, require_stable=version >= 7)


def fetch_refusal(answer: OffsetFetchResponse, group_id: str) -> RefusedError | None:
    """The first error of the group or of a partition."""
    codes = [answer.error_code, *(each.error_code for each in answer.groups)]
    codes += [part.error_code for topic in _topics_in(answer) for part in topic.partitions]
    return next((refused_error(code, f"committed offsets of group {group_id}") for code in codes if code), None)


def positions_in(
    answer: OffsetFetchResponse, asked: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """The committed position of each partition, or None. Raises MalformedReplyError."""
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for topic in _topics_in(answer):
        for part in topic.partitions:
            # -1 is the answer for a partition without a committed position.
            position = OffsetAndMetadata(part.committed_offset, part.committed_leader_epoch, part.metadata or "")
            found[TopicPartition(topic.name, part.partition_index)] = position if part.committed_offset >= 0 else None
    wanted = list(asked)
    missing = [tp for tp in wanted if tp not in found]
    if missing:
        raise MalformedReplyError(f"the response of the coordinator has no position for {missing[0]}")
    return {tp: found[tp] for tp in wanted}


def _topics_in(
    answer: OffsetFetchResponse,
) -> list[OffsetFetchResponse.OffsetFetchResponseTopic] | list[OffsetFetchResponse.OffsetFetchResponseTopics]:
    return answer.groups[0].topics if answer.groups else answer.topics
