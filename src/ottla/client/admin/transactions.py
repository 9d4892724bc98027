"""Administration of transactions (KIP-664): at their coordinators, and in the partitions they write to.

Zone: real. Errors of single brokers and partitions are returned in place of their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ottla.client.cluster import Cluster
from ottla.client.connections.connection import Connection
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.errors import (
    ClientError,
    MalformedReplyError,
    RefusedError,
    UnsupportedVersionError,
    refused_error,
)
from ottla.client.per_leader_requests import LeaderRequest, SentRequest, ask_leaders
from ottla.client.retry import Deadline
from ottla.renamed import renamed_argument
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_WITH_PATTERN = 2
"""The version of ListTransactions that filters by a pattern. Version 1 filters by duration."""
_FENCING_TIMEOUT_MS = 30_000
"""The timeout that a transactional id gets where its transaction is terminated, until its producer is back."""


class TransactionListed(NamedTuple):
    """A transactional id in the list of its coordinator."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


class TransactionView(NamedTuple):
    """A transactional id and its transaction."""

    transactional_id: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int
    start_ms: int
    """Wall time at which the transaction began; -1: there is no transaction."""
    partitions: tuple[TopicPartition, ...]
    """For a transaction that is ending: the partitions whose marker is not written yet."""


class ProducerView(NamedTuple):
    """The state of a producer in a partition."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    """-1: no coordinator has written a marker yet."""
    last_sequence: int
    last_timestamp_ms: int
    transaction_start: int
    """First offset of its open transaction; -1: no transaction is open."""


Producers = dict[TopicPartition, "list[ProducerView] | ClientError"]


class TransactionAdmin:
    """Calls about transactions over a Cluster."""

    __slots__ = ("_calls", "_cluster")

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._calls = CoordinatorCalls(cluster, CoordinatorKind.TRANSACTION)

    # -- reading -----------------------------------------------------------------------------------------------------

    def list_transactions(
        self,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        longer_than_ms: int = -1,
        deadline: Deadline | None = None,
        pattern: str = "",
    ) -> tuple[list[TransactionListed], dict[int, ClientError]]:
        """(transactional ids that pass the filters, sorted by name; errors of brokers that did not answer).

        longer_than_ms: needs brokers that serve ListTransactions version 1; -1: of any duration.
        pattern: a regular expression (RE2) that ids match as a whole; needs version 2; empty: any id.
        """
        deadline = deadline or self._cluster.deadline()
        request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=list(producer_ids))
        request.duration_filter = longer_than_ms
        request.transactional_id_pattern = pattern or None
        found: dict[str, TransactionListed] = {}
        failed: dict[int, ClientError] = {}
        for node in sorted(self._cluster.refresh((), deadline).nodes):
            try:
                answer = self._list_on_broker(node, request, deadline)
            except ClientError as error:
                failed[node] = error
                continue
            for each in answer.transaction_states:
                row = TransactionListed(each.transactional_id, node, each.producer_id, each.transaction_state)
                # An id may be listed twice while its coordinator moves: the last answer counts.
                found[each.transactional_id] = row
        return [found[name] for name in sorted(found)], failed

    def _list_on_broker(
        self, node: int, request: ListTransactionsRequest, deadline: Deadline
    ) -> ListTransactionsResponse:
        def build(version: int) -> ListTransactionsRequest:
            # Older versions have no field for the pattern: the answer would list all ids.
            if request.transactional_id_pattern and version < _WITH_PATTERN:
                raise UnsupportedVersionError(
                    f"broker {node} cannot filter transactional ids by a pattern", "List all, and filter them"
                )
            return request

        return self._cluster.send_request(
            ApiKey.LIST_TRANSACTIONS,
            build,
            ListTransactionsResponse,
            node=node,
            deadline=deadline,
            refused=lambda answer: refused_error(answer.error_code, f"transactions of broker {node}"),
            at_most=_WITH_PATTERN,
        )

    def describe_transaction(self, transactional_id: str, deadline: Deadline | None = None) -> TransactionView:
        """One transactional id. Raises RefusedError TRANSACTIONAL_ID_NOT_FOUND and others."""

        def refused(answer: DescribeTransactionsResponse) -> RefusedError | None:
            if len(answer.transaction_states) != 1:
                raise MalformedReplyError("the response to DescribeTransactions is not about the requested id")
            return refused_error(answer.transaction_states[0].error_code, f"transactional id {transactional_id}")

        answer = self._calls.send_to_coordinator(
            transactional_id,
            ApiKey.DESCRIBE_TRANSACTIONS,
            lambda _: DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            DescribeTransactionsResponse,
            refused,
            deadline,
        )
        row = answer.transaction_states[0]
        return TransactionView(
            transactional_id,
            self._calls.find_coordinator(transactional_id, deadline),
            row.producer_id,
            row.producer_epoch,
            row.transaction_state,
            row.transaction_timeout_ms,
            row.transaction_start_time_ms,
            tuple(TopicPartition(topic.topic, index) for topic in row.topics for index in topic.partitions),
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition], broker: int | None = None, deadline: Deadline | None = None
    ) -> Producers:
        """The producers that the leaders of partitions know; with `broker`, those that its replicas know."""
        deadline = deadline or self._cluster.deadline()
        if broker is None:
            question: LeaderRequest[DescribeProducersResponse, list[ProducerView]] = LeaderRequest(
                "describe producers", _ask_producers, _producer_results
            )
            return ask_leaders(self._cluster, partitions, question, deadline)
        self._cluster.refresh((), deadline)
        request = _producers_request(list(partitions))
        answer = self._cluster.send_request(
            ApiKey.DESCRIBE_PRODUCERS, lambda _: request, DescribeProducersResponse, node=broker, deadline=deadline
        )
        return dict(_producer_results(answer))

    # -- changing ----------------------------------------------------------------------------------------------------

    def terminate_transaction(self, transactional_id: str, deadline: Deadline | None = None) -> None:
        """Abort the transaction of an id, if one is open, and fence its producer (KIP-939). An unknown id is made.

        Raises RefusedError TRANSACTIONAL_ID_AUTHORIZATION_FAILED and others.
        """
        # Without an id and epoch of a producer, so that the coordinator fences the one that it knows.
        request = InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=_FENCING_TIMEOUT_MS, producer_id=-1
        )
        self._calls.send_to_coordinator(
            transactional_id,
            ApiKey.INIT_PRODUCER_ID,
            lambda _: request,
            InitProducerIdResponse,
            lambda answer: refused_error(answer.error_code, f"transactional id {transactional_id}"),
            deadline,
        )

    @renamed_argument("where", "tp")
    def abort_transaction(
        self,
        tp: TopicPartition,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        deadline: Deadline | None = None,
    ) -> None:
        """Write an abort marker into one partition, without its coordinator: for a hanging transaction.

        Raises RefusedError INVALID_PRODUCER_EPOCH, TRANSACTION_COORDINATOR_FENCED, CLUSTER_AUTHORIZATION_FAILED.
        """
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            transaction_result=False,
            topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        )

        def send(
            connection: Connection, asked: Sequence[TopicPartition]
        ) -> Iterator[SentRequest[WriteTxnMarkersResponse]]:
            version = connection.choose_version(ApiKey.WRITE_TXN_MARKERS)
            yield (
                connection.send_request(WriteTxnMarkersRequest(markers=[marker]), version, WriteTxnMarkersResponse),
                asked,
            )

        question: LeaderRequest[WriteTxnMarkersResponse, None] = LeaderRequest(
            "abort transaction", send, _marker_results
        )
        outcome = ask_leaders(self._cluster, [tp], question, deadline or self._cluster.deadline())[tp]
        if outcome is not None:
            raise outcome


def _ask_producers(
    connection: Connection, asked: Sequence[TopicPartition]
) -> Iterator[SentRequest[DescribeProducersResponse]]:
    version = connection.choose_version(ApiKey.DESCRIBE_PRODUCERS)
    yield connection.send_request(_producers_request(asked), version, DescribeProducersResponse), asked


def _producers_request(partitions: Sequence[TopicPartition]) -> DescribeProducersRequest:
    by_topic: dict[str, list[int]] = {}
    for tp in partitions:
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    topic = DescribeProducersRequest.TopicRequest
    return DescribeProducersRequest(topics=[topic(name=n, partition_indexes=p) for n, p in by_topic.items()])


def _producer_results(
    answer: DescribeProducersResponse,
) -> Iterator[tuple[TopicPartition, list[ProducerView] | RefusedError]]:
    for topic in answer.topics:
        for part in topic.partitions:
            tp = TopicPartition(topic.name, part.partition_index)
            error = refused_error(part.error_code, f"producers of {tp}", part.error_message)
            yield tp, error or [_producer_view(each) for each in part.active_producers]


def _producer_view(row: DescribeProducersResponse.ProducerState) -> ProducerView:
    return ProducerView(
        row.producer_id,
        row.producer_epoch,
        row.coordinator_epoch,
        row.last_sequence,
        row.last_timestamp,
        row.current_txn_start_offset,
    )


def _marker_results(answer: WriteTxnMarkersResponse) -> Iterator[tuple[TopicPartition, RefusedError | None]]:
    for marker in answer.markers:
        for topic in marker.topics:
            for part in topic.partitions:
                tp = TopicPartition(topic.name, part.partition_index)
                yield tp, refused_error(part.error_code, f"marker of producer {marker.producer_id} in {tp}")
