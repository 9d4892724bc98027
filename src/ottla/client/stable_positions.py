"""Committed positions of a group: those that no open transaction will change (KIP-447), or the present ones.

Zone: real. One request to the group's coordinator.
"""

from __future__ import annotations

from typing import Final

from ottla.client.coordinators import CoordinatorCalls
from ottla.client.errors import RefusedError, refused_error
from ottla.client.positions import OffsetAndMetadata
from ottla.client.retry import Deadline
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import OffsetFetchRequest, OffsetFetchResponse

_STABLE_FROM: Final = 7
_BY_NAME: Final = 9


def stable_positions(
    groups: CoordinatorCalls, group: str, partitions: list[TopicPartition], deadline: Deadline | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed positions of `partitions`; waits for open transactions (KIP-447). Raises ClientError."""
    return _fetch_positions(groups, group, partitions, deadline, stable=True)


def present_positions(
    groups: CoordinatorCalls, group: str, partitions: list[TopicPartition], deadline: Deadline | None = None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The committed positions of `partitions`, which an open transaction may be about to change. Raises ClientError."""
    return _fetch_positions(groups, group, partitions, deadline, stable=False)


def _fetch_positions(
    groups: CoordinatorCalls, group: str, partitions: list[TopicPartition], deadline: Deadline | None, *, stable: bool
) -> dict[TopicPartition, OffsetAndMetadata]:
    by_topic: dict[str, list[int]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp.partition)

    def build(version: int) -> OffsetFetchRequest:
        if version < 8:
            named = OffsetFetchRequest.OffsetFetchRequestTopic
            topics = [named(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
            return OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)
        each = OffsetFetchRequest.OffsetFetchRequestTopics
        some = [each(name=name, partition_indexes=numbers) for name, numbers in by_topic.items()]
        whole = OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=some)
        return OffsetFetchRequest(groups=[whole], require_stable=stable)

    answer = groups.send_to_coordinator(
        group,
        ApiKey.OFFSET_FETCH,
        build,
        OffsetFetchResponse,
        lambda answer: _offsets_refused(answer, group),
        deadline,
        _BY_NAME,
        _STABLE_FROM,
    )
    return {
        TopicPartition(topic.name, part.partition_index): OffsetAndMetadata(
            part.committed_offset, part.committed_leader_epoch, part.metadata or ""
        )
        for topic in (answer.groups[0].topics if answer.groups else answer.topics)
        for part in topic.partitions
        if part.committed_offset >= 0
    }


def _offsets_refused(answer: OffsetFetchResponse, group: str) -> RefusedError | None:
    codes = [answer.error_code, *(each.error_code for each in answer.groups)]
    topics = answer.groups[0].topics if answer.groups else answer.topics
    codes += [part.error_code for topic in topics for part in topic.partitions]
    return next((refused_error(code, f"positions of group {group}") for code in codes if code), None)
