"""A producer over simulated connections and time. `ottla.client.producer.core` makes all its decisions.

Zone: deterministic. `ottla.client.producer.network.sender` drives the core with a thread and sockets; here events do
it: they report to the core what happened, get work from it, carry that out, and wait for more. This module decides
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ottla.client.errors import ClientError, ConnectionLostError, DeadlineError, MalformedReplyError, RefusedError
from ottla.client.metadata import cluster_view
from ottla.client.producer.accumulator import NEVER
from ottla.client.producer.batch import ProducerBatch
from ottla.client.producer.config import ProducerConfig
from ottla.client.producer.core import BatchResponse, ProduceCall, ProducerCore, Work
from ottla.client.producer.network.requests import (
    highest_produce,
    metadata_request,
    produce_answers,
    produce_request,
    producer_id_of,
    producer_id_request,
    topic_id,
)
from ottla.client.producer.partition_queue import ProducerId
from ottla.errors import ErrorCode
from ottla.sim.clients.history import ClientHistory, Sent
from ottla.sim.clients.link import SimulatedConnection
from ottla.sim.clients.wires import Wires
from ottla.sim.entropy import Stream
from ottla.sim.history import Outcome, Refusal, Write
from ottla.sim.networks.network import Network
from ottla.sim.world import SECOND, US, WALL_START_MS
from ottla.types import NO_OFFSET, TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import InitProducerIdResponse, MetadataResponse, ProduceResponse
from ottla.wire.schema import Message

TURN_NS: Final = 100 * US
"""The shortest turn: a producer that wants its next turn at once gets it after this time."""
RESTLESS_TURNS: Final = 200
"""A producer that takes this many turns in a row without any event is spinning."""
FEW_RETRIES: Final = 100
PLACE_LOST: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})
Noted = Callable[[MetadataResponse, int], None]
LogOf = Callable[[str, int], str]


class CoreProducer:
    """One producer: it accepts records, and reports the outcome of each."""

    def __init__(
        self,
        network: Network,
        name: str,
        nodes: Sequence[int],
        config: ProducerConfig,
        at_most: int,
        random: Stream,
        history: ClientHistory,
    ) -> None:
        """`at_most` is the highest version of Produce that it uses."""
        self.name = name
        self.timeline = network.timeline
        self.history = history
        self.core = ProducerCore(config, random.random_unit, random.random_below)
        self.on_metadata: Noted = lambda _response, _node: None
        """Called with every Metadata answer."""
        self.on_acknowledged: Callable[[Write], None] = lambda _write: None
        self.on_decided: Callable[[], None] = lambda: None
        """Called after records got their outcome: memory may be free now."""
        self.acknowledged = 0
        """How many records were acknowledged."""
        self.turns = 0
        self._config = config
        self._at_most = at_most
        self._wires = Wires(network, name, nodes, config, random, self._wires_changed)
        self._topics: list[str] | None = None
        self._id_wanted = False
        self._unreached: set[int] = set()
        self._planned_ns = -1
        """Time of the next planned turn; -1: none is planned."""
        self._idle_turns = 0
        self._flying: dict[ProducerBatch, int] = {}
        """Batches in flight, and how many requests carry each."""
        self._answered_by: dict[ProducerBatch, int] = {}
        """Batches that were answered in this turn, and the broker that answered."""
        self._decided = 0

    def now_seconds(self) -> float:
        """Seconds, for the core."""
        return self.timeline.now_ns / 1e9

    def record_timestamp(self) -> int:
        """Milliseconds since 1970, for records."""
        return WALL_START_MS + self.timeline.now_ns // 1_000_000

    def undecided_partitions(self) -> list[TopicPartition]:
        """Partitions with records that have no outcome yet."""
        return sorted({batch.tp for batch in self.core.accumulator.incomplete})

    def accept_record(
        self, topic: str, partition: int | None, value: bytes, sent: Callable[[TopicPartition], Sent]
    ) -> bool:
        """Accept a record. False when there is no memory for it, or no metadata of its topic yet."""
        known = self.core.metadata.known_topic(topic)
        if known is None:
            self.core.metadata.request_topic(topic, self.now_seconds())
            self.request_turn()
            return False
        batch = self.core.place_record(known, partition, self.record_timestamp(), None, value, (), self.now_seconds())
        if batch is not None:
            batch.callbacks = batch.callbacks or []
            batch.callbacks.append((batch.count - 1, self.record_timestamp(), sent(batch.tp)))
            if self.core.accumulator.news:
                self.request_turn()
        return batch is not None

    # ---- turns ----

    def request_turn(self) -> None:
        """Something changed: take a turn now."""
        self._idle_turns = 0
        self._plan_turn(self.timeline.now_ns)

    def _plan_turn(self, at_ns: int) -> None:
        if self._planned_ns < 0 or at_ns < self._planned_ns:
            self._planned_ns = at_ns
            self.timeline.schedule_at(at_ns, "client turn", self._on_turn_due, at_ns)

    def _on_turn_due(self, at_ns: int) -> None:
        if at_ns == self._planned_ns:  # otherwise an earlier turn was planned after this one
            self._planned_ns = -1
            self._run_turn()

    def _run_turn(self) -> None:
        self.turns += 1
        now = self.now_seconds()
        self.core.accumulator.news = False
        work = self.core.next_work(now, self._wires.ready)
        self._run_callbacks(self.core.take_done())
        self._carry_out_work(work)
        wake_at = work.wake_at
        # The core does not know of backoffs of connections: wake up for them while a request waits for a broker.
        if self._topics is not None or self._id_wanted or self._unreached:
            wake_at = min([wake_at, *self._wires.retries_after(now)])
        if wake_at < NEVER:
            self._rest_until(int(wake_at * 1e9) + 1)

    def _rest_until(self, until_ns: int) -> None:
        """Plan the next turn, and note a producer that spins: it would take the processor from everything else."""
        self._idle_turns = self._idle_turns + 1 if until_ns <= self.timeline.now_ns + TURN_NS else 0
        if self._idle_turns == RESTLESS_TURNS:
            self.history.restless.append(f"{self.name} at {self.timeline.now_ns / SECOND:.3f} s")
        self._plan_turn(max(until_ns, self.timeline.now_ns + TURN_NS))

    def _carry_out_work(self, work: Work) -> None:
        for call in work.calls:
            self._send_call(call)
        self._unreached = work.connect
        known = self._known_nodes()
        for node in sorted(work.connect):
            self._wires.open_connection(node, known)
        if work.topics is not None:
            self._topics = work.topics
        self._id_wanted = self._id_wanted or work.producer_id
        if self._topics is not None or self._id_wanted:
            self._request_metadata(self._wires.choose_connection(known))

    def _known_nodes(self) -> list[int]:
        return sorted(self.core.metadata.view.nodes)

    def _wires_changed(self, error: ClientError | None) -> None:
        if error is not None:
            self.core.last_error = error
            self.core.metadata.mark_stale()  # only newer metadata can name other leaders than the node that is gone
        if isinstance(error, MalformedReplyError):
            self.history.broken_protocol.append(error.cause)
        self.request_turn()

    # ---- Produce ----

    def _send_call(self, call: ProduceCall) -> None:
        link, view = self._wires.ready[call.node], self.core.metadata.view
        at_most = min(self._at_most, highest_produce(call, view, self_adding=True))
        version = link.highest_version(ApiKey.PRODUCE, at_most)
        names = {topic_id(view, batch.tp.topic): batch.tp.topic for batch in call.batches}
        request = produce_request(call, view, self._config)
        for batch in call.batches:
            self._flying[batch] = self._flying.get(batch, 0) + 1
        if self._config.acks:
            link.send_request(ApiKey.PRODUCE, request, version, lambda answer: self._on_produced(call, names, answer))
        else:
            link.send_request(ApiKey.PRODUCE, request, version, None)
            self._note_landed(call)
            self.core.on_unanswered(call)
            self.request_turn()

    def _note_landed(self, call: ProduceCall) -> None:
        for batch in call.batches:
            self._flying[batch] -= 1
            if not self._flying[batch]:
                del self._flying[batch]

    def _on_produced(self, call: ProduceCall, names: dict[bytes, str], answer: Message | ClientError) -> None:
        self._note_landed(call)
        error = answer if isinstance(answer, ClientError) else None
        if isinstance(answer, ProduceResponse):
            try:
                answers = produce_answers(call, names, answer)
            except MalformedReplyError as malformed:
                self.history.broken_protocol.append(f"{self.name}: {malformed.cause}")
                error = malformed
            else:
                self._note_responses(call, answers)
                self.core.on_produced(self.now_seconds(), call, answers, answer.throttle_time_ms)
        if error is not None:
            self.core.on_lost(self.now_seconds(), call, error)
        self.request_turn()

    def _note_responses(self, call: ProduceCall, answers: Sequence[BatchResponse]) -> None:
        """Note which broker answered, and whether it forgot a producer all of whose earlier batches it acknowledged."""
        for batch, answer in zip(call.batches, answers, strict=True):
            self._answered_by[batch] = call.node
            # The broker should know the sequence if all of these hold; otherwise the error is the producer's own doing:
            # 1. An earlier batch of this epoch was acknowledged (the base sequence is not 0).
            # 2. All batches before this one are acknowledged, so no earlier one can be missing.
            # 3. The batch has no outcome yet, and the lane is not about to number its batches again.
            lane = self.core.accumulator.lanes[batch.tp]
            forgotten = answer.code in PLACE_LOST and batch.base_sequence > 0 and lane.is_next_in_line(batch)
            if forgotten and not batch.done and not lane.rewinding:
                log = self._log_name(batch)
                if log is not None:
                    at_ns = self.timeline.now_ns
                    self.history.refusals.append(Refusal(self.name, log, call.node, at_ns, answer.code.name, 0))

    @staticmethod
    def _log_name(batch: ProducerBatch) -> str | None:
        return next((sent.write.log for _, _, sent in batch.callbacks or ()), None)

    # ---- metadata and producer ids ----

    def _request_metadata(self, link: SimulatedConnection | None) -> None:
        if link is None:
            return
        if self._topics is not None:
            topics, self._topics = self._topics, None
            version = link.highest_version(ApiKey.METADATA)
            request = metadata_request(topics, version, create=False)
            link.send_request(ApiKey.METADATA, request, version, partial(self._on_learned, link))
        if self._id_wanted:
            self._id_wanted = False
            version = link.highest_version(ApiKey.INIT_PRODUCER_ID)
            link.send_request(ApiKey.INIT_PRODUCER_ID, producer_id_request(), version, self._on_producer_id)

    def _on_learned(self, link: SimulatedConnection, answer: Message | ClientError) -> None:
        if isinstance(answer, MetadataResponse):
            self.on_metadata(answer, link.node)
            view = cluster_view(answer, "a metadata answer")
            self.core.on_metadata(self.now_seconds(), view)
            self._wires.close_removed(
                sorted(view.nodes), ConnectionLostError("the broker is not in the cluster any more")
            )
        else:
            self.core.metadata.on_metadata_failure(self.now_seconds())
        self.request_turn()

    def _on_producer_id(self, answer: Message | ClientError) -> None:
        found: ProducerId | ClientError
        found = producer_id_of(answer) if isinstance(answer, InitProducerIdResponse) else _as_client_error(answer)
        if isinstance(found, ProducerId):
            self.core.on_producer_id(found)
        else:
            self.core.on_no_producer_id(self.now_seconds(), found)
        self.request_turn()

    # ---- outcomes ----

    def _run_callbacks(self, done: Sequence[ProducerBatch]) -> None:
        for batch in done:
            written: Write | None = None
            for index, _stamp, sent in batch.callbacks or ():
                written = self._decide_batch(batch, index, sent)
            if written is not None and written.outcome is Outcome.OK:
                self.on_acknowledged(written)
        self._answered_by.clear()
        if done:
            self.on_decided()

    def _decide_batch(self, batch: ProducerBatch, index: int, sent: Sent) -> Write:
        write = sent.write
        sent.outcomes += 1
        self._decided += 1
        sent.turn = self._decided
        write.completed_ns, write.sends = self.timeline.now_ns, batch.attempts
        write.producer_id, write.epoch = batch.producer_id, batch.producer_epoch
        write.sequence = batch.base_sequence + index if batch.base_sequence >= 0 else -1
        write.life = self._answered_by.get(batch, 0)
        if batch.error is None:
            write.outcome = Outcome.OK
            write.offset = batch.base_offset + index if batch.base_offset >= 0 else NO_OFFSET
            self.acknowledged += 1
        else:
            sent.error = f"{type(batch.error).__name__}: {batch.error.cause}"
            if not batch.uncertain and batch not in self._flying:
                write.outcome = Outcome.FAIL
            if not self._is_justified(batch, batch.error):
                self.history.unfounded.append(f"record {sent.number} of {self.name}: {sent.error}")
        return write

    def _is_justified(self, batch: ProducerBatch, error: ClientError) -> bool:
        """Whether a batch may fail with this error.

        1. Its time or its attempts are used up.
        2. A broker refused it, and a retry cannot change that.
        3. The connection was lost or a deadline passed: it is unknown whether the batch was written.
        """
        if self._config.retries < FEW_RETRIES or batch.expires <= self.now_seconds():
            return True
        if isinstance(error, RefusedError):
            return not error.retriable
        return isinstance(error, DeadlineError | ConnectionLostError)


def _as_client_error(answer: Message | ClientError) -> ClientError:
    return answer if isinstance(answer, ClientError) else MalformedReplyError("an answer of another kind")
