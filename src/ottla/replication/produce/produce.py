"""Produce: the hot path from the request to the logs, and its response.

Zone: deterministic.

API 0. Versions 0-13. Versions 0-2 carry message sets of formats v0 and v1, which become batches of format v2 (KIP-98);
in later versions they are answered INVALID_RECORD, as in Kafka.

Behaviour
- acks 0: no response; an error closes the connection, so that the producer notices it (as in Kafka). acks 1: the
  response follows the append. acks all (-1): when the high watermark has passed the batch; a DelayedProduce waits.
- A duplicate of an idempotent producer gets the response of its original, and under acks=all not before that.
- A batch that begins a transaction in its partition is held while the transaction's coordinator is asked (KIP-890);
  from version 12 on that request also adds the partition to the transaction. The next request waits meanwhile.
- Batches of compacted topics are inspected: records without a key are refused (INVALID_RECORD), and so are batches that
  contradict their header. Large batches are held while a worker inspects or recompresses them (compression.type); the
  connection's next request waits meanwhile, so that nothing overtakes them.
- Not the leader (any more): NOT_LEADER_OR_FOLLOWER, from version 10 on with the leader and its address. A delayed
  response ends when leadership is lost or the ISR becomes too small.
- A small message set is converted within the turn; larger ones are held while a worker converts them. An empty message
  set gets no error and the offset -1, as from old brokers.

Version notes: 1 throttle time, 2 format v1 and the append time (KIP-32), 3 format v2, 4 KAFKA_STORAGE_ERROR (before:
NOT_LEADER_OR_FOLLOWER, on which clients also look for another leader), 5 log start offset, 8 texts of errors and of
single records (KIP-467), 9 flexible, 10 current leaders (KIP-951), 11 TRANSACTION_ABORTABLE, 12 partitions are added to
transactions (KIP-890), 13 topic ids (KIP-516)."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

from ottla.errors import ApiError
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.leaders import Leaders, NoLeaders
from ottla.replication.partition.partition import Partition
from ottla.replication.partition_registry import HostedTopic, PartitionRegistry
from ottla.replication.produce.batch_preprocessing import wants_preparation
from ottla.replication.produce.large_produce import LargeProduce
from ottla.replication.produce.message_sets import has_message_set
from ottla.replication.produce.produce_items import BATCH_VERSION, decoder_for
from ottla.replication.produce.produce_responses import Responses, Row
from ottla.replication.produce.produce_rights import ProduceRights
from ottla.replication.produce.records_appender import RecordsAppender
from ottla.replication.produce.slow_produce import SlowProduce
from ottla.replication.produce.verification import find_beginnings
from ottla.replication.produce.verifier import Verifier
from ottla.requests import Contain, Declaration, RightsOf, RunSteps, Steps, raise_defect, refuse_steps
from ottla.seams import Gate, Slot, World
from ottla.wire import hot
from ottla.wire.apis import ApiKey

DECLARATION: Final = Declaration(
    ApiKey.PRODUCE, 0, 13, resource="Topic", operation="Write", also=(("TransactionalId", "Write"),)
)
"""A request has a transactional id only if its records belong to a transaction."""
MAX_VERSION: Final = DECLARATION.max_version
_ONE_VERSION: Final = 5
"""From this version on a response without errors has one layout."""
_ANSWERED: Final = (1, -1)
"""Values of acks that get a response."""
_correlation: Final = Struct(">i").pack


class ProduceHandler:
    """Answers Produce requests."""

    def __init__(
        self,
        world: World,
        hosted: PartitionRegistry,
        purgatory: Purgatory,
        leaders: Leaders | None = None,
        verifier: Verifier | None = None,
        contain: Contain = raise_defect,
        run_steps: RunSteps = refuse_steps,
        rights_of: RightsOf | None = None,
    ) -> None:
        """`leaders`: the cluster's view, for requests that reached the wrong broker. `verifier` asks transaction
        coordinators; without one, a batch that needs verification is refused.
        `contain` handles defects in responses of a later turn; `run_steps` runs requests of many partitions.
        `rights_of`: what a connection may do; None: there is no authorizer."""
        self._run_steps = run_steps
        self._verifier = verifier
        self._network = world.network
        self._hold_frame = world.network.hold_frame
        self._clock = world.clock
        self._now = world.clock.now
        self._hosted = hosted
        leaders = leaders or NoLeaders()
        self._appender = appender = RecordsAppender(world, hosted, purgatory, leaders, MAX_VERSION, contain)
        self._rights = None if rights_of is None else ProduceRights(rights_of, hosted.by_id, leaders)
        self._decode = [decoder_for(version) for version in range(MAX_VERSION + 1)]
        self._slow = SlowProduce(world, hosted, appender, self._decode, verifier, contain, self._rights)
        self._header = appender.headers
        self._one = [hot.OneAnswer(max(version, _ONE_VERSION)) for version in range(MAX_VERSION + 1)]
        self._topics = appender.topics

    def on_request(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        """Decode, append, respond. Raises MalformedMessage."""
        # 1. More partitions than one turn may handle.
        try:
            transactional_id, acks, timeout_ms, items = self._decode[version](frame, pos)
        except hot.ManyPartitions:
            return self._run_in_slices(slot, frame, version, correlation_id, pos)
        if self._rights is not None:
            items = self._rights.refuse_denied(slot.peer, transactional_id, items)
        # 2. A transaction begins in some partition: its coordinator is asked first. 3. An old client's message set.
        if (
            transactional_id is not None
            and self._verifier is not None
            and any(find_beginnings(version, self._topics[version], items))
        ) or (version < BATCH_VERSION and has_message_set(items)):
            decoded = transactional_id, acks, timeout_ms, items
            return self._slow.run_request(slot, frame, version, correlation_id, pos, decoded)
        # 4. Most requests: one partition, which is here and does not wait for a disk. As 6, without the
        # lists.
        if len(items) == 1 and version >= _ONE_VERSION and acks in _ANSWERED:
            name, index, records = items[0]
            topic = self._topics[version].get(name)
            partition = None if topic is None else topic.direct.get(index)
            if topic is not None and partition is not None and records and not partition.syncs:
                try:
                    base_offset, append_time, required = partition.leader_role.append(records, acks, self._now())  # type: ignore[arg-type]  # true
                except ApiError as error:
                    row = (index, int(error.code), -1, -1, -1)
                    refusal = error.as_value()
                    self._finish_one(slot, version, correlation_id, acks, timeout_ms, topic, row, refusal, None)
                    return Gate.NEXT
                if acks < 0 and partition.high_watermark < required:
                    row = (index, 0, base_offset, append_time, partition.log.start_offset)
                    late = (partition, required)
                    self._finish_one(slot, version, correlation_id, acks, timeout_ms, topic, row, None, late)
                    return Gate.NEXT
                one = self._one[version]
                body = one.pack(index, 0, base_offset, append_time, partition.log.start_offset, *one.constants)
                head = topic.heads.get(version) or self._head_of(topic, version)
                self._network.send_reply(slot, (_correlation(correlation_id) + head + body,))
                return Gate.NEXT
        # 5. Batches that have to be inspected or recompressed; 6. all others.
        if self._hosted.preparing and wants_preparation(self._topics[version], items):
            decoded = transactional_id, acks, timeout_ms, items
            return self._slow.run_request(slot, frame, version, correlation_id, pos, decoded)
        appended = self._appender.append_items(version, acks, items)
        self._appender.respond_or_wait(slot, version, correlation_id, acks, timeout_ms, appended)
        return Gate.NEXT

    def _head_of(self, topic: HostedTopic, version: int) -> bytes:
        head = self._header[version] + self._one[version].head_bytes(topic.name, topic.topic_id)
        topic.heads[version] = head
        return head

    def _finish_one(
        self,
        slot: Slot,
        version: int,
        correlation_id: int,
        acks: int,
        timeout_ms: int,
        topic: HostedTopic,
        row: Row,
        error: ApiError | None,
        late: tuple[Partition, int] | None,
    ) -> None:
        """Finish a request of one partition that was refused, or that waits for the high watermark."""
        rows = [row]
        refused = {} if error is None else {(1, 0): error}
        waiting = {} if late is None else {late[0]: (late[1], rows, 0)}
        answers: Responses = [(topic.name, topic.topic_id, rows)]
        self._appender.finish_request(slot, version, correlation_id, acks, timeout_ms, answers, refused, waiting)

    def _run_in_slices(self, slot: Slot, frame: memoryview, version: int, correlation_id: int, pos: int) -> Gate:
        held = self._hold_frame(slot, frame)

        def make(resume: Callable[[], None]) -> Steps:
            large = LargeProduce(self._slow, self._appender, self._clock, slot, version, resume)
            return large.request_steps(held, pos)

        self._run_steps(slot, ApiKey.PRODUCE, version, correlation_id, make)
        return Gate.WAIT
