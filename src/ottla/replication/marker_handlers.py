"""WriteTxnMarkers: writes the commit and abort markers of transaction coordinators into partitions.

Zone: deterministic. Divides a request into markers and waits until they are committed; `LeaderRole.append_marker`
decides which markers a partition accepts.

API 27, between brokers, and for administrators that abort hanging transactions (KIP-664). Versions 0-2.

Behaviour
- Each partition has its own result: NONE once its marker is committed (acks=all), or Kafka's code for the error.
- Clients other than brokers may only abort a transaction that is open here, with a coordinator epoch that the partition
  knows (as Kafka's tool does). A forged later epoch would fence the real coordinator.
- A coordinator on the same broker needs no request (`MarkerHandlers.write_markers`).
- A request may name thousands of partitions: a step writes some of them, other work gets its turn between steps, and
  only one code per partition is kept. The request is walked once to write and once to build the response.

Version notes: 1 flexible, 2 the version of the transaction (KIP-1228); before that markers have no epoch of their own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.purgatory.purgatory import DelayedOperation, Purgatory
from ottla.record.control import Marker
from ottla.replication.leaders import Leaders, missing_partition_error
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import PartitionRegistry
from ottla.requests import Context, InPieces, handles
from ottla.seams import Clock, Peer
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages.end_txn import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from ottla.wire.slices import Elements

MARKERS_PER_STEP: Final = 200
"""Markers written in one turn: some milliseconds."""
STEP_PAUSE_MS: Final = 1
_PIECE: Final = 500
"""Partitions per piece of a response."""
_BUMPED: Final = 2
"""The transaction version from which on a marker's epoch is above that of the records (KIP-890)."""


class TransactionEnd(NamedTuple):
    """How the transaction of a producer ends."""

    producer_id: int
    epoch: int
    marker: Marker
    bumped: bool
    """Transaction version 2."""


PartitionErrorSlot = tuple[TransactionEnd, TopicPartition]
"""(marker to write, partition)."""
MarkerCodes = Sequence[ErrorCode]
WriteHere = Callable[[Iterator[PartitionErrorSlot], Callable[[MarkerCodes], None]], None]
"""Writes markers to partitions of this broker; calls back, within the call or later, with a code for each slot."""


class DelayedMarker(DelayedOperation):
    """A marker that waits for the high watermark of its partition."""

    __slots__ = ("_code", "_done", "_offset", "_partition")

    def __init__(self, partition: Partition, offset: int, done: Callable[[ErrorCode], None]) -> None:
        super().__init__()
        self._partition = partition
        self._offset = offset
        self._done = done
        self._code = ErrorCode.NONE

    def try_complete(self) -> bool:
        """Case A: the marker is committed. Case B: it will not be committed here (leadership lost, ISR too small)."""
        try:
            if not self._partition.leader_role.is_settled(self._offset, -1):
                return self.completed
        except ApiError as error:
            self._code = error.code
        return self.completed or self.force_complete()

    def on_expire(self) -> None:
        """Answer REQUEST_TIMED_OUT: the coordinator sends the marker again."""
        self._code = ErrorCode.REQUEST_TIMED_OUT

    def on_complete(self) -> None:
        """Report the code."""
        self._done(self._code)


class _Writing:
    """One request in progress: the markers that are still to be written, and the codes so far."""

    __slots__ = ("_done", "_missing", "by_broker", "codes", "places")

    def __init__(
        self, places: Iterator[PartitionErrorSlot], by_broker: bool, done: Callable[[MarkerCodes], None]
    ) -> None:
        self.places = places
        self.by_broker = by_broker
        self.codes: list[ErrorCode] = []
        self._done = done
        self._missing = 1  # one for the writing itself, so that early commits do not complete the request

    def defer_last_code(self) -> Callable[[ErrorCode], None]:
        """A callback that sets the code of the last slot once it is known."""
        at = len(self.codes) - 1
        self._missing += 1

        def fill(code: ErrorCode) -> None:
            self.codes[at] = code
            self.count_down()

        return fill

    def count_down(self) -> None:
        """One missing code has arrived, or the writing has ended; the last of them completes the request."""
        self._missing -= 1
        if not self._missing:
            self._done(self.codes)


class MarkerHandlers:
    """Answers WriteTxnMarkers requests."""

    def __init__(
        self,
        hosted: PartitionRegistry,
        purgatory: Purgatory,
        clock: Clock,
        leaders: Leaders,
        is_broker: Callable[[Peer], bool],
        timeout_ms: int = 30_000,
    ) -> None:
        """`timeout_ms`: how long a marker waits for its commit (request.timeout.ms)."""
        self._is_broker = is_broker
        self._hosted = hosted
        self._purgatory = purgatory
        self._clock = clock
        self._leaders = leaders
        self._timeout_ms = timeout_ms

    @handles(
        ApiKey.WRITE_TXN_MARKERS,
        0,
        2,
        resource="Cluster",
        operation="ClusterAction",
        early=True,
        undivided="the handler has slices of its own, decoded while it iterates over them",
        walked=("markers", "topics", "partition_indexes"),
        checks_itself=True,
    )
    def write_txn_markers(self, context: Context, request: WriteTxnMarkersRequest) -> None:
        """Write all markers; respond when all are committed or refused. Alter on the cluster is enough (KIP-664)."""
        if not context.is_allowed(Operation.ALTER, ResourceType.CLUSTER, logs=False):
            context.check_allowed(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        by_broker = self._is_broker(context.peer)

        def written(codes: MarkerCodes) -> None:
            markers: object = request.markers
            if isinstance(markers, Elements):
                context.send_reply(InPieces(_ANSWERED, _build_responses(request, iter(codes), _PIECE)))
            else:
                context.send_reply(next(_build_responses(request, iter(codes), sys.maxsize)))

        self._step_request(_Writing(_marker_slots(request), by_broker, context.wrap_step(written)))

    def write_markers(self, places: Iterator[PartitionErrorSlot], done: Callable[[MarkerCodes], None]) -> None:
        """Implements `WriteHere`: write the markers of a coordinator on this broker."""
        self._step_request(_Writing(places, True, done))

    def _step_request(self, writing: _Writing) -> None:
        """Write some markers; the others follow in later turns."""
        written = 0
        for ending, tp in islice(writing.places, MARKERS_PER_STEP):
            written += 1
            self._write_marker(ending, tp, writing)
        if written < MARKERS_PER_STEP:
            writing.count_down()
        else:
            self._purgatory.continue_after(STEP_PAUSE_MS, lambda: self._step_request(writing))

    def _write_marker(self, ending: TransactionEnd, tp: TopicPartition, writing: _Writing) -> None:
        """Write one marker to one partition; its code is known now or later."""
        try:
            partition, offset = self._append_marker(ending, tp, writing.by_broker)
            settled = partition.leader_role.is_settled(offset, -1)
        except ApiError as error:
            writing.codes.append(error.code)
            return
        # Before `defer_last_code`, which gives out the place of this code.
        writing.codes.append(ErrorCode.NONE)
        if not settled:
            waiting = DelayedMarker(partition, offset, writing.defer_last_code())
            self._purgatory.try_complete_else_watch(waiting, (partition,), self._timeout_ms)

    def _append_marker(self, ending: TransactionEnd, tp: TopicPartition, by_broker: bool) -> tuple[Partition, int]:
        """The partition, and the offset that its high watermark must reach. Raises ApiError."""
        producer_id, epoch, marker, bumped = ending
        if producer_id < 0 or epoch < 0:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"a marker needs a producer id and epoch, not {producer_id} and {epoch}"
            )
        partition = self._hosted.find_partition(*tp)
        if partition is None or partition.log.closed:  # closed: this broker has stopped meanwhile
            raise missing_partition_error(self._leaders, *tp)
        if not by_broker:
            _check_abort(partition, ending)
        return partition, partition.leader_role.append_marker(producer_id, epoch, marker, bumped, self._clock.now())


def _check_abort(partition: Partition, ending: TransactionEnd) -> None:
    """Check a marker that no broker sent. Raises ApiError CLUSTER_AUTHORIZATION_FAILED, INVALID_TXN_STATE."""
    # 1. Only coordinators commit, and only they use an epoch that the partition has not seen. A partition that knows
    #    no coordinator yet accepts epoch 0, which fences none.
    known = partition.log.producers.get(ending.producer_id)
    last = -1 if known is None else known.coordinator_epoch
    if ending.marker.commit or ending.marker.coordinator_epoch > max(0, last):
        raise ApiError(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{partition.tp}: only coordinators send this marker")
    # 2. Without an open transaction an abort would only raise the producer's epoch, and fence a live producer.
    if not partition.log.producers.is_open(ending.producer_id, ending.epoch):
        raise ApiError(ErrorCode.INVALID_TXN_STATE, f"{partition.tp}: no such transaction is open")


def _marker_slots(request: WriteTxnMarkersRequest) -> Iterator[PartitionErrorSlot]:
    for each in request.markers:
        marker = Marker(each.transaction_result, each.coordinator_epoch)
        ending = TransactionEnd(each.producer_id, each.producer_epoch, marker, each.transaction_version >= _BUMPED)
        for topic in each.topics:
            for index in topic.partition_indexes:
                yield ending, TopicPartition(topic.name, index)


_ANSWERED: Final = ("markers", "topics", "partitions")
_Topic = WriteTxnMarkersResponse.WritableTxnMarkerTopicResult
_Row = WriteTxnMarkersResponse.WritableTxnMarkerPartitionResult
_Result = WriteTxnMarkersResponse.WritableTxnMarkerResult


def _build_responses(
    request: WriteTxnMarkersRequest, codes: Iterator[ErrorCode], most: int
) -> Generator[WriteTxnMarkersResponse, None, None]:
    """Responses for the codes, which are in the order of `_marker_slots`, with up to `most` elements each (markers,
    topics and partitions count). Empties the markers on its way, to free their memory.
    """
    results, room = [], most
    for marker in request.markers:
        result = _Result(producer_id=marker.producer_id)
        results.append(result)
        marker.topics.reverse()
        while marker.topics:
            topic = marker.topics.pop()
            for begin in range(0, len(topic.partition_indexes) or 1, most):
                if room <= 0:  # a marker whose topics do not fit is named again in the next response
                    yield WriteTxnMarkersResponse(markers=results)
                    result = _Result(producer_id=marker.producer_id)
                    results, room = [result], most
                indexes = topic.partition_indexes[begin : begin + most]
                rows = [_Row(partition_index=index, error_code=next(codes)) for index in indexes]
                result.topics.append(_Topic(name=topic.name, partitions=rows))
                room -= len(rows) + 1
        room -= 1
        if room <= 0:
            yield WriteTxnMarkersResponse(markers=results)
            results, room = [], most
    yield WriteTxnMarkersResponse(markers=results)
