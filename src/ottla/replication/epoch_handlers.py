"""OffsetForLeaderEpoch: where a leader epoch ended in a log (KIP-101, KIP-279, KIP-320).

Zone: deterministic.

API 23. Versions 0-4. Only the leader answers. Followers older than Fetch v12 and consumers that check for truncation
ask; each partition gets its own result.

Behaviour
- A follower's report of how far it has cleaned its logs (`tombstone_retention`) is accepted from brokers only.
- The latest epoch ends at the log end; an earlier one ends where the next one starts. For an epoch without an entry the
  response names the largest epoch below it and its end; for one above the latest it is -1, -1.

Version notes: 1 leader epoch in the response, 2 current leader epoch in the request (fenced), 3 replica id, 4 flexible.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError
from ottla.replication.leaders import Leaders, missing_partition_error
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.tombstone_retention import TombstoneRetention
from ottla.requests import Context, Parts, denied_error, handles
from ottla.seams import Peer
from ottla.wire.apis import ApiKey
from ottla.wire.messages import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse

_End = OffsetForLeaderEpochResponse.EpochEndOffset


class EpochHandlers:
    """Answers from the leader epochs of the logs that this broker leads."""

    def __init__(
        self,
        hosted: PartitionRegistry,
        leaders: Leaders,
        removals: TombstoneRetention,
        is_broker: Callable[[Peer], bool],
    ) -> None:
        self._hosted = hosted
        self._leaders = leaders
        self._removals = removals
        self._is_broker = is_broker

    @handles(
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        0,
        4,
        resource="Topic",
        operation="Describe",
        also=(("Cluster", "ClusterAction"),),
        parts=Parts(cost_us=10, request=(("topics", "partitions"),), response=(("topics", "partitions"),)),
    )
    def offset_for_leader_epoch(
        self, context: Context, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        """Where a leader epoch ended, per partition. Needs ClusterAction, or Describe on each topic."""
        denied = _denied_topics(context, request)
        result = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        response = OffsetForLeaderEpochResponse(
            topics=[
                result(
                    topic=topic.topic,
                    partitions=[self._end_of(topic.topic, one, topic.topic in denied) for one in topic.partitions],
                )
                for topic in request.topics
            ]
        )
        if request.cleaned and self._is_broker(context.peer):
            response.removable = self._removals.handle_report(request.replica_id, request.cleaned)
        return response

    def _end_of(self, topic: str, one: OffsetForLeaderEpochRequest.OffsetForLeaderPartition, is_denied: bool) -> _End:
        try:
            if is_denied:
                raise denied_error(ResourceType.TOPIC)
            partition = self._hosted.find_partition(topic, one.partition)
            if partition is None:
                raise missing_partition_error(self._leaders, topic, one.partition)
            partition.check_leader(one.current_leader_epoch)
        except ApiError as error:
            return _End(partition=one.partition, error_code=error.code)
        epoch, end = partition.log.epochs.end_offset_for(one.leader_epoch)
        return _End(partition=one.partition, leader_epoch=epoch, end_offset=end)


def _denied_topics(context: Context, request: OffsetForLeaderEpochRequest) -> AbstractSet[str]:
    if context.is_allowed(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, logs=False):
        return frozenset()
    names = (topic.topic for topic in request.topics)
    return context.denied_names(Operation.DESCRIBE, ResourceType.TOPIC, names)
