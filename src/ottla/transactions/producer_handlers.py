"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn: requests of transactional producers.

Zone: deterministic. These handlers check that topics exist; `rules` decides about the transactional id.

Version notes. AddPartitionsToTxn: up to version 3 clients send it; from 4 on only brokers do, for several transactions,
and possibly only to verify (KIP-890). EndTxn 5: the epoch grows with every end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from ottla.acls import Operation, ResourceType
from ottla.errors import ApiError, ErrorCode
from ottla.fan_in import FanIn
from ottla.requests import Context, Steps, handles
from ottla.seams import Failure
from ottla.transactions.commands import AddPartitions, VerifyPartitions
from ottla.transactions.many_partitions import ManyPartitionsRequest, Refusal, is_large
from ottla.transactions.messages import (
    BATCHED_FROM,
    PartitionCodes,
    RequestedPartitions,
    add_offsets_command,
    add_offsets_response,
    add_response,
    end_command,
    end_response,
    init_command,
    init_response,
    wanted_in,
)
from ottla.transactions.service import IdSource, Transactions
from ottla.transactions.state import ProducerIdentity
from ottla.types import NO_PRODUCER_EPOCH, TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.messages import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

Submit = Callable[[AddPartitions | VerifyPartitions], None]
_WRITE: Final = Operation.WRITE
MAX_TRANSACTIONS: Final = 10_000
"""The most transactions in one request of a broker."""


class Topics(Protocol):
    """The topics of the cluster."""

    def partition_refusal(self, tp: TopicPartition, by_client: bool) -> ErrorCode:
        """The error for a partition that cannot join a transaction; NONE when it can."""
        ...

    def offsets_of(self, group_id: str, done: Callable[[TopicPartition | ApiError], None]) -> None:
        """Pass the partition of `__consumer_offsets` with a group's offsets to `done`."""
        ...


class ProducerHandlers:
    """Handlers of the requests of producers, and of verification requests of partition leaders."""

    def __init__(self, transactions: Transactions, ids: IdSource, topics: Topics) -> None:
        self._transactions = transactions
        self._ids = ids
        self._topics = topics

    @handles(
        ApiKey.INIT_PRODUCER_ID,
        0,
        5,
        resource="TransactionalId",
        operation="Write",
        also=(("Cluster", "IdempotentWrite"),),
    )
    def init_producer_id(self, context: Context, request: InitProducerIdRequest) -> InitProducerIdResponse | None:
        """Get a producer's identity. Without a transactional id: an unused producer id.

        That needs IdempotentWrite on the cluster, or Write on any topic (KIP-679).
        """
        if request.transactional_id is None:
            if not _may_write_idempotently(context):
                return _refused_response(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
            self._ids.take_producer_id(
                context.wrap_step(lambda outcome: context.send_reply(_idempotent_response(outcome)))
            )
            return None
        version = context.api_version
        if not context.is_allowed(_WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            return _refused_response(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        try:
            command = init_command(request, lambda outcome: context.send_reply(init_response(version, outcome)))
        except ApiError as error:
            return init_response(version, error.as_value())
        if not request.transactional_id:
            return init_response(version, ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty"))
        self._transactions.submit_command(command)
        return None

    @handles(
        ApiKey.ADD_PARTITIONS_TO_TXN,
        0,
        5,
        resource="TransactionalId",
        operation="Write",
        brokers_from=BATCHED_FROM,
        also=(("Topic", "Write"), ("Cluster", "ClusterAction")),
        undivided="one wrong partition refuses all, so the handler checks them in slices of its own",
    )
    def add_partitions(self, context: Context, request: AddPartitionsToTxnRequest) -> Steps | None:
        """Add partitions to transactions. One wrong partition prevents all others of its transaction from joining."""
        version = context.api_version
        refusal = self._refusal_for(context)
        if version < BATCHED_FROM:
            context.check_allowed(_WRITE, ResourceType.TRANSACTIONAL_ID, request.v3_and_below_transactional_id)
            if is_large(request):
                steps = ManyPartitionsRequest(context, request, refusal)
                return steps.run_steps(self._transactions.submit_command)
        transactions = wanted_in(request, version)
        if len(transactions) > MAX_TRANSACTIONS:
            raise ApiError(ErrorCode.INVALID_REQUEST, f"more than {MAX_TRANSACTIONS} transactions at once")

        def send_response(codes: list[PartitionCodes]) -> None:
            names = [wanted.transactional_id for wanted in transactions]
            context.send_reply(add_response(version, list(zip(names, codes, strict=True))))

        gather = FanIn(send_response)
        for wanted in transactions:
            self._check_and_submit(wanted, version, refusal, gather.new_slot(), self._transactions.submit_command)
        gather.close_slots()
        return None

    def _refusal_for(self, context: Context) -> Refusal:
        """The error for a partition that cannot join a transaction of this client. A denied one gets the same error
        whether it exists or not."""
        refusal = self._topics.partition_refusal
        if context.rights is None:
            return refusal

        def refuse_denied(tp: TopicPartition, by_client: bool) -> ErrorCode:
            if context.is_allowed(_WRITE, ResourceType.TOPIC, tp.topic):
                return refusal(tp, by_client)
            return ErrorCode.TOPIC_AUTHORIZATION_FAILED

        return refuse_denied

    def add_or_verify(
        self, wanted: RequestedPartitions, version: int, done: Callable[[PartitionCodes], None], submit: Submit
    ) -> None:
        """Add partitions to one transaction for a leader on this broker, or verify that they are in it. `version`: that
        of the request.

        `submit` passes the command to the shard of the transactional id.
        """
        self._check_and_submit(wanted, version, self._topics.partition_refusal, done, submit)

    @staticmethod
    def _check_and_submit(
        wanted: RequestedPartitions,
        version: int,
        refusal: Refusal,
        done: Callable[[PartitionCodes], None],
        submit: Submit,
    ) -> None:
        by_client = version < BATCHED_FROM
        wrong = None
        for tp in wanted.partitions:
            code = refusal(tp, by_client)
            if code:
                wrong = wrong or {}
                wrong[tp] = code
        if wrong or not wanted.partitions:
            done(wanted.not_attempted(wrong or {}))
        else:
            submit(wanted.to_command(version, done))

    @handles(ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, resource="TransactionalId", operation="Write", also=(("Group", "Read"),))
    def add_offsets(self, context: Context, request: AddOffsetsToTxnRequest) -> None:
        """Add the partition with a group's offsets to the transaction. Needs Read on the group as well."""
        context.check_allowed(_WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        context.check_allowed(Operation.READ, ResourceType.GROUP, request.group_id)
        version = context.api_version

        def send_response(outcome: ApiError | None) -> None:
            context.send_reply(add_offsets_response(version, outcome))

        def located(outcome: TopicPartition | ApiError) -> None:
            if isinstance(outcome, ApiError):
                send_response(outcome)
            else:
                self._transactions.submit_command(add_offsets_command(request, outcome, send_response))

        if request.group_id:
            self._topics.offsets_of(request.group_id, located)
        else:
            send_response(ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty"))

    @handles(ApiKey.END_TXN, 0, 5, resource="TransactionalId", operation="Write")
    def end_txn(self, context: Context, request: EndTxnRequest) -> None:
        """Commit or abort. The response waits until the decision is committed, not for the markers."""
        context.check_allowed(_WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        version = context.api_version

        def send_response(outcome: ProducerIdentity | ApiError) -> None:
            context.send_reply(end_response(version, outcome))

        self._transactions.submit_command(end_command(request, version, send_response))


def _may_write_idempotently(context: Context) -> bool:
    if context.is_allowed(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, logs=False):
        return True
    # The denial is logged only if both are denied.
    return context.is_allowed_anywhere(_WRITE, ResourceType.TOPIC) or context.is_allowed(
        Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER
    )


def _refused_response(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_epoch=NO_PRODUCER_EPOCH)


def _idempotent_response(outcome: int | Failure) -> InitProducerIdResponse:
    if isinstance(outcome, Failure):
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    return InitProducerIdResponse(producer_id=outcome, producer_epoch=0)
