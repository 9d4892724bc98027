"""Producers of the workload: idempotent ones with up to five batches in flight, and plain ones.

Zone: deterministic. Batches of one partition are sent in order. After a failure the producer waits until no request of
that partition is in flight, then sends again from the oldest unacknowledged batch, with the same sequence numbers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from ottla.errors import ErrorCode
from ottla.record.batch import Record, encode_batch
from ottla.sim.entropy import Stream
from ottla.sim.history import History, Outcome, Refusal, Write
from ottla.sim.networks.wire_client import Client
from ottla.sim.workload.catalog import Catalog, Role, Topic
from ottla.sim.world import MS, WALL_START_MS
from ottla.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)
from ottla.wire.schema import Message

IN_FLIGHT_MAX: Final = 5
"""Maximum of batches in flight: a broker remembers this many per producer and partition."""
RETRY_NS: Final = 100 * MS
TIMEOUT_MS: Final = 2000
TOPIC_ID_VERSION: Final = 13
VERSIONS: Final = (3, 5, 7, 8, 9, 10, 11, 12, 13)

SEQUENCE_LOST: Final = frozenset(
    {
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
    }
)
FINAL: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE, ErrorCode.INVALID_RECORD})
UNCERTAIN: Final = frozenset(
    {
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)
"""Errors after which the batch may be in the log."""
GONE: Final = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID})


@dataclass(slots=True)
class SimulatedBatch:
    """A batch, from its creation to its acknowledgement."""

    write: Write
    encoded: bytes
    sends: int = 0
    uncertain: bool = False
    """An attempt got no definite answer."""


@dataclass(slots=True)
class SimulatedLane:
    """One partition, as a producer sees it."""

    topic: Topic
    partition: int
    sequence: int = 0
    queue: deque[SimulatedBatch] = field(default_factory=deque)
    """Unacknowledged batches, in the order of their sequence numbers."""
    flying: int = 0
    """How many of these batches, from the front, wait for an answer."""
    unanswered: int = 0
    """Requests without an answer, including those that were sent again since."""
    recovering: bool = False
    lives: dict[int, int] = field(default_factory=dict)
    """Next sequence number after an acknowledged batch → the life that acknowledged it."""


class Producer:
    """Writes batches of a few records to random partitions of the topics of one role."""

    def __init__(
        self, client: Client, catalog: Catalog, role: Role, idempotent: bool, random: Stream, history: History
    ) -> None:
        self.client = client
        self.catalog = catalog
        self.role = role
        self.idempotent = idempotent
        self.random = random
        self.history = history
        self.acks = -1 if idempotent or random.chance(0.5) else 1
        self.version = TOPIC_ID_VERSION if role is Role.CHURN else random.choice(VERSIONS)
        self.codecs = (0, 0, random.random_below(5))
        # The log of CUT has to grow past the truncation while a reply waits.
        self.interval_ns = (100 if role is Role.CUT else random.between(150, 450)) * MS
        self.working = True
        """False: it makes no new batches, and only retries unacknowledged ones."""
        self.acknowledged = 0
        """How many records were acknowledged."""
        self.on_acknowledged: Callable[[Write], None] = lambda _write: None
        self._lanes: dict[tuple[bytes, int], SimulatedLane] = {}
        self._producer_id = -1
        self._epoch = -1
        self._asking = False
        self._count = 0

    @property
    def name(self) -> str:
        """Its name in values and in the history."""
        return self.client.name

    def start_writing(self) -> None:
        """Start to write."""
        self.client.timeline.schedule_after(self.random.random_below(self.interval_ns), "produce", self._on_interval)

    def outstanding_logs(self) -> list[str]:
        """Logs with unacknowledged batches."""
        return [lane.topic.partition_log(lane.partition) for lane in self._lanes.values() if lane.queue]

    # ---- making batches ----

    def _on_interval(self) -> None:
        wait = 1 + int(self.random.exponential(self.interval_ns))
        self.client.timeline.schedule_after(wait, "produce", self._on_interval)
        if not self.working:
            return
        if self.idempotent and self._producer_id < 0:
            self._ask_for_id()
            return
        topics = self.catalog.topics_of_role(self.role)
        if topics:
            topic = self.random.choice(topics)
            lane = self._get_lane(topic, self.random.random_below(topic.partitions))
            # A broker without state of a producer accepts any first sequence number. So until one batch is
            # acknowledged, only one may be in flight: a second one could overtake a refused first one.
            limit = IN_FLIGHT_MAX if self.idempotent and lane.lives else 1
            if len(lane.queue) < limit:
                lane.queue.append(self._make_batch(lane))
                self._send_queued(lane)

    def _get_lane(self, topic: Topic, partition: int) -> SimulatedLane:
        key = (topic.topic_id, partition)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = SimulatedLane(topic, partition)
        return lane

    def _make_batch(self, lane: SimulatedLane) -> SimulatedBatch:
        values = [self._next_value(lane) for _ in range(1 + self.random.random_below(9))]
        sequence = lane.sequence if self.idempotent else -1
        if self.idempotent:
            lane.sequence = (lane.sequence + len(values)) & 0x7FFFFFFF
        write = Write(
            self.name,
            lane.topic.partition_log(lane.partition),
            values,
            self.acks,
            self._producer_id if self.idempotent else -1,
            self._epoch if self.idempotent else -1,
            sequence,
            self.client.timeline.now_ns,
        )
        self.history.writes.append(write)
        return SimulatedBatch(write, self._encode_write(write))

    def _next_value(self, lane: SimulatedLane) -> bytes:
        self._count += 1
        head = f"{self.name} {self._count} {lane.topic.name} {lane.partition} ".encode()
        size = self.random.between(0, 120) if self.random.chance(0.97) else self.random.between(2000, 9000)
        return head + (b"%d." % self._count * (size // 4 + 1))[:size]

    def _encode_write(self, write: Write) -> bytes:
        stamp = WALL_START_MS + self.client.timeline.now_ns // MS
        records = [Record(at, stamp, b"k%d" % at, value) for at, value in enumerate(write.values)]
        return bytes(
            encode_batch(
                records,
                codec=self.random.choice(self.codecs) if self.version >= 7 else 0,
                producer_id=write.producer_id,
                producer_epoch=write.epoch,
                base_sequence=write.sequence,
            )
        )

    # ---- sending ----

    def _send_queued(self, lane: SimulatedLane) -> None:
        """Send all batches of the lane that are not in flight."""
        while not lane.recovering and lane.flying < len(lane.queue):
            batch = lane.queue[lane.flying]
            lane.flying += 1
            lane.unanswered += 1
            batch.sends += 1
            self.client.send_request(
                self._produce_request(lane, batch),
                self.version,
                ProduceResponse,
                lambda response, life, batch=batch: self._on_response(lane, batch, response, life),  # type: ignore[misc]
                (lane.topic.name, lane.partition),
            )

    def _produce_request(self, lane: SimulatedLane, batch: SimulatedBatch) -> ProduceRequest:
        topic = ProduceRequest.TopicProduceData(
            partition_data=[ProduceRequest.PartitionProduceData(index=lane.partition, records=batch.encoded)]
        )
        if self.version >= TOPIC_ID_VERSION:
            topic.topic_id = lane.topic.topic_id
        else:
            topic.name = lane.topic.name
        return ProduceRequest(acks=self.acks, timeout_ms=TIMEOUT_MS, topic_data=[topic])

    def _on_response(self, lane: SimulatedLane, batch: SimulatedBatch, response: Message | None, life: int) -> None:
        # The batch may have left the queue meanwhile, by a new identity or an answer to an earlier attempt. A lane that
        # recovers sends again only when no request is in flight, so that batches keep their order.
        lane.unanswered -= 1
        if lane.queue and any(other is batch for other in lane.queue):
            self._judge_response(lane, batch, response, life)
        if lane.recovering and lane.unanswered == 0:
            self.client.timeline.schedule_after(RETRY_NS, "produce again", self._resume_sending, lane)
        elif not lane.recovering:
            self._send_queued(lane)

    def _judge_response(self, lane: SimulatedLane, batch: SimulatedBatch, response: Message | None, life: int) -> None:
        # 1. No answer: the batch may be in the log.
        # 2. Acknowledged, or a duplicate of a batch whose offset the broker does not remember.
        # 3. The broker lost the sequence. This counts only for the oldest batch: a later one fails with it.
        # 4. Refused for good, or its topic is deleted: a retry cannot succeed.
        # 5. Any other error: retry.
        if not isinstance(response, ProduceResponse):
            batch.uncertain = True
            self._recover_lane(lane)
            return
        row = response.responses[0].partition_responses[0]
        code = ErrorCode(row.error_code)
        first = lane.queue[0] is batch
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._acknowledge_batch(lane, batch, row.base_offset if code is ErrorCode.NONE else -1, life)
        elif code in SEQUENCE_LOST and first:
            self._sequence_lost(lane, code, life)
        elif code in FINAL or (code in GONE and lane.topic not in self.catalog.topics):
            self._on_refused(lane, batch)
        else:
            batch.uncertain = batch.uncertain or code in UNCERTAIN
            self.client.mark_metadata_stale()
            self._recover_lane(lane)

    def _acknowledge_batch(self, lane: SimulatedLane, batch: SimulatedBatch, offset: int, life: int) -> None:
        write = batch.write
        write.outcome, write.offset, write.life, write.sends = Outcome.OK, offset, life, batch.sends
        write.completed_ns = self.client.timeline.now_ns
        lane.lives[write.sequence + len(write.values)] = life
        self.acknowledged += len(write.values)
        self.on_acknowledged(write)
        self._remove_batch(lane, batch)

    def _remove_batch(self, lane: SimulatedLane, batch: SimulatedBatch) -> None:
        at = next(at for at, other in enumerate(lane.queue) if other is batch)
        del lane.queue[at]
        if at < lane.flying:
            lane.flying -= 1

    def _on_refused(self, lane: SimulatedLane, batch: SimulatedBatch) -> None:
        """Drop a batch that no retry can write. With sequence numbers, later batches of the lane fail as well."""
        if not batch.uncertain:
            batch.write.outcome = Outcome.FAIL
        self._remove_batch(lane, batch)
        if self.idempotent:
            self._new_identity()

    def _sequence_lost(self, lane: SimulatedLane, code: ErrorCode, life: int) -> None:
        """The broker lost our sequence: drop all unacknowledged batches, and take a new producer id."""
        now = self.client.timeline.now_ns
        log = lane.topic.partition_log(lane.partition)
        since_life = lane.lives.get(lane.queue[0].write.sequence, 0)
        if since_life:
            self.history.refusals.append(Refusal(self.name, log, life, now, code.name, since_life))
        self._new_identity()

    def _new_identity(self) -> None:
        for lane in self._lanes.values():
            lane.queue.clear()
            lane.flying = 0
            lane.sequence = 0
            lane.lives.clear()
            lane.recovering = lane.unanswered > 0
        self._producer_id = -1

    def _recover_lane(self, lane: SimulatedLane) -> None:
        lane.recovering = True

    def _resume_sending(self, lane: SimulatedLane) -> None:
        if lane.unanswered == 0:
            lane.recovering = False
            lane.flying = 0
            self._send_queued(lane)

    # ---- identity ----

    def _ask_for_id(self) -> None:
        if self._asking:
            return
        self._asking = True
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
        self.client.send_request(request, self.random.random_below(5), InitProducerIdResponse, self._on_producer_id)

    def _on_producer_id(self, response: Message | None, _life: int) -> None:
        self._asking = False
        if isinstance(response, InitProducerIdResponse) and response.error_code == 0:
            self._producer_id, self._epoch = response.producer_id, response.producer_epoch
