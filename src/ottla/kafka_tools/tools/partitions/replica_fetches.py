"""Fetches from every replica of partitions, as the debugging consumer that any replica answers.

Zone: real. One request to each broker at a time; a response is reduced to the checksums of its batches before the next
one is received, so that one response is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connections.connection import Call, Connection
from ottla.client.errors import ClientError, MalformedReplyError, refused_error
from ottla.client.metadata import TopicView
from ottla.client.retry import Deadline
from ottla.kafka_tools.tools.partitions.replica_batches import ReplicaBatches, corrupt_replica_error, read_batches
from ottla.record.errors import CorruptRecord
from ottla.types import ZERO_UUID, TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import FetchRequest, FetchResponse

_DEBUGGING_CONSUMER: Final = -2
_BATCHES_VERSION: Final = 4
"""From this version on batches arrive as they are in the log."""
_TOPIC_ID_VERSION: Final = 13
_REPLICA_STATE_VERSION: Final = 15

Fetched = dict[TopicPartition, dict[int, ReplicaBatches]]
"""The batches of each replica, by broker id."""


class _Flight(NamedTuple):
    """An unanswered request to one broker."""

    node: int
    connection: Connection
    call: Call[FetchResponse]


class ReplicaFetches:
    """The brokers, and the partitions that each of them has."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[TopicView],
        fetch_size: int,
        max_wait_ms: int,
        warn: Callable[[str], None],
    ) -> None:
        """fetch_size: the most bytes of one partition in a response. warn: called with the text of a failure, once
        until it changes."""
        self._cluster = cluster
        self._fetch_size = fetch_size
        self._max_wait_ms = max_wait_ms
        self._warn = warn
        self._failures: dict[tuple[int, TopicPartition | None], str] = {}
        self._names: dict[bytes, str] = {}
        self._ids: dict[str, bytes] = {}
        self.replicas: dict[TopicPartition, Sequence[int]] = {}
        """The ids of the brokers that have each partition."""
        self._of_node: dict[int, set[TopicPartition]] = {}
        for topic in topics:
            self._ids[topic.name] = topic.topic_id
            self._names[topic.topic_id] = topic.name
            for number, partition in topic.partitions.items():
                tp = TopicPartition(topic.name, number)
                self.replicas[tp] = partition.replicas
                for node in partition.replicas:
                    self._of_node.setdefault(node, set()).add(tp)

    def fetch_round(self, order: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> Fetched:
        """The batches of all replicas from these offsets on. A broker that does not answer has none.

        order: that of the partitions in the requests. Raises ToolError for bytes that are not batches.
        """
        # One deadline for all connections: several brokers that do not answer must not add up.
        deadline = Deadline.after_ms(self._cluster.config.request_timeout_ms)
        if any(tp is None for _, tp in self._failures):
            self._refresh_nodes(deadline)
        fetched: Fetched = {}
        # All requests are sent before the first response is awaited, so that the brokers wait at the same time.
        for flight in list(self._send_requests(order, offsets, deadline)):
            try:
                response = flight.connection.wait_for_response(flight.call, self._cluster.deadline())
                if (error := refused_error(response.error_code, "Fetch")) is not None:
                    raise error
            except ClientError as error:
                self._note_failure(flight.node, None, str(error))
                continue
            self._note_failure(flight.node, None, "")
            for tp, part in self._partitions_in(response, flight):
                fetched.setdefault(tp, {})[flight.node] = self._read_partition(tp, part, flight.node, offsets[tp])
        return fetched

    def _refresh_nodes(self, deadline: Deadline) -> None:
        """Look for the brokers that failed: they may be back under other addresses."""
        try:
            self._cluster.refresh((), deadline.within_ms(self._max_wait_ms + 1_000))
        except ClientError as error:
            self._warn(str(error))

    def _send_requests(
        self, order: Collection[TopicPartition], offsets: Mapping[TopicPartition, int], deadline: Deadline
    ) -> Iterator[_Flight]:
        for node, there in sorted(self._of_node.items()):
            # The same order for all brokers: then all replicas of the first partition are in their responses.
            asked = [tp for tp in order if tp in there]
            try:
                connection = self._cluster.connection(node, deadline)
                # From version 13 on topics are identified by id, so all ids must be known.
                at_most = 32_767 if ZERO_UUID not in self._names else _TOPIC_ID_VERSION - 1
                version = connection.choose_version(ApiKey.FETCH, at_most, _BATCHES_VERSION)
                call = connection.send_request(self._fetch_request(asked, offsets, version), version, FetchResponse)
            except ClientError as error:
                self._note_failure(node, None, str(error))
            else:
                yield _Flight(node, connection, call)

    def _fetch_request(
        self, asked: Iterable[TopicPartition], offsets: Mapping[TopicPartition, int], version: int
    ) -> FetchRequest:
        # Without a session, as in Kafka's tool: every response has all partitions, whether they changed or not.
        request = FetchRequest(
            max_wait_ms=self._max_wait_ms,
            min_bytes=1,
            max_bytes=self._cluster.config.fetch_max_bytes,
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=name, topic_id=self._ids[name], partitions=[self._partition(tp, offsets[tp]) for tp in found]
                )
                for name, found in groupby(asked, key=lambda tp: tp.topic)
            ],
        )
        if version < _REPLICA_STATE_VERSION:
            request.replica_id = _DEBUGGING_CONSUMER
        else:
            request.replica_state.replica_id = _DEBUGGING_CONSUMER
        return request

    def _partition(self, tp: TopicPartition, offset: int) -> FetchRequest.FetchPartition:
        return FetchRequest.FetchPartition(
            partition=tp.partition, fetch_offset=offset, partition_max_bytes=self._fetch_size
        )

    def _partitions_in(
        self, response: FetchResponse, flight: _Flight
    ) -> Iterator[tuple[TopicPartition, FetchResponse.PartitionData]]:
        there = self._of_node[flight.node]
        for topic in response.responses:
            name = topic.topic if flight.call.version < _TOPIC_ID_VERSION else self._names.get(topic.topic_id, "")
            for part in topic.partitions:
                tp = TopicPartition(name, part.partition_index)
                # Bounds the result: a broker cannot add partitions to it.
                if tp not in there:
                    raise MalformedReplyError(f"broker {flight.node} answered for {tp}, which was not requested")
                yield tp, part

    def _read_partition(
        self, tp: TopicPartition, part: FetchResponse.PartitionData, node: int, offset: int
    ) -> ReplicaBatches:
        error = refused_error(part.error_code, "Fetch")
        self._note_failure(node, tp, "" if error is None else str(error))
        # Null in responses with an error, and from some brokers where there are no records.
        records = part.records if isinstance(part.records, bytes | bytearray | memoryview) else b""
        try:
            return read_batches(part.high_watermark, records)
        except CorruptRecord as corrupt:
            raise corrupt_replica_error(tp, node, offset, corrupt) from None

    def _note_failure(self, node: int, tp: TopicPartition | None, text: str) -> None:
        """Report a failure of a broker, or of its replica of a partition, and its end, which has no text."""
        place = f"broker {node}" if tp is None else f"partition {tp} on broker {node}"
        if not text:
            if self._failures.pop((node, tp), None):
                self._warn(f"{place} answers again")
        elif self._failures.get((node, tp)) != text:
            self._failures[node, tp] = text
            self._warn(f"{place} has no records to compare: {text}")
