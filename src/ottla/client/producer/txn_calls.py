"""The requests of transactions, made in the caller's thread.

Zone: real. They are few, and their callers wait for them, so they use the blocking client; `transactional` and
`batch_transaction` decide when.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from ottla.client.cluster import ANY_NODE, Cluster
from ottla.client.coordinators import CoordinatorCalls, CoordinatorKind
from ottla.client.errors import ProducerFencedError, RefusedError, refused_error
from ottla.client.positions import GroupMetadata, OffsetAndMetadata
from ottla.client.producer.error_classification import FENCED
from ottla.client.producer.partition_queue import ProducerId
from ottla.client.retry import Deadline
from ottla.errors import ErrorCode
from ottla.types import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)
from ottla.wire.schema import Message

R = TypeVar("R", bound=Message)

_VERSION_2 = {ApiKey.PRODUCE: 12, ApiKey.TXN_OFFSET_COMMIT: 5, ApiKey.END_TXN: 5}
"""The API versions that a broker must serve for version 2 of the protocol."""
_FEATURE = "transaction.version"
_SINGLE_TRANSACTION_MAX = 3
"""Later versions of AddPartitionsToTxn are for brokers."""
_NAMED_TOPICS_MAX = 5


class CoordinatorConnections:
    """Calls to both kinds of coordinators. The caller closes the cluster."""

    def __init__(self, cluster: Cluster, *, remember: bool = False) -> None:
        """remember: as in CoordinatorCalls."""
        self.cluster = cluster
        self.transactions = CoordinatorCalls(cluster, CoordinatorKind.TRANSACTION, remember=remember)
        self.groups = CoordinatorCalls(cluster, CoordinatorKind.GROUP, remember=remember)


class TxnCalls:
    """Requests about one transactional id. Not for two threads at once."""

    def __init__(self, coordinators: CoordinatorConnections, transactional_id: str, timeout_ms: int) -> None:
        """timeout_ms: `transaction.timeout.ms`."""
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._cluster = coordinators.cluster
        self._transactions = coordinators.transactions
        self._groups = coordinators.groups

    def protocol_version(self, deadline: Deadline) -> int:
        """The version of the transaction protocol that the cluster has finalized: 1 or 2. Raises ClientError."""
        # Any broker will do: finalized features are the same for the whole cluster (KIP-584).
        connection = self._cluster.connection(ANY_NODE, deadline)
        serves = all(connection.versions.get(key, (0, -1))[1] >= least for key, least in _VERSION_2.items())
        return 2 if serves and connection.features.get(_FEATURE, 0) >= 2 else 1

    def init_producer_id(self, known: ProducerId | None, deadline: Deadline) -> ProducerId:
        """Request a producer id and epoch. known: the present ones, for a new epoch (KIP-360). Raises ClientError."""
        producer_id, epoch = known or (-1, -1)

        def build(_version: int) -> InitProducerIdRequest:
            return InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
                producer_id=producer_id,
                producer_epoch=epoch,
            )

        answer = self._send_to_coordinator(ApiKey.INIT_PRODUCER_ID, build, InitProducerIdResponse, deadline)
        return ProducerId(answer.producer_id, answer.producer_epoch)

    def add_partitions(self, who: ProducerId, partitions: Iterable[TopicPartition], deadline: Deadline) -> None:
        """Version 1: add partitions to the transaction, before their first batch. Raises ClientError."""
        by_topic: dict[str, list[int]] = {}
        for tp in partitions:
            by_topic.setdefault(tp.topic, []).append(tp.partition)
        topics = [
            AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=name, partitions=numbers)
            for name, numbers in by_topic.items()
        ]

        def build(_version: int) -> AddPartitionsToTxnRequest:
            return AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=who.producer_id,
                v3_and_below_producer_epoch=who.epoch,
                v3_and_below_topics=topics,
            )

        key = ApiKey.ADD_PARTITIONS_TO_TXN
        self._send_to_coordinator(
            key, build, AddPartitionsToTxnResponse, deadline, _add_refused, _SINGLE_TRANSACTION_MAX
        )

    def add_offsets(self, who: ProducerId, group: str, deadline: Deadline) -> None:
        """Version 1: add a group's positions to the transaction. Raises ClientError."""

        def build(_version: int) -> AddOffsetsToTxnRequest:
            return AddOffsetsToTxnRequest(
                transactional_id=self._id,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                group_id=group,
            )

        self._send_to_coordinator(ApiKey.ADD_OFFSETS_TO_TXN, build, AddOffsetsToTxnResponse, deadline)

    def commit_offsets(
        self,
        who: ProducerId,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        group: GroupMetadata,
        version: int,
        deadline: Deadline,
    ) -> None:
        """Write positions that take effect with the commit; `version` of the protocol. Raises ClientError."""
        topics = _offset_topics(offsets)

        def build(_version: int) -> TxnOffsetCommitRequest:
            return TxnOffsetCommitRequest(
                transactional_id=self._id,
                group_id=group.group_id,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                generation_id_or_member_epoch=group.generation_id,
                member_id=group.member_id,
                group_instance_id=group.group_instance_id,
                topics=topics,
            )

        # A later version would make the coordinator add the group to the transaction itself, which version 1 does
        # first.
        at_most = _NAMED_TOPICS_MAX if version == 2 else _VERSION_2[ApiKey.TXN_OFFSET_COMMIT] - 1
        key = ApiKey.TXN_OFFSET_COMMIT
        self._groups.send_to_coordinator(
            group.group_id, key, build, TxnOffsetCommitResponse, _commit_refused, deadline, at_most
        )

    def end_transaction(self, who: ProducerId, *, commit: bool, version: int, deadline: Deadline) -> ProducerId | None:
        """End the transaction. Returns the next identity; None: keep the present one. Raises ClientError."""

        def build(_version: int) -> EndTxnRequest:
            return EndTxnRequest(
                transactional_id=self._id,
                producer_id=who.producer_id,
                producer_epoch=who.epoch,
                committed=commit,
            )

        # From version 5 on EndTxn raises the epoch, which a version 1 producer would not expect.
        at_most = 32_767 if version == 2 else _VERSION_2[ApiKey.END_TXN] - 1
        answer = self._send_to_coordinator(
            ApiKey.END_TXN, build, EndTxnResponse, deadline, lambda each: _end_refused(each, self._id), at_most
        )
        return ProducerId(answer.producer_id, answer.producer_epoch) if answer.producer_id >= 0 else None

    def _send_to_coordinator(
        self,
        key: ApiKey,
        build: Callable[[int], Message],
        response: type[R],
        deadline: Deadline,
        refused: Callable[[R], RefusedError | None] | None = None,
        at_most: int = 32_767,
    ) -> R:
        def plainly(answer: R) -> RefusedError | None:
            return _txn_refusal(answer.error_code, _subject(self._id))  # type: ignore[attr-defined]  # all responses but one have it

        return self._transactions.send_to_coordinator(
            self._id, key, build, response, refused or plainly, deadline, at_most
        )


def _subject(transactional_id: str) -> str:
    return f"transactional id {transactional_id}"


def _end_refused(answer: EndTxnResponse, transactional_id: str) -> RefusedError | None:
    error = _txn_refusal(answer.error_code, _subject(transactional_id))
    if error is not None and error.code is ErrorCode.UNKNOWN_SERVER_ERROR:
        # Kafka's coordinator answers so while another producer is fencing this one (its transaction is in the state
        # PREPARE_EPOCH_FENCE): the next attempt learns whether it was fenced. A second EndTxn of an epoch changes
        # nothing if the first was done.
        error.retriable = True
    return error


def _txn_refusal(code: int, subject: str) -> RefusedError | None:
    # Old coordinators answer INVALID_PRODUCER_EPOCH where newer ones answer PRODUCER_FENCED (KIP-588).
    return ProducerFencedError(ErrorCode.PRODUCER_FENCED, subject) if code in FENCED else refused_error(code, subject)


def _add_refused(answer: AddPartitionsToTxnResponse) -> RefusedError | None:
    found: list[RefusedError] = []
    for topic in answer.results_by_topic_v3_and_below:
        for part in topic.results_by_partition:
            error = _txn_refusal(part.partition_error_code, f"partition {part.partition_index} of topic {topic.name}")
            if error is not None:
                found.append(error)
    return _worst_error(found)


def _commit_refused(answer: TxnOffsetCommitResponse) -> RefusedError | None:
    found: list[RefusedError] = []
    for topic in answer.topics:
        for part in topic.partitions:
            error = _txn_refusal(part.error_code, f"position of partition {part.partition_index} of topic {topic.name}")
            if error is not None:
                found.append(error)
    return _worst_error(found)


def _worst_error(errors: list[RefusedError]) -> RefusedError | None:
    """The most important error: not retriable before retriable, and a cause before its OPERATION_NOT_ATTEMPTED."""
    attempted = [error for error in errors if error.code is not ErrorCode.OPERATION_NOT_ATTEMPTED] or errors
    return min(attempted, key=lambda error: error.retriable, default=None)


def _offset_topics(
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
) -> list[TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic]:
    by_topic: dict[str, list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
    for tp, position in offsets.items():
        part = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=position.offset,
            committed_leader_epoch=position.leader_epoch,
            committed_metadata=position.metadata,
        )
        by_topic.setdefault(tp.topic, []).append(part)
    return [
        TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(name=name, partitions=parts)
        for name, parts in by_topic.items()
    ]
