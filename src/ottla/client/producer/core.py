"""The decisions of a producer: which batches are ready, what to send, what an answer means.

Zone: pure. Inputs are calls with the time of a clock in seconds; outputs are values: work to do (`Work`), and finished
batches (`take_done`). The driver (threads, an asyncio loop or the simulator) sends, connects, waits and calls back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from ottla.client.backoff import backoff_ms
from ottla.client.errors import ClientError, ConnectionLostError, DeadlineError, ProducerFencedError, RefusedError
from ottla.client.metadata import ClusterView
from ottla.client.producer.accumulator import NEVER, RecordAccumulator
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.error_classification import FENCED, MAY_BE_IN_LOG, STALE_METADATA, ErrorClass, classify_error
from ottla.client.producer.partition_queue import PartitionQueue, ProducerId
from ottla.client.producer.topic_metadata import ProducedTopic, ProducerMetadata
from ottla.errors import ErrorCode
from ottla.record.batch import Headers
from ottla.types import NO_OFFSET, NO_TIMESTAMP

_LAST_EPOCH = 32_767
_new = tuple.__new__  # three times as fast as the constructors; a slow producer makes a request per record


class BatchResponse(NamedTuple):
    """The part of a Produce answer for one batch."""

    code: ErrorCode
    base_offset: int = NO_OFFSET
    log_append_time: int = NO_TIMESTAMP
    message: str = ""


class ProduceCall(NamedTuple):
    """A request to a node: at most one batch per partition."""

    node: int
    batches: tuple[ProducerBatch, ...]


class Work(NamedTuple):
    """What the driver has to do now."""

    connect: set[int]
    """Nodes with due batches and without a connection."""
    calls: list[ProduceCall]
    topics: list[str] | None
    """Request the metadata of these topics from any node; None: not now."""
    producer_id: bool
    """Request a producer id from any node."""
    wake_at: float
    """When to call `next_work` again at the latest; NEVER: only after an input."""


@dataclass(slots=True)
class ProducerCounts:
    """Counters since the start."""

    records_sent: int = 0
    records_failed: int = 0
    records_retried: int = 0
    batches_split: int = 0
    batches_sent: int = 0
    epochs_begun: int = 0
    requests: int = 0
    bytes_sent: int = 0
    queue_seconds: float = 0.0


@dataclass(slots=True)
class ProducerCore:
    """The state of a producer, without clock, network and threads."""

    config: ProducerConfig
    draw: Callable[[], float]
    """A number in [0, 1), for jitter."""
    below: Callable[[int], int]
    """`below(n)`: an integer in [0, n), for the choice of partitions."""
    metadata: ProducerMetadata = field(init=False)
    accumulator: RecordAccumulator = field(init=False)
    acks: int = field(init=False)
    """0, 1 or -1 (all in-sync replicas)."""
    identity: ProducerId | None = None
    in_flight: dict[int, list[ProduceCall]] = field(default_factory=dict)
    on_failure: Callable[[ClientError], None] | None = None
    """Called for every failed batch, if the producer is transactional."""
    counts: ProducerCounts = field(default_factory=ProducerCounts)
    last_error: ClientError | None = None
    """The last connection error; the driver sets it, and error messages quote it."""
    denial: ClientError | None = None
    """An error of login or TLS, set by the driver; calls that wait for metadata raise it."""
    done: list[ProducerBatch] = field(init=False, default_factory=list)
    """Finished batches that `take_done` has not returned yet."""
    _asks_for_id: bool = field(init=False)
    """Whether it requests producer ids itself: it is idempotent and has no transactional id."""
    _broken_queues: dict[PartitionQueue, None] = field(init=False, default_factory=dict)
    _throttled: dict[int, float] = field(init=False, default_factory=dict)
    _asking_id: bool = field(init=False, default=False)
    _id_not_before: float = field(init=False, default=0.0)
    _id_attempts: int = field(init=False, default=0)
    _giving_up: ClientError | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.acks = self.config.acks
        self._asks_for_id = self.config.idempotent and not self.config.transactional_id
        self.metadata = ProducerMetadata(self.config, self.draw)
        self.accumulator = RecordAccumulator(self.config)

    # -- from the application --------------------------------------------------------------------------------------

    def place_record(
        self,
        topic: ProducedTopic,
        partition: int | None,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        now: float,
    ) -> ProducerBatch | None:
        """Put a record into a batch; None if memory is full. partition None: use the sticky one (KIP-794)."""
        if partition is not None:
            lane = topic.lanes[partition]
        else:
            sticky = topic.sticky
            # Change the sticky partition only when a new batch begins, so that batches are full.
            if sticky is None or not sticky.queue:
                lane = self._sticky_lane(topic)
            elif sticky.queue[-1].append(timestamp, key, value, headers):
                return sticky.queue[-1]
            else:
                # The old batch is full and is sent without waiting for linger.ms, so the sender must look.
                self.accumulator.news = True
                lane = self.metadata.next_sticky_queue(topic, self.below)
        batch = self.accumulator.append(lane, timestamp, key, value, headers, now)
        topic.used_at = now
        return batch

    def place_batch(self, topic: ProducedTopic, batch: ProducerBatch, now: float) -> bool:
        """Queue a complete batch of a partition; False if memory is full."""
        topic.used_at = now
        return self.accumulator.append_whole(topic.lanes[batch.tp.partition], batch, now)

    def sticky_partition(self, topic: ProducedTopic) -> int:
        """The partition for a record without a key, for callers that do not let `place_record` choose."""
        sticky = topic.sticky
        if sticky is None or not sticky.queue or sticky.queue[-1].sealed:
            sticky = self._sticky_lane(topic)
        return sticky.tp.partition

    def _sticky_lane(self, topic: ProducedTopic) -> PartitionQueue:
        """The sticky queue for a new batch: the same one, until it has sent a batch's worth of bytes."""
        if topic.sticky is None or topic.sticky.sent - topic.given >= self.config.client.batch_size:
            return self.metadata.next_sticky_queue(topic, self.below)
        return topic.sticky

    # -- to the driver ---------------------------------------------------------------------------------------------

    def next_work(self, now: float, connected: Collection[int]) -> Work:
        """What to do at `now`. connected: nodes that can take requests."""
        # 1. Repair sequence numbers, because that makes batches sendable. 2. Expire old batches before they are sent.
        # 3. End pauses of throttled nodes. 4. Fill requests. 5. Request the metadata that step 4 missed.
        if self._broken_queues:
            self._repair_sequences()
        wake_at = NEVER
        first = next(iter(self.accumulator.incomplete), None)
        if first is not None:
            wake_at = first.expires if first.expires > now else self._expire_batches(now)
        if self._throttled:
            self._throttled = {node: until for node, until in self._throttled.items() if until > now}
            wake_at = min(wake_at, *self._throttled.values(), NEVER)
        connect: set[int] = set()
        calls: list[ProduceCall] = []
        need_id = False
        if self.accumulator.waiting:
            due = self.accumulator.due_batches(now, self.metadata.leader_of, self.identity)
            for name in due.leaderless:
                self._request_metadata(name, now)
            for node in sorted(due.nodes):
                if node in connected:
                    calls += self._drain_calls(node, now)
                else:
                    connect.add(node)
            wake_at = min(wake_at, due.wake_at)
            # Only with records to send: a producer that never sends takes no id.
            if self.identity is None and self._asks_for_id and self.accumulator.waiting:
                need_id = self._needs_id(now)
                wake_at = wake_at if need_id or self._asking_id else min(wake_at, self._id_not_before)
        asks_at = self.metadata.next_request_at()
        topics = self.metadata.topics_to_request(now) if asks_at <= now else None
        return _new(Work, (connect, calls, topics, need_id, min(wake_at, asks_at)))

    def _request_metadata(self, name: str, now: float) -> None:
        if self.metadata.known_topic(name) is None:
            self.metadata.request_topic(name, now)
        else:
            self.metadata.mark_stale()

    def _drain_calls(self, node: int, now: float) -> list[ProduceCall]:
        """Requests for `node`, up to the allowed number of unanswered ones."""
        if node in self._throttled:
            return []
        calls: list[ProduceCall] = []
        unanswered = self.in_flight.setdefault(node, [])
        most = self.config.max_in_flight_requests_per_connection
        while len(unanswered) < most:
            batches = self.accumulator.drain_node(now, node, self.metadata.leader_of, self.identity)
            if not batches:
                break
            call = _new(ProduceCall, (node, tuple(batches)))
            calls.append(call)
            # With acks=0 no answer comes that would remove the call again: after a few calls the node would count as
            # busy.
            if self.acks:
                unanswered.append(call)
            self._count_call(call, now)
            if not self.accumulator.waiting:
                break
        return calls

    def _count_call(self, call: ProduceCall, now: float) -> None:
        self.counts.requests += 1
        self.counts.batches_sent += len(call.batches)
        for batch in call.batches:
            self.counts.queue_seconds += now - batch.created

    def _needs_id(self, now: float) -> bool:
        if self._asking_id or now < self._id_not_before:
            return False
        self._asking_id = True
        return True

    def _expire_batches(self, now: float) -> float:
        """Fail batches after `delivery.timeout.ms`, also unanswered ones; returns when the next one expires."""
        while (first := next(iter(self.accumulator.incomplete), None)) is not None:
            if first.expires > now:
                return first.expires
            # Unanswered batches fail as well (KIP-91): the application waits no longer than delivery.timeout.ms, and
            # the message mentions that the batch may be in the log.
            sent = f"{first.attempts} attempts" if first.attempts else "it was never sent"
            fate = "; it may be in the log" if first.on_wire or first.uncertain else ""
            last = first.error or self.last_error
            error = DeadlineError(
                f"gave up a batch for {first.tp} after delivery.timeout.ms ({sent}{fate})"
                f"{f'; the last error: {last.cause}' if last else ''}",
                "Check that the leader of the partition is alive and not overloaded",
                last,
            )
            self._drop_batch(first, error)
        return NEVER

    def _repair_sequences(self) -> None:
        """Restart the sequence numbers of partitions whose sequence is broken and that have no unanswered batch."""
        for lane in list(self._broken_queues):
            # While batches are on the wire their answers decide which numbers the broker has, so the queue waits for
            # them. A transactional producer aborts instead, and gets its next epoch from the coordinator.
            lane.settle_gap()
            if lane.rewinding and not lane.on_wire and not self.config.transactional_id:
                self._rewind_queue(lane)
            if not lane.rewinding and not lane.unresolved:
                del self._broken_queues[lane]

    def _rewind_queue(self, lane: PartitionQueue) -> None:
        # The first partition raises the epoch, or asks for a new producer id after the last epoch. Others that broke
        # in the same epoch use what the first one got.
        if self.identity is not None and self.identity == lane.identity:
            self.counts.epochs_begun += 1
            # A producer without transactional id may raise its epoch itself (KIP-360). Epochs are int16 in the
            # protocol.
            more = self.identity.epoch < _LAST_EPOCH
            self.identity = ProducerId(self.identity.producer_id, self.identity.epoch + 1) if more else None
        if self.identity is None:
            return
        for batch in lane.restart_sequence(self.identity):
            error = ConnectionLostError(
                f"a batch for {batch.tp} may be in the log or not, and the broker has lost the state of this producer",
                "Read the end of the partition to find out",
            )
            self._finish_batch(lane, batch, error)
        self.accumulator.update_readiness(lane)

    def take_done(self) -> list[ProducerBatch]:
        """The batches that were finished since the last call, in order."""
        done, self.done = self.done, []
        return done

    # -- answers ---------------------------------------------------------------------------------------------------

    def on_produced(
        self, now: float, call: ProduceCall, answers: Iterable[BatchResponse], throttle_ms: int = 0
    ) -> None:
        """Handle the answer to `call`: one per batch, in the order of its batches."""
        if call in self.in_flight.get(call.node, ()):
            self.in_flight[call.node].remove(call)
        self.last_error = None  # the connection works again
        if throttle_ms > 0:
            self._throttled[call.node] = now + throttle_ms / 1000  # KIP-219: the client itself must pause
        for batch, answer in zip(call.batches, answers, strict=True):
            self._on_answer(now, batch, answer)

    def on_lost(self, now: float, call: ProduceCall, error: ClientError, *, sent: bool = True) -> None:
        """Handle a lost `call`: no answer will come. sent: bytes of it may have reached the broker."""
        if call in self.in_flight.get(call.node, ()):
            self.in_flight[call.node].remove(call)
        self.metadata.mark_stale()
        for batch in call.batches:
            if not batch.done:
                batch.uncertain = batch.uncertain or sent
                batch.adrift = batch.adrift or sent
                self._retry_batch(now, batch, error)
            else:
                self._note_late_answer(batch)

    def on_unanswered(self, call: ProduceCall) -> None:
        """`call` was written with acks=0: there is no answer, so its batches are done."""
        for batch in call.batches:
            if not batch.done:
                lane = self.accumulator.lanes[batch.tp]
                lane.forget_batch(batch)
                self._finish_batch(lane, batch, None)

    def on_metadata(self, now: float, view: ClusterView) -> None:
        """Handle the answer to a metadata request."""
        self.metadata.on_metadata(now, view, self.accumulator, numbered=self.config.idempotent)

    def on_producer_id(self, identity: ProducerId) -> None:
        """Use a new producer id."""
        self._asking_id = False
        self._id_attempts = 0
        self.identity = identity

    def on_no_producer_id(self, now: float, error: ClientError) -> None:
        """The request for a producer id failed. If the error is not retriable, all batches fail."""
        self._asking_id = False
        # Without a pause a coordinator that is starting would get a request in every round.
        self._id_not_before = now + self._backoff_s(self._id_attempts)
        self._id_attempts += 1
        # Without an id no batch can be sent, and another request would get the same answer.
        if not error.retriable:
            self.fail_all(error)

    def give_up(self, error: ClientError) -> None:
        """The transaction is lost: every batch fails with `error`, unanswered ones when their answer comes."""
        # Unanswered batches stay: until their answers come, the broker may still append them to the transaction.
        self._giving_up = error
        for batch in list(self.accumulator.incomplete):
            if not batch.on_wire:
                self._drop_batch(batch, error)

    def begin_epoch(self, identity: ProducerId) -> None:
        """Continue with `identity`; all batches must be done. Sequence numbers restart in a new epoch."""
        # A batch keeps the epoch and the numbers of its first attempt: one of the old epoch would now be fenced.
        assert not self.accumulator.incomplete
        self.identity = identity
        self._giving_up = None
        # A new epoch begins at sequence number 0 in every partition, which closes all gaps.
        self._broken_queues.clear()
        for lane in self.accumulator.lanes.values():
            lane.clear_gaps()

    @property
    def has_gap(self) -> bool:
        """Whether sequence numbers are missing in some partition, so that a new epoch is needed."""
        return any(lane.rewinding or lane.unresolved for lane in self.accumulator.lanes.values())

    def fail_all(self, error: ClientError) -> None:
        """Fail all unfinished batches."""
        for batch in list(self.accumulator.incomplete):
            self._drop_batch(batch, error)

    def _drop_batch(self, batch: ProducerBatch, error: ClientError) -> None:
        lane = self.accumulator.lanes[batch.tp]
        lane.on_given_up(batch)
        self._finish_batch(lane, batch, error)

    def _on_answer(self, now: float, batch: ProducerBatch, answer: BatchResponse) -> None:
        # 1. A late answer only settles the queue. 2. Success. 3. An error: note what it means for metadata and for
        # the log, then classify it, and carry out its class.
        lane = self.accumulator.lanes[batch.tp]
        if batch.done:  # it expired, or its transaction was given up
            if answer.code is ErrorCode.NONE:
                lane.on_appended(batch)
            self._note_late_answer(batch)
            return
        if answer.code is ErrorCode.NONE:
            batch.base_offset = answer.base_offset
            batch.log_append_time = answer.log_append_time
            lane.on_appended(batch)
            self._finish_batch(lane, batch, None)
            return
        if answer.code in STALE_METADATA:
            self.metadata.mark_stale()
        if answer.code in MAY_BE_IN_LOG:
            batch.uncertain = True
        what = classify_error(
            answer.code,
            records=batch.count,
            may_retry=self._may_retry(now, batch),
            idempotent=self.config.idempotent,
            transactional=bool(self.config.transactional_id),
            next_in_line=lane.is_next_in_line(batch),
        )
        self._carry_out(now, lane, batch, answer, what)

    def _carry_out(
        self, now: float, lane: PartitionQueue, batch: ProducerBatch, answer: BatchResponse, what: ErrorClass
    ) -> None:
        if what is ErrorClass.DUPLICATE:
            lane.on_appended(batch)
            self._finish_batch(lane, batch, None)
        elif what is ErrorClass.SPLIT:
            self.counts.batches_split += 1
            self.accumulator.split_batch(batch)
        elif what is ErrorClass.FAIL:
            lane.on_refused(batch)
            self._finish_batch(lane, batch, _refusal_of(batch, answer))
        else:
            if answer.code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and what is ErrorClass.RETRY:
                lane.on_came_too_early(batch)
            if what is ErrorClass.REWIND:
                lane.rewinding = True
                self._broken_queues.setdefault(lane)
            self._retry_batch(now, batch, _refusal_of(batch, answer))

    def _may_retry(self, now: float, batch: ProducerBatch) -> bool:
        # `attempts` counts the first attempt as well, `retries` does not.
        return self._giving_up is None and batch.attempts <= self.config.retries and now < batch.expires

    def _retry_batch(self, now: float, batch: ProducerBatch, error: ClientError) -> None:
        lane = self.accumulator.lanes[batch.tp]
        # 1. Not retriable, and not the broker's error for this batch (a malformed answer, for instance): no retry.
        # 2. No attempt or time is left. 3. Retry after the backoff, in the old place.
        if not error.retriable and not isinstance(error, RefusedError):
            lane.on_refused(batch)
            self._finish_batch(lane, batch, error)
            return
        if not self._may_retry(now, batch):
            self._drop_batch(batch, self._giving_up or error)
            return
        batch.error = error
        batch.retry_at = now + self._backoff_s(batch.attempts - 1)
        self.counts.records_retried += batch.count
        # In its place by sequence number, so that the order of the partition is kept.
        lane.give_back(batch)
        self.accumulator.update_readiness(lane)

    def _backoff_s(self, attempt: int) -> float:
        client = self.config.client
        return backoff_ms(client.retry_backoff_ms, client.retry_backoff_max_ms, attempt, self.draw()) / 1000

    def _note_late_answer(self, batch: ProducerBatch) -> None:
        """Note the answer for a batch that was given up: its queue may be settled by the next `next_work`."""
        self._broken_queues.setdefault(self.accumulator.lanes[batch.tp])

    def _finish_batch(self, lane: PartitionQueue, batch: ProducerBatch, error: ClientError | None) -> None:
        batch.error = error
        batch.done = True
        self.done.append(batch)
        self.accumulator.release_batch(batch)
        self.accumulator.update_readiness(lane)
        if error is None:
            self.counts.records_sent += batch.count
            return
        self.counts.records_failed += batch.count
        if lane.rewinding or lane.unresolved:
            self._broken_queues.setdefault(lane)
        if self.on_failure is not None:
            self.on_failure(error)


def _refusal_of(batch: ProducerBatch, answer: BatchResponse) -> RefusedError:
    kind = ProducerFencedError if answer.code in FENCED else RefusedError
    return kind(answer.code, f"produce to partition {batch.tp.partition} of topic {batch.tp.topic}", answer.message)
