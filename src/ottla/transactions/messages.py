"""Requests of the protocol to commands of the state machine, and results to responses, in every version.

Zone: pure. Field by field; the handlers check authorization and whether topics exist.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from ottla.coordinator.shard import Completion
from ottla.errors import ApiError, ErrorCode
from ottla.transactions.commands import AddPartitions, EndTransaction, InitProducerId, VerifyPartitions
from ottla.transactions.state import BUMPED, UNBUMPED, ProducerIdentity, Transaction, TransactionStatus
from ottla.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, TopicPartition
from ottla.wire.messages.add_to_txn import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.list_transactions import (
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.wire.messages.producer_ids import InitProducerIdRequest, InitProducerIdResponse

BATCHED_FROM: Final = 4
"""The version of AddPartitionsToTxn from which on brokers send it, for several transactions at once."""
BUMPED_FROM: Final = 5
"""The version of EndTxn that is sent under transaction version 2."""
FENCED_FROM: Final[Mapping[int, int]] = {
    InitProducerIdRequest.API_KEY: 4,
    AddPartitionsToTxnRequest.API_KEY: 2,
    AddOffsetsToTxnRequest.API_KEY: 2,
    EndTxnRequest.API_KEY: 2,
}
"""The version of an API from which on clients know PRODUCER_FENCED."""

PartitionCodes = Mapping[TopicPartition, ErrorCode]
_new = tuple.__new__  # a third of the time of the class's own


def code_for(api_key: int, version: int, error: ApiError) -> ErrorCode:
    """The error code, mapped to one that clients of that version know."""
    if error.code is ErrorCode.PRODUCER_FENCED and version < FENCED_FROM[api_key]:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return error.code


# -- InitProducerId ----------------------------------------------------------------------------------------------------


def init_command(request: InitProducerIdRequest, ticket: Completion[ProducerIdentity]) -> InitProducerId:
    """The command of a producer with a transactional id. Raises ApiError INVALID_REQUEST for half an identity."""
    return InitProducerId(request.transactional_id or "", request.transaction_timeout_ms, expected_of(request), ticket)


def expected_of(request: InitProducerIdRequest) -> ProducerIdentity | None:
    """The identity that the producer had so far. Raises ApiError INVALID_REQUEST when the request has half of it."""
    known = request.producer_id != NO_PRODUCER_ID, request.producer_epoch != NO_PRODUCER_EPOCH
    if known[0] != known[1]:
        raise ApiError(ErrorCode.INVALID_REQUEST, "a request needs both the producer id and its epoch, or neither")
    return ProducerIdentity(request.producer_id, request.producer_epoch) if known[0] else None


def init_response(version: int, outcome: ProducerIdentity | ApiError) -> InitProducerIdResponse:
    """The response with the producer's identity."""
    if isinstance(outcome, ApiError):
        code = code_for(InitProducerIdRequest.API_KEY, version, outcome)
        return InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)
    return InitProducerIdResponse(producer_id=outcome.producer_id, producer_epoch=outcome.epoch)


# -- AddPartitionsToTxn ------------------------------------------------------------------------------------------------


class RequestedPartitions(NamedTuple):
    """The partitions of one transaction in a request."""

    transactional_id: str
    identity: ProducerIdentity
    verify_only: bool
    partitions: Sequence[TopicPartition]

    def to_command(self, version: int, ticket: Callable[[PartitionCodes], None]) -> AddPartitions | VerifyPartitions:
        """The command for these partitions. `ticket` gets an error code for every partition."""
        name, identity, verify_only, partitions = self

        def send_response(outcome: PartitionCodes | ApiError | None) -> None:
            ticket(dict.fromkeys(partitions, ErrorCode.NONE) if outcome is None else self._codes_of(version, outcome))

        if verify_only:
            return VerifyPartitions(name, identity, partitions, send_response)
        protocol = BUMPED if version >= BATCHED_FROM else UNBUMPED
        return _new(AddPartitions, (name, identity, partitions, protocol, send_response))

    def _codes_of(self, version: int, outcome: PartitionCodes | ApiError) -> PartitionCodes:
        if isinstance(outcome, ApiError):
            return self.refuse_all(code_for(AddPartitionsToTxnRequest.API_KEY, version, outcome))
        return outcome

    def refuse_all(self, code: ErrorCode) -> PartitionCodes:
        """The same code for all partitions."""
        return dict.fromkeys(self.partitions, code)

    def not_attempted(self, wrong: PartitionCodes) -> PartitionCodes:
        """The codes when some partitions are wrong: the others get OPERATION_NOT_ATTEMPTED."""
        return {tp: wrong.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED) for tp in self.partitions}


def wanted_in(request: AddPartitionsToTxnRequest, version: int) -> list[RequestedPartitions]:
    """The transactions of a request. Up to version 3 there is one."""
    if version >= BATCHED_FROM:
        return [
            RequestedPartitions(
                part.transactional_id,
                ProducerIdentity(part.producer_id, part.producer_epoch),
                part.verify_only,
                _requested_partitions(part.topics),
            )
            for part in request.transactions
        ]
    identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    return [
        RequestedPartitions(
            request.v3_and_below_transactional_id, identity, False, _requested_partitions(request.v3_and_below_topics)
        ),
    ]


def _requested_partitions(topics: Iterable[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    return list(dict.fromkeys(TopicPartition(topic.name, index) for topic in topics for index in topic.partitions))


def add_response(version: int, outcomes: Sequence[tuple[str, PartitionCodes]]) -> AddPartitionsToTxnResponse:
    """The response with the error codes of every transaction of the request."""
    if version < BATCHED_FROM:
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_result_topics(outcomes[0][1]))
    return AddPartitionsToTxnResponse(
        results_by_transaction=[
            AddPartitionsToTxnResponse.AddPartitionsToTxnResult(
                transactional_id=name, topic_results=_result_topics(codes)
            )
            for name, codes in outcomes
        ]
    )


def _result_topics(codes: PartitionCodes) -> list[AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult(
            name=topic,
            results_by_partition=[
                AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult(
                    partition_index=tp.partition, partition_error_code=codes[tp]
                )
                for tp in partitions
            ],
        )
        for topic, partitions in _by_topic(codes).items()
    ]


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    topics: dict[str, list[TopicPartition]] = {}
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp)
    return topics


# -- AddOffsetsToTxn ---------------------------------------------------------------------------------------------------


def add_offsets_command(
    request: AddOffsetsToTxnRequest, partition: TopicPartition, ticket: Completion[None]
) -> AddPartitions:
    """The command of a request. `partition`: the partition of `__consumer_offsets` with the group's offsets."""
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    return AddPartitions(request.transactional_id, identity, (partition,), UNBUMPED, ticket)


def add_offsets_response(version: int, outcome: ApiError | None) -> AddOffsetsToTxnResponse:
    """The response, with the error if there is one."""
    if outcome is None:
        return AddOffsetsToTxnResponse()
    return AddOffsetsToTxnResponse(error_code=code_for(AddOffsetsToTxnRequest.API_KEY, version, outcome))


# -- EndTxn ------------------------------------------------------------------------------------------------------------


def end_command(request: EndTxnRequest, version: int, ticket: Completion[ProducerIdentity]) -> EndTransaction:
    """The command of a request. Its version determines the transaction version of the producer."""
    identity = _new(ProducerIdentity, (request.producer_id, request.producer_epoch))
    protocol = BUMPED if version >= BUMPED_FROM else UNBUMPED
    fields = request.transactional_id, identity, request.committed, protocol, ticket, NO_PRODUCER_ID
    return _new(EndTransaction, fields)


def end_response(version: int, outcome: ProducerIdentity | ApiError) -> EndTxnResponse:
    """The response with the producer's next identity. Before version 5 the identity never changes, so it is absent."""
    if isinstance(outcome, ApiError):
        return EndTxnResponse(error_code=code_for(EndTxnRequest.API_KEY, version, outcome))
    if version < BUMPED_FROM:
        return EndTxnResponse()
    return EndTxnResponse(producer_id=outcome.producer_id, producer_epoch=outcome.epoch)


# -- administration ----------------------------------------------------------------------------------------------------


def description_row(
    transactional_id: str, outcome: Transaction | ApiError
) -> DescribeTransactionsResponse.TransactionState:
    """The row of one transaction. Of a decided one it has the partitions that wait for their marker (KIP-664)."""
    if isinstance(outcome, ApiError):
        return DescribeTransactionsResponse.TransactionState(
            error_code=outcome.code, transactional_id=transactional_id, producer_id=NO_PRODUCER_ID
        )
    return DescribeTransactionsResponse.TransactionState(
        transactional_id=transactional_id,
        transaction_state=outcome.status.label,
        transaction_timeout_ms=outcome.timeout_ms,
        transaction_start_time_ms=outcome.start_ms,
        producer_id=outcome.producer_id,
        producer_epoch=outcome.epoch,
        topics=[
            DescribeTransactionsResponse.TopicData(topic=topic, partitions=[tp.partition for tp in partitions])
            for topic, partitions in _by_topic(sorted(outcome.partitions)).items()
        ],
    )


_LABELS: Final = tuple(status.label for status in TransactionStatus)


def unknown_states(request: ListTransactionsRequest) -> list[str]:
    """The state filters of a request that are not names of states."""
    return [name for name in request.state_filters if name not in _LABELS]


def list_rows(
    request: ListTransactionsRequest,
    transactions: Mapping[str, Transaction],
    now_ms: int,
    matches: Callable[[str], bool] | None = None,
) -> list[ListTransactionsResponse.TransactionState]:
    """The rows of transactions that pass all filters. `matches`: the pattern of ids; the caller bounds its cost."""
    states, producers = frozenset(request.state_filters), frozenset(request.producer_id_filters)
    duration = request.duration_filter
    return [
        ListTransactionsResponse.TransactionState(
            transactional_id=name, producer_id=txn.producer_id, transaction_state=txn.status.label
        )
        for name, txn in transactions.items()
        if (not states or txn.status.label in states)
        and (not producers or txn.producer_id in producers)
        and (duration < 0 or (txn.start_ms >= 0 and now_ms - txn.start_ms > duration))
        and (matches is None or matches(name))
    ]
