"""The requests of followers to their leaders besides Fetch: where an epoch ended, and where the log begins.

Zone: deterministic. One request about several partitions, and the results as values; `fetcher` decides what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from ottla.broker_client import BrokerClient
from ottla.errors import ErrorCode
from ottla.seams import Failure
from ottla.types import NO_EPOCH, NO_OFFSET, TopicPartition
from ottla.wire.messages import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

LANE: Final = "epochs"
"""A connection of its own: on the fetch connection a request waits up to half a second for the long poll before it."""
_EPOCHS_VERSION: Final = 4
_LIST_VERSION: Final = 7
_EARLIEST: Final = -2


class OffsetQuery(NamedTuple):
    """One partition, and the leader epoch that the follower knows."""

    tp: TopicPartition
    current_epoch: int
    asked_epoch: int = NO_EPOCH


class OffsetResult(NamedTuple):
    """The result for one partition. With an error the other fields mean nothing."""

    error: ErrorCode
    offset: int = NO_OFFSET
    epoch: int = NO_EPOCH


OffsetResults = Mapping[TopicPartition, OffsetResult]


class LeaderRequests:
    """Sends the requests of this broker's followers."""

    __slots__ = ("_node_id", "_peers", "_timeout_ms")

    def __init__(self, peers: BrokerClient, node_id: int, timeout_ms: int) -> None:
        self._peers = peers
        self._node_id = node_id
        self._timeout_ms = timeout_ms

    def epoch_ends(
        self, leader: int, asked: Iterable[OffsetQuery], done: Callable[[OffsetResults | Failure], None]
    ) -> None:
        """Send OffsetForLeaderEpoch: per partition the largest epoch not above `asked_epoch`, and where it ended.

        The leader's present epoch ends at its log end.
        """
        topics: dict[str, OffsetForLeaderEpochRequest.OffsetForLeaderTopic] = {}
        for (name, index), current, epoch in asked:
            one = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=index, leader_epoch=epoch)
            one.current_leader_epoch = current
            empty = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=name)
            topics.setdefault(name, empty).partitions.append(one)
        request = OffsetForLeaderEpochRequest(replica_id=self._node_id, topics=list(topics.values()))

        def on_response(answer: OffsetForLeaderEpochResponse | Failure) -> None:
            done(answer if isinstance(answer, Failure) else _epoch_ends(answer))

        self._peers.send_request(leader, request, _EPOCHS_VERSION, self._timeout_ms, on_response, LANE)

    def log_start(self, leader: int, asked: OffsetQuery, done: Callable[[OffsetResults | Failure], None]) -> None:
        """Send ListOffsets: where a leader's log begins."""
        one = ListOffsetsRequest.ListOffsetsPartition(partition_index=asked.tp.partition, timestamp=_EARLIEST)
        one.current_leader_epoch = asked.current_epoch
        topic = ListOffsetsRequest.ListOffsetsTopic(name=asked.tp.topic, partitions=[one])
        request = ListOffsetsRequest(replica_id=self._node_id, topics=[topic])

        def on_response(answer: ListOffsetsResponse | Failure) -> None:
            done(answer if isinstance(answer, Failure) else _log_starts(answer))

        self._peers.send_request(leader, request, _LIST_VERSION, self._timeout_ms, on_response, LANE)


def _epoch_ends(answer: OffsetForLeaderEpochResponse) -> OffsetResults:
    return {
        TopicPartition(topic.topic, one.partition): OffsetResult(
            ErrorCode(one.error_code), one.end_offset, one.leader_epoch
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def _log_starts(answer: ListOffsetsResponse) -> OffsetResults:
    return {
        TopicPartition(topic.name, one.partition_index): OffsetResult(ErrorCode(one.error_code), one.offset)
        for topic in answer.topics
        for one in topic.partitions
    }
