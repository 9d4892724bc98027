"""Sends record batches to partition leaders.

Zone: real. Produce requests and their retries, producer ids and sequence numbers, for callers that make whole batches
and wait for each; `producer` is for all others. One thread per object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connections.connection import Connection
from ottla.client.errors import ClientError, RefusedError, UsageError, refused_error
from ottla.client.metadata import TopicView
from ottla.client.per_leader_requests import LeaderRequest, SentRequest, ask_leaders
from ottla.client.retry import Deadline
from ottla.client.settings import ACKS
from ottla.errors import ErrorCode
from ottla.types import NO_OFFSET, NO_TIMESTAMP, ZERO_UUID, TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    InitProducerIdRequest,
    InitProducerIdResponse,
    ProduceRequest,
    ProduceResponse,
)

Batch = bytes | bytearray | memoryview
_FIRST_VERSION_WITH_V2_BATCHES = 3
_FIRST_VERSION_WITH_TOPIC_IDS = 13
_FIRST_VERSION_THAT_ADDS_PARTITIONS = 12
"""From this version on a produce request adds its partitions to the transaction (KIP-890)."""
_SEQUENCES = 2**31


class Appended(NamedTuple):
    """A batch is in the log, with the durability that `acks` requests."""

    base_offset: int
    """Offset of the first record; NO_OFFSET with acks=0, and for a duplicate whose offset the broker has forgotten."""
    log_append_time_ms: int
    """NO_TIMESTAMP unless the topic has `message.timestamp.type=LogAppendTime`."""
    log_start_offset: int


class Identity:
    """A producer id with its epoch, and the next sequence number of each partition.

    After a batch has failed its sequence numbers are missing, so the identity must not be used any more.
    """

    __slots__ = ("_next", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self._next: dict[TopicPartition, int] = {}

    def take_sequence(self, tp: TopicPartition, count: int) -> int:
        """The base sequence for a batch of `count` records; sequences wrap from 2³¹-1 to 0."""
        sequence = self._next.get(tp, 0)
        self._next[tp] = (sequence + count) % _SEQUENCES
        return sequence


def new_identity(cluster: Cluster, deadline: Deadline | None = None) -> Identity:
    """A new producer id (InitProducerId without a transactional id). Raises RefusedError, DeadlineError …"""
    answer = cluster.send_request(
        ApiKey.INIT_PRODUCER_ID,
        lambda _: InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=2**31 - 1),
        InitProducerIdResponse,
        deadline=deadline,
        refused=lambda answer: refused_error(answer.error_code, "producer id"),
    )
    return Identity(answer.producer_id, answer.producer_epoch)


class Sender:
    """Sends batches; one batch per partition at a time, so that retries never reorder."""

    __slots__ = ("_acks", "_at_least", "_at_most", "_cluster", "_config", "_transactional_id")

    def __init__(self, cluster: Cluster, transactional_id: str | None = None, protocol: int = 1) -> None:
        """transactional_id: the batches are part of its transaction, in this version of the protocol, with acks=all."""
        self._cluster = cluster
        self._config = cluster.config
        self._acks = ACKS[cluster.config.acks]
        self._transactional_id = transactional_id
        self._at_most = 32_767
        self._at_least = _FIRST_VERSION_WITH_V2_BATCHES
        if transactional_id is not None and protocol == 1:
            self._at_most = _FIRST_VERSION_THAT_ADDS_PARTITIONS - 1
        elif transactional_id is not None:
            self._at_least = _FIRST_VERSION_THAT_ADDS_PARTITIONS

    def send(
        self, batches: Mapping[TopicPartition, Batch], deadline: Deadline | None = None
    ) -> dict[TopicPartition, Appended | ClientError]:
        """Send one encoded batch (format v2) per partition, to all leaders at once, and wait for the answers.

        Retries until `deadline` (`delivery.timeout.ms`); then the last error is the partition's result. After an error
        the batch may be in the log. With acks=0 the broker does not answer, so nothing is retried.
        Raises UsageError for a batch above `max.request.size`, and errors that concern the whole cluster.
        """
        for tp, batch in batches.items():
            if len(batch) > self._config.max_request_size:
                raise UsageError(
                    f"a batch of {len(batch)} bytes for {tp} is larger than max.request.size",
                    f"Send smaller records, or raise max.request.size (now {self._config.max_request_size})",
                )
        deadline = deadline or Deadline.after_ms(self._config.delivery_timeout_ms)
        if self._acks == 0:
            return self._send_unanswered(batches, deadline)
        # A retry sends the same bytes, with the same sequence numbers: the broker recognizes a batch that it has.
        question: LeaderRequest[ProduceResponse, Appended] = LeaderRequest(
            "produce request",
            lambda connection, asked: self._send_requests(connection, asked, batches),
            self._results_in,
        )
        return ask_leaders(self._cluster, batches, question, deadline)

    def _send_requests(
        self, connection: Connection, asked: Sequence[TopicPartition], batches: Mapping[TopicPartition, Batch]
    ) -> Iterator[SentRequest[ProduceResponse]]:
        version = self._produce_version(connection, asked)
        for group in self._group_by_size(asked, batches):
            yield connection.send_request(self._produce_request(group, batches), version, ProduceResponse), group

    def _send_unanswered(
        self, batches: Mapping[TopicPartition, Batch], deadline: Deadline
    ) -> dict[TopicPartition, Appended | ClientError]:
        by_leader, without = self._cluster.leaders(batches, deadline)
        results: dict[TopicPartition, Appended | ClientError] = {**without}
        for node, asked in by_leader.items():
            outcome: Appended | ClientError = Appended(NO_OFFSET, NO_TIMESTAMP, NO_OFFSET)
            try:
                connection = self._cluster.connection(node, deadline)
                version = self._produce_version(connection, asked)
                for group in self._group_by_size(asked, batches):
                    connection.send_unanswered(self._produce_request(group, batches), version, ProduceResponse)
            except ClientError as error:
                outcome = error
            results.update(dict.fromkeys(asked, outcome))
        return results

    def _produce_version(self, connection: Connection, asked: Sequence[TopicPartition]) -> int:
        with_ids = all(self._topic_id(tp.topic) != ZERO_UUID for tp in asked)
        at_most = self._at_most if with_ids else min(self._at_most, _FIRST_VERSION_WITH_TOPIC_IDS - 1)
        return connection.choose_version(ApiKey.PRODUCE, at_most, self._at_least)

    def _group_by_size(
        self, asked: Sequence[TopicPartition], batches: Mapping[TopicPartition, Batch]
    ) -> Iterator[list[TopicPartition]]:
        """Divide `asked` into requests with at most `max.request.size` bytes of batches."""
        group: list[TopicPartition] = []
        size = 0
        for tp in asked:
            # A group has at least one batch: `send_request` has checked that each one fits.
            if group and size + len(batches[tp]) > self._config.max_request_size:
                yield group
                group, size = [], 0
            group.append(tp)
            size += len(batches[tp])
        if group:
            yield group

    def _produce_request(
        self, group: Sequence[TopicPartition], batches: Mapping[TopicPartition, Batch]
    ) -> ProduceRequest:
        by_topic: dict[str, list[ProduceRequest.PartitionProduceData]] = {}
        for tp in group:
            part = ProduceRequest.PartitionProduceData(index=tp.partition, records=batches[tp])
            by_topic.setdefault(tp.topic, []).append(part)
        return ProduceRequest(
            transactional_id=self._transactional_id,
            acks=self._acks,
            timeout_ms=self._config.request_timeout_ms,
            topic_data=[
                ProduceRequest.TopicProduceData(name=name, topic_id=self._topic_id(name), partition_data=parts)
                for name, parts in by_topic.items()
            ],
        )

    def _results_in(self, answer: ProduceResponse) -> Iterable[tuple[TopicPartition, Appended | RefusedError]]:
        for topic in answer.responses:
            name = topic.name or self._topic_name(topic.topic_id)
            for part in topic.partition_responses:
                yield TopicPartition(name, part.index), _partition_result(name, part)

    def _topic_id(self, name: str) -> bytes:
        view = self._cluster.view.topics.get(name)
        return view.topic_id if isinstance(view, TopicView) else ZERO_UUID

    def _topic_name(self, topic_id: bytes) -> str:
        """The name for an id; `ask_leaders` reports an unknown one, which no request contained."""
        views = self._cluster.view.topics.values()
        return next((v.name for v in views if isinstance(v, TopicView) and v.topic_id == topic_id), topic_id.hex())


def _partition_result(topic: str, part: ProduceResponse.PartitionProduceResponse) -> Appended | RefusedError:
    if part.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
        # An earlier attempt is in the log; the broker has forgotten at which offset.
        return Appended(NO_OFFSET, NO_TIMESTAMP, part.log_start_offset)
    detail = [part.error_message, *(error.batch_index_error_message for error in part.record_errors)]
    message = "; ".join(text for text in detail if text)
    error = refused_error(part.error_code, f"produce to partition {part.index} of topic {topic}", message)
    return error or Appended(part.base_offset, part.log_append_time_ms, part.log_start_offset)
