"""The queue of transaction markers: which partitions still need which marker, grouped by the leading broker.

Zone: pure. Bookkeeping: which requests to send, what a response means, when to retry. The owner of the queue sends the
requests, and reports written markers to the state machine.

A marker is sent again until its partition confirms it; a partition recognizes a marker that it has already. The queue
is not journaled: a coordinator that is loaded starts with the markers of all decided transactions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.errors import ErrorCode
from ottla.transactions.commands import Markers
from ottla.types import TopicPartition
from ottla.wire.messages.end_txn import WriteTxnMarkersRequest, WriteTxnMarkersResponse

IN_FLIGHT: Final = 5
"""The most requests to one broker at a time. Markers that are queued meanwhile share the next request."""
PARTITIONS_PER_REQUEST: Final = 10_000
RETRY_MIN_MS: Final = 20
RETRY_MAX_MS: Final = 1000
_NS_PER_MS: Final = 1_000_000

LeaderOf = Callable[[TopicPartition], "int | None"]
"""The broker that leads a partition; None while there is no leader. Raises KeyError for a deleted partition."""

HAS_IT: Final = (  # error codes of partitions that need no marker any more
    ErrorCode.NONE,
    # The producer has a later epoch than the marker. It gets one only after the transaction is complete, so the marker
    # was written, and the response was lost (KAFKA-19999).
    ErrorCode.INVALID_PRODUCER_EPOCH,
    # A partition with an old message format has no transactions.
    ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT,
    ErrorCode.UNSUPPORTED_VERSION,
    # The partition has no offsets left: it can never take the marker, and its last transaction stays open.
    ErrorCode.RECORD_LIST_TOO_LARGE,
)


class PartitionsMarked(NamedTuple):
    """Partitions that need no marker of this transaction any more."""

    markers: Markers
    partitions: Sequence[TopicPartition]


class MarkerBatch(NamedTuple):
    """The markers of one request to a broker."""

    node: int
    parts: Sequence[tuple[Markers, Sequence[TopicPartition]]]

    @property
    def request(self) -> WriteTxnMarkersRequest:
        """The request."""
        return WriteTxnMarkersRequest(markers=[_request_marker(*part) for part in self.parts])


class _MarkerWork:
    """The markers of one transaction: partitions to do, in flight, and when to try again."""

    __slots__ = ("failures", "in_flight", "markers", "not_before_ns", "todo")

    def __init__(self, markers: Markers) -> None:
        self.markers = markers
        self.todo = dict.fromkeys(markers.partitions)
        self.in_flight: dict[TopicPartition, None] = {}
        self.failures = 0
        self.not_before_ns = 0


class MarkerQueue:
    """All markers that this broker's coordinators have to write."""

    def __init__(self, leader_of: LeaderOf) -> None:
        self._leader_of = leader_of
        self._jobs: dict[str, _MarkerWork] = {}
        self._ready: dict[str, _MarkerWork] = {}
        """The jobs with partitions to do, also those that wait for `not_before_ns`."""
        self._held_up: dict[str, _MarkerWork] = {}
        """The jobs whose partitions to do are all on busy brokers. They are kept apart, so that a new job costs no walk
        over all of them."""
        self._look_again_ns = 0
        """When to check the held-up jobs again, because leaders may have changed."""
        self._busy: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to send until a response arrives."""
        return not self._ready and not self._held_up

    def __contains__(self, transactional_id: str) -> bool:
        return transactional_id in self._jobs

    def add_markers(self, markers: Markers, not_before_ns: int = 0) -> None:
        """Queue markers. They replace older ones of the same transactional id; responses to those are ignored.

        `not_before_ns`: the monotonic time from which on they may be sent.
        """
        assert markers.partitions, "a transaction without partitions needs no markers"
        # The same markers again (a resumed decision) change nothing: the job continues where it is.
        job = self._jobs.get(markers.transactional_id)
        if job is None or job.markers.identity != markers.identity or _is_older(job.markers, markers):
            job = self._jobs[markers.transactional_id] = self._ready[markers.transactional_id] = _MarkerWork(markers)
            job.not_before_ns = not_before_ns
            self._held_up.pop(markers.transactional_id, None)

    def drop_markers(self, keep: Callable[[Markers], bool]) -> None:
        """Drop the markers that `keep` rejects: another coordinator writes them."""
        self._jobs = {name: job for name, job in self._jobs.items() if keep(job.markers)}
        self._ready = {name: job for name, job in self._jobs.items() if job.todo}
        self._held_up.clear()

    # -- out -----------------------------------------------------------------------------------------------------------

    def drain_due_markers(self, now_ns: int) -> tuple[list[MarkerBatch], list[PartitionsMarked]]:
        """The batches to send now, and the partitions that were deleted, which need no marker any more."""
        gone: list[PartitionsMarked] = []
        by_node: dict[int, list[tuple[Markers, list[TopicPartition]]]] = {}
        if now_ns >= self._look_again_ns:
            self._release_held_up()
        for job in list(self._ready.values()):
            if job.not_before_ns <= now_ns:
                job.not_before_ns = 0
                lost = self._sort_by_leader(job, by_node, now_ns)
                if lost:
                    gone.append(self._mark_done(job, lost))
        return [batch for node, parts in by_node.items() for batch in self._split_batches(node, parts)], gone

    def _release_held_up(self) -> None:
        """Make the held-up jobs ready again."""
        if self._held_up:
            self._ready.update(self._held_up)
            self._held_up.clear()

    def _sort_by_leader(
        self, job: _MarkerWork, by_node: dict[int, list[tuple[Markers, list[TopicPartition]]]], now_ns: int
    ) -> list[TopicPartition]:
        """Group the partitions of a job by leader into `by_node`. Returns the partitions that were deleted."""
        lost: list[TopicPartition] = []
        mine: dict[int, list[TopicPartition]] = {}
        busy = False
        for tp in job.todo:
            try:
                node = self._leader_of(tp)
            except KeyError:  # 1. deleted
                lost.append(tp)
                continue
            if node is None:  # 2. an election is going on: try again soon
                job.not_before_ns = now_ns + RETRY_MIN_MS * _NS_PER_MS
            elif self._busy.get(node, 0) < IN_FLIGHT:
                mine.setdefault(node, []).append(tp)
            else:  # 3. the broker has enough requests: its next response makes the job ready again
                busy = True
        if busy and not mine and not job.not_before_ns:
            self._hold_up(job, now_ns)
        for node, partitions in mine.items():
            by_node.setdefault(node, []).append((job.markers, partitions))
        return lost

    def _hold_up(self, job: _MarkerWork, now_ns: int) -> None:
        # The first one sets the time for all, so that none is held up for longer.
        if not self._held_up:
            self._look_again_ns = now_ns + RETRY_MIN_MS * _NS_PER_MS
        name = job.markers.transactional_id
        self._held_up[name] = self._ready.pop(name)

    def _split_batches(self, node: int, parts: list[tuple[Markers, list[TopicPartition]]]) -> Iterator[MarkerBatch]:
        """Requests of bounded size, up to the broker's limit of requests in flight. The other partitions stay to do."""
        while parts and self._busy.get(node, 0) < IN_FLIGHT:
            size, count = 0, 0
            for _, partitions in parts:
                size += len(partitions)
                if count and size > PARTITIONS_PER_REQUEST:
                    break  # but one transaction is never split
                count += 1
            yield self._take_batch(node, parts[:count])
            del parts[:count]

    def _take_batch(self, node: int, parts: list[tuple[Markers, list[TopicPartition]]]) -> MarkerBatch:
        self._busy[node] = self._busy.get(node, 0) + 1
        for markers, partitions in parts:
            job = self._jobs[markers.transactional_id]
            for tp in partitions:
                del job.todo[tp]
                job.in_flight[tp] = None
            self._retire_if_done(job)
        return MarkerBatch(node, parts)

    def next_deadline(self) -> int | None:
        """Monotonic ns at which to call `drain_due_markers` again. A response may make an earlier call worthwhile."""
        times = [job.not_before_ns for job in self._ready.values() if job.not_before_ns]
        if self._held_up:
            times.append(self._look_again_ns)
        return min(times, default=None)

    # -- in ------------------------------------------------------------------------------------------------------------

    def on_marker_response(
        self, batch: MarkerBatch, response: WriteTxnMarkersResponse | None, now_ns: int
    ) -> list[PartitionsMarked]:
        """Process the response to a batch; None: there was none. Returns the partitions that have their marker now."""
        codes = {} if response is None else _response_codes(response)
        places = [(markers.identity.producer_id, tp) for markers, partitions in batch.parts for tp in partitions]
        return self.on_marker_codes(batch, [codes.get(place) for place in places], now_ns)

    def on_marker_codes(self, batch: MarkerBatch, codes: Sequence[int | None], now_ns: int) -> list[PartitionsMarked]:
        """The same with an error code per partition of the batch, in their order; None: the response lacks it."""
        # Whatever the response was, the broker can take another request, so jobs that it held up are looked at again.
        self._busy[batch.node] -= 1
        self._release_held_up()
        written: list[PartitionsMarked] = []
        at = 0
        for markers, partitions in batch.parts:
            mine = codes[at : at + len(partitions)]
            at += len(partitions)
            job = self._jobs.get(markers.transactional_id)
            if job is None or job.markers is not markers:
                continue  # replaced or dropped since the batch was sent
            done = [tp for tp, code in zip(partitions, mine, strict=True) if code in HAS_IT]
            if len(done) < len(partitions):
                self._retry_partitions(
                    job, [tp for tp, code in zip(partitions, mine, strict=True) if code not in HAS_IT], now_ns
                )
            if done:
                written.append(self._mark_done(job, done))
        return written

    def put_back(self, written: PartitionsMarked, now_ns: int) -> None:
        """The state machine could not record written markers: write them again, and report them again."""
        job = self._jobs.get(written.markers.transactional_id)
        if job is not None and job.markers is written.markers:
            self._retry_partitions(job, written.partitions, now_ns)

    def mark_written(self, written: PartitionsMarked) -> None:
        """The state machine has recorded written markers: their partitions are done."""
        job = self._jobs.get(written.markers.transactional_id)
        if job is None or job.markers is not written.markers:
            return
        for tp in written.partitions:
            job.in_flight.pop(tp, None)
        if not job.todo and not job.in_flight:
            del self._jobs[written.markers.transactional_id]

    def _mark_done(self, job: _MarkerWork, partitions: Sequence[TopicPartition]) -> PartitionsMarked:
        for tp in partitions:
            # In flight until the state machine has recorded it (`mark_written`): a job without partitions is dropped.
            job.todo.pop(tp, None)
            job.in_flight[tp] = None
        self._retire_if_done(job)
        return PartitionsMarked(job.markers, tuple(partitions))

    def _retire_if_done(self, job: _MarkerWork) -> None:
        """Take a job without partitions to do out of the ready and the held-up ones."""
        if not job.todo:
            self._ready.pop(job.markers.transactional_id, None)
            self._held_up.pop(job.markers.transactional_id, None)

    def _retry_partitions(self, job: _MarkerWork, partitions: Sequence[TopicPartition], now_ns: int) -> None:
        for tp in partitions:
            job.in_flight.pop(tp, None)
            job.todo[tp] = None
        self._ready[job.markers.transactional_id] = job
        self._held_up.pop(job.markers.transactional_id, None)
        # The shift is bounded as well: a partition may refuse its marker for days.
        delay_ms = min(RETRY_MIN_MS << min(job.failures, 10), RETRY_MAX_MS)
        job.failures += 1
        job.not_before_ns = now_ns + delay_ms * _NS_PER_MS


def _is_older(held: Markers, offered: Markers) -> bool:
    return held.coordinator_epoch < offered.coordinator_epoch


def _request_marker(markers: Markers, partitions: Sequence[TopicPartition]) -> WriteTxnMarkersRequest.WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp.partition)
    return WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=markers.identity.producer_id,
        producer_epoch=markers.identity.epoch,
        transaction_result=markers.commit,
        topics=[
            WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
            for name, indexes in topics.items()
        ],
        coordinator_epoch=markers.coordinator_epoch,
        transaction_version=markers.version,
    )


def _response_codes(response: WriteTxnMarkersResponse) -> Mapping[tuple[int, TopicPartition], int]:
    return {
        (marker.producer_id, TopicPartition(topic.name, part.partition_index)): part.error_code
        for marker in response.markers
        for topic in marker.topics
        for part in topic.partitions
    }
