"""Asking leaders where an epoch ended (KIP-320).

Zone: real. One thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connection import Connection
from ottla.client.errors import ClientError, RefusedError, refusal
from ottla.client.leaders import Question, Sent, ask_leaders
from ottla.client.retry import Deadline
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

_CONSUMER = -1
"""Replica id of a client."""


class EpochEnd(NamedTuple):
    """The largest epoch of the leader's log that is not above the one asked for, and the offset where it ended."""

    leader_epoch: int
    end_offset: int


def epoch_ends(
    cluster: Cluster, epochs: Mapping[TopicPartition, tuple[int, int]], deadline: Deadline
) -> dict[TopicPartition, EpochEnd | ClientError]:
    """epochs: (epoch asked for, the leader's epoch as known, for fencing). -1 where the leader knows nothing."""

    def send(connection: Connection, asked: Sequence[TopicPartition]) -> Iterator[Sent[OffsetForLeaderEpochResponse]]:
        topics: dict[str, list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition]] = {}
        for where in asked:
            epoch, current = epochs[where]
            part = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                partition=where.partition, current_leader_epoch=current, leader_epoch=epoch
            )
            topics.setdefault(where.topic, []).append(part)
        request = OffsetForLeaderEpochRequest(
            replica_id=_CONSUMER,
            topics=[OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=n, partitions=p) for n, p in topics.items()],
        )
        version = connection.version(ApiKey.OFFSET_FOR_LEADER_EPOCH, at_least=3)
        yield connection.send(request, version, OffsetForLeaderEpochResponse), asked

    question: Question[OffsetForLeaderEpochResponse, EpochEnd] = Question("validate positions", send, _ends)
    return ask_leaders(cluster, epochs, question, deadline)


def _ends(answer: OffsetForLeaderEpochResponse) -> Iterator[tuple[TopicPartition, EpochEnd | RefusedError]]:
    for topic in answer.topics:
        for part in topic.partitions:
            where = TopicPartition(topic.topic, part.partition)
            error = refusal(part.error_code, f"end of an epoch of {where}")
            yield where, error or EpochEnd(part.leader_epoch, part.end_offset)
