"""ListOffsets, DeleteRecords and DescribeProducers.

Zone: deterministic. Each partition has its own result, with Kafka's error codes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.deletion import delete_records
from ottla.replication.fetch.pending_fetch import DEBUGGING_CONSUMER
from ottla.replication.leaders import Leaders, NoLeaders, missing_partition_error
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry
from ottla.requests import Context, Parts, denied_error, handles
from ottla.seams import Clock, Failure, Peer
from ottla.storage.indexes.index import TimestampOffset
from ottla.storage.indexes.timestamps import offset_for, offset_of_largest
from ottla.types import INTERNAL_TOPICS, NO_EPOCH, NO_OFFSET, NO_TIMESTAMP
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)

_One = TypeVar("_One")

_TOPIC: Final = ResourceType.TOPIC
_DESCRIBE: Final = Operation.DESCRIBE
LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING: Final = -6
# MAX_TIMESTAMP is from KIP-734, EARLIEST_LOCAL from KIP-405, LATEST_TIERED from KIP-1005, EARLIEST_PENDING from
# KIP-1023.
_SINCE: Final = {LATEST: 0, EARLIEST: 0, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING: 11}
"""The first version of ListOffsets with each special timestamp."""
_READ_COMMITTED: Final = 1
# The first version whose clients know OFFSET_NOT_AVAILABLE (KIP-207).
_NOT_AVAILABLE_VERSION: Final = 5
_MAX_OLD_OFFSETS: Final = 1000
"""Most segment starts in a response of version 0."""

_Offset = ListOffsetsResponse.ListOffsetsPartitionResponse
_Trimmed = DeleteRecordsResponse.DeleteRecordsPartitionResult


class _Asked(NamedTuple):
    """One partition of a ListOffsets request."""

    topic: str
    partition: int
    leader_epoch: int
    timestamp: int
    max_offsets: int
    up_to_end: bool
    """Whether the limit is the log end: for a follower, and for a consumer that compares replicas."""
    of_any_replica: bool
    """Whether a replica that does not lead answers as well: for the latter."""


class LogHandlers:
    """Answers from the logs of this broker."""

    def __init__(
        self,
        hosted: PartitionRegistry,
        purgatory: Purgatory,
        clock: Clock,
        leaders: Leaders | None = None,
        is_broker: Callable[[Peer], bool] | None = None,
    ) -> None:
        """`leaders`: the cluster's view, for requests that reached the wrong broker.

        `is_broker`: whether a connection may act as a replica; None: none may.
        """
        self._is_broker = is_broker
        self._hosted = hosted
        self._purgatory = purgatory
        self._clock = clock
        self._leaders: Leaders = leaders or NoLeaders()

    def _find_topic(self, topic: str, partition: int) -> Partition:
        """The partition of that name. Raises ApiError when it is not on this broker."""
        found = self._hosted.find_partition(topic, partition)
        if found is None:
            raise missing_partition_error(self._leaders, topic, partition)
        return found

    # -- ListOffsets -------------------------------------------------------------------------------------------

    @handles(
        ApiKey.LIST_OFFSETS,
        0,
        11,
        resource="Topic",
        operation="Describe",
        parts=Parts(cost_us=20, request=(("topics", "partitions"),), response=(("topics", "partitions"),)),
    )
    def list_offsets(self, context: Context, request: ListOffsetsRequest) -> None:
        """The offset for a time, or for a special timestamp, per partition."""
        if request.isolation_level not in (0, _READ_COMMITTED):
            raise ApiError(ErrorCode.INVALID_REQUEST, f"unknown isolation level {request.isolation_level}")
        # A client that sets the id of a broker still reads up to the high watermark only.
        as_replica = request.replica_id >= 0 and self._is_broker is not None and self._is_broker(context.peer)
        is_debugging = request.replica_id == DEBUGGING_CONSUMER
        counts = Counter((topic.name, one.partition_index) for topic in request.topics for one in topic.partitions)
        gather: FanIn[tuple[str, _Offset]] = FanIn(
            lambda results: context.send_reply(
                ListOffsetsResponse(
                    topics=[
                        ListOffsetsResponse.ListOffsetsTopicResponse(name=name, partitions=partitions)
                        for name, partitions in by_topic(results)
                    ]
                )
            )
        )
        denied = context.denied_names(_DESCRIBE, _TOPIC, (topic.name for topic in request.topics))
        for topic in request.topics:
            for one in topic.partitions:
                slot = gather.new_slot()
                asked = _Asked(
                    topic.name,
                    one.partition_index,
                    one.current_leader_epoch,
                    one.timestamp,
                    one.max_num_offsets,
                    as_replica or is_debugging,
                    is_debugging,
                )
                try:
                    if topic.name in denied:
                        raise denied_error(_TOPIC)
                    if counts[asked.topic, asked.partition] > 1:
                        raise ApiError(ErrorCode.INVALID_REQUEST, "a partition is named twice")
                    self._list_offset(context, request.isolation_level, asked, slot)
                except ApiError as error:
                    slot((asked.topic, _Offset(partition_index=asked.partition, error_code=error.code)))
        gather.close_slots()

    def _list_offset(
        self, context: Context, isolation_level: int, asked: _Asked, slot: Callable[[tuple[str, _Offset]], None]
    ) -> None:
        """Answer one partition, now or later. Raises ApiError before it has used `slot`."""
        version = context.api_version
        partition = self._find_topic(asked.topic, asked.partition)
        partition.check_reader(asked.leader_epoch, asked.of_any_replica)
        # As in Kafka, an unknown negative timestamp counts as one of a later version, not as a time before 1970.
        if asked.timestamp < 0 and _SINCE.get(asked.timestamp, version + 1) > version:
            raise ApiError(
                ErrorCode.UNSUPPORTED_VERSION, f"timestamp {asked.timestamp} is not supported in this version"
            )
        log = partition.log
        limit = log.end_offset
        # A new leader's high watermark may be below an end that consumers have seen already: they retry until it has
        # caught up (KIP-207). The log start does not depend on it.
        if not asked.up_to_end:
            limit = partition.last_stable_offset if isolation_level == _READ_COMMITTED else partition.high_watermark
            if not partition.leader_role.knows_latest and asked.timestamp not in (EARLIEST, EARLIEST_LOCAL):
                code = (
                    ErrorCode.LEADER_NOT_AVAILABLE
                    if version < _NOT_AVAILABLE_VERSION
                    else ErrorCode.OFFSET_NOT_AVAILABLE
                )
                raise ApiError(code, f"{partition.tp} has a new leader that does not know the high watermark yet")
        # Tiered storage does not exist here: its special timestamps get -1. Only a real time has to be looked up.
        if version == 0:
            offsets = _old_offsets(partition, asked, limit, self._clock.now().wall_ms)
            slot((asked.topic, _Offset(partition_index=asked.partition, old_style_offsets=offsets)))
        elif asked.timestamp == LATEST:
            slot((asked.topic, _offset_row(asked, NO_TIMESTAMP, limit, log.epochs.latest)))
        elif asked.timestamp in (EARLIEST, EARLIEST_LOCAL):
            start = log.start_offset
            slot((asked.topic, _offset_row(asked, NO_TIMESTAMP, start, log.epochs.epoch_of(start))))
        elif asked.timestamp in (LATEST_TIERED, EARLIEST_PENDING):
            slot((asked.topic, _offset_row(asked, NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)))
        else:
            self._look_up(context, partition, asked, limit, slot)

    def _look_up(
        self,
        context: Context,
        partition: Partition,
        asked: _Asked,
        limit: int,
        slot: Callable[[tuple[str, _Offset]], None],
    ) -> None:
        @context.wrap_step
        def found(outcome: TimestampOffset | Failure | None) -> None:
            if isinstance(outcome, Failure):
                slot((asked.topic, _Offset(partition_index=asked.partition, error_code=ErrorCode.KAFKA_STORAGE_ERROR)))
            # A record at or above the limit is not committed, or may belong to an open transaction: readers must not
            # learn its offset, because it may still disappear or be aborted.
            elif outcome is None or outcome.offset >= limit:
                slot((asked.topic, _offset_row(asked, NO_TIMESTAMP, NO_OFFSET, NO_EPOCH)))
            else:
                epoch = partition.log.epochs.epoch_of(outcome.offset)
                slot((asked.topic, _offset_row(asked, outcome.timestamp, outcome.offset, epoch)))

        log = partition.log
        if asked.timestamp == MAX_TIMESTAMP:
            offset_of_largest(log.segments, log.start_offset, found, log.home.workers)
        else:
            offset_for(log.segments, log.start_offset, asked.timestamp, found, log.home.workers)

    # -- DeleteRecords -----------------------------------------------------------------------------------------

    @handles(
        ApiKey.DELETE_RECORDS,
        0,
        2,
        resource="Topic",
        operation="Delete",
        parts=Parts(cost_us=20, request=(("topics", "partitions"),), response=(("topics", "partitions"),)),
    )
    def delete_records(self, context: Context, request: DeleteRecordsRequest) -> None:
        """Raise log starts; the response has the new low watermark per partition."""
        gather: FanIn[tuple[str, _Trimmed]] = FanIn(
            lambda results: context.send_reply(
                DeleteRecordsResponse(
                    topics=[
                        DeleteRecordsResponse.DeleteRecordsTopicResult(name=name, partitions=partitions)
                        for name, partitions in by_topic(results)
                    ]
                )
            )
        )
        denied = context.denied_names(Operation.DELETE, _TOPIC, (topic.name for topic in request.topics))
        for topic in request.topics:
            for one in topic.partitions:
                slot = gather.new_slot()
                if topic.name in denied:
                    slot((topic.name, _trimmed(one.partition_index, denied_error(_TOPIC))))
                else:
                    self._trim_partition(context, topic.name, one.partition_index, one.offset, request.timeout_ms, slot)
        gather.close_slots()

    def _trim_partition(
        self,
        context: Context,
        topic: str,
        index: int,
        offset: int,
        timeout_ms: int,
        slot: Callable[[tuple[str, _Trimmed]], None],
    ) -> None:
        @context.wrap_step
        def send_response(outcome: int | ApiError) -> None:
            slot((topic, _trimmed(index, outcome)))

        try:
            # As in Kafka: coordinators load their state from these logs, so a missing beginning is lost state.
            if topic in INTERNAL_TOPICS:
                raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, "clients may not delete records of internal topics")
            delete_records(
                self._find_topic(topic, index), offset, timeout_ms, self._leaders, self._purgatory, send_response
            )
        except ApiError as error:
            send_response(error.as_value())

    # -- DescribeProducers -------------------------------------------------------------------------------------

    @handles(
        ApiKey.DESCRIBE_PRODUCERS,
        0,
        0,
        resource="Topic",
        operation="Read",
        parts=Parts(cost_us=10, request=(("topics", "partition_indexes"),), response=(("topics", "partitions"),)),
    )
    def describe_producers(self, context: Context, request: DescribeProducersRequest) -> DescribeProducersResponse:
        """The producers whose state the partitions keep (KIP-664)."""
        denied = context.denied_names(Operation.READ, _TOPIC, (topic.name for topic in request.topics))
        result = DescribeProducersResponse.TopicResponse
        return DescribeProducersResponse(
            topics=[
                result(
                    name=topic.name,
                    partitions=[
                        self._describe_partition(topic.name, one, topic.name in denied)
                        for one in dict.fromkeys(topic.partition_indexes)
                    ],
                )
                for topic in request.topics
            ]
        )

    def _describe_partition(
        self, topic: str, index: int, is_denied: bool
    ) -> DescribeProducersResponse.PartitionResponse:
        try:
            if is_denied:
                raise denied_error(_TOPIC)
            partition = self._find_topic(topic, index)
        except ApiError as error:
            return DescribeProducersResponse.PartitionResponse(
                partition_index=index, error_code=error.code, error_message=error.message
            )
        entries = [producer.to_snapshot_entry() for producer in partition.log.producers]
        return DescribeProducersResponse.PartitionResponse(
            partition_index=index,
            active_producers=[
                DescribeProducersResponse.ProducerState(
                    producer_id=entry.producer_id,
                    producer_epoch=entry.producer_epoch,
                    last_sequence=entry.last_sequence,
                    last_timestamp=entry.timestamp,
                    coordinator_epoch=entry.coordinator_epoch,
                    current_txn_start_offset=entry.current_txn_first_offset,
                )
                for entry in entries
            ],
        )


def _trimmed(index: int, outcome: int | ApiError) -> _Trimmed:
    if isinstance(outcome, ApiError):
        return _Trimmed(partition_index=index, low_watermark=NO_OFFSET, error_code=outcome.code)
    return _Trimmed(partition_index=index, low_watermark=outcome)


def _offset_row(asked: _Asked, timestamp: int, offset: int, epoch: int) -> _Offset:
    return _Offset(partition_index=asked.partition, timestamp=timestamp, offset=offset, leader_epoch=epoch)


def _old_offsets(partition: Partition, asked: _Asked, limit: int, now_ms: int) -> list[int]:
    """The offsets for version 0: starts of segments and the log end, newest first, at most `max_offsets`.

    EARLIEST: the first one only. A time: the newest one that is not later, and all before it; a segment has the time of
    its latest record, the log end has the present time. `limit` (the end of committed records) replaces all offsets
    above it.
    """
    log = partition.log
    places = [(max(segment.base_offset, log.start_offset), segment.largest_timestamp) for segment in log.segments]
    if log.segments.active.size:
        places.append((log.end_offset, now_ms))
    if asked.timestamp == EARLIEST:
        del places[1:]
    elif asked.timestamp != LATEST:
        while places and places[-1][1] > asked.timestamp:
            places.pop()
    # Offsets above the limit are not committed: the limit takes their place, as the newest offset.
    count = max(0, min(asked.max_offsets, _MAX_OLD_OFFSETS))
    offsets = [offset for offset, _ in reversed(places)][:count]
    committed = [offset for offset in offsets if offset <= limit]
    return offsets if len(committed) == len(offsets) else [limit, *committed]


def by_topic(results: Iterable[tuple[str, _One]]) -> list[tuple[str, list[_One]]]:
    """Group partition results by topic, topics in the order of their first result."""
    topics: dict[str, list[_One]] = {}
    for topic, one in results:
        topics.setdefault(topic, []).append(one)
    return list(topics.items())
