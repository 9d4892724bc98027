"""TxnOffsetCommit: offsets that become valid when the transaction of their producer commits.

Zone: deterministic.

Version notes. From version 3 on requests name the member (KIP-447), so that a member that has lost its partitions is
refused. From version 5 on the broker adds the group to the transaction (KIP-890). Before, the broker asks the
transaction's coordinator whether the group was added: a late request would otherwise open a transaction without an end.
Version 6 names topics by id, and has GROUP_ID_NOT_FOUND (KIP-1319).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, Protocol

from ottla.acls import Operation, ResourceType
from ottla.coordinator.shard import JournalProducer
from ottla.errors import ApiError, ErrorCode
from ottla.groups.commands import Commit, CommitPartition
from ottla.groups.groups import Groups
from ottla.groups.handlers.offset_handlers import codes_for, denied_topics, refused_partition_error
from ottla.groups.records import Position
from ottla.groups.topic_ids import TXN_COMMIT_BY_ID, fill_names
from ottla.requests import Context, Parts, handles
from ottla.wire.apis import ApiKey
from ottla.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse

ADDING_VERSION: Final = 5
"""The version from which on the broker adds the group to the transaction (transaction version 2)."""
ABORTABLE_VERSION: Final = 4
"""The version from which on clients know TRANSACTION_ABORTABLE."""
_RETRIABLE: Final = (
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Errors of the transaction's coordinator. The client would take them for errors of the group's coordinator."""


class TransactionVerification(Protocol):
    """The part of the transaction coordinators that groups need (KIP-890)."""

    def open_transaction(
        self,
        transactional_id: str,
        producer: JournalProducer,
        partition: int,
        adds: bool,
        run: Callable[[ErrorCode], None],
    ) -> None:
        """Check that a producer may write to a partition of `__consumer_offsets` in its transaction.

        `adds`: add the partition to the transaction if it is missing. `run` is called once with the result; the caller
        must append its records within that call.
        """
        ...


class TxnOffsetHandlers:
    """Handler of offsets that are committed in transactions."""

    def __init__(self, groups: Groups, now_ms: Callable[[], int], transactions: TransactionVerification) -> None:
        """`now_ms` returns the wall time."""
        self._groups = groups
        self._now_ms = now_ms
        self._transactions = transactions

    @handles(
        ApiKey.TXN_OFFSET_COMMIT,
        0,
        6,
        resource="Group",
        operation="Read",
        also=(("TransactionalId", "Write"), ("Topic", "Read")),
        parts=Parts(cost_us=20, request=(("topics", "partitions"),), response=(("topics", "partitions"),)),
    )
    def txn_offset_commit(self, context: Context, request: TxnOffsetCommitRequest) -> None:
        """Commit offsets in a transaction. The response waits until their records are committed, not for the marker.

        Needs Write on the transactional id and Read on each topic as well.
        """
        context.check_allowed(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id)
        context.check_allowed(Operation.READ, ResourceType.GROUP, request.group_id)
        version = context.api_version
        by_id = version >= TXN_COMMIT_BY_ID
        if by_id:
            fill_names(request.topics, self._groups.topics)
        denied = denied_topics(context, Operation.READ, request.topics)
        items = list(self._commit_items(request))
        known = [item for item in items if item.topic not in denied and self._partition_exists(item)]

        def send_response(outcome: Sequence[ErrorCode] | ApiError) -> None:
            codes = codes_for(outcome, len(known), by_id)
            context.send_reply(_commit_response(request, known, codes, by_id, denied))

        # The transaction's coordinator is asked only about requests that can succeed.
        refused = _request_refusal(request)
        if refused is not None or not known:
            send_response(refused or [])
            return
        producer = JournalProducer(request.producer_id, request.producer_epoch)
        commit = Commit(
            send_response,
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            known,
            producer,
        )

        def run(code: ErrorCode) -> None:
            if code:
                send_response(_not_in_transaction(code, version))
            else:
                self._groups.submit_command(commit)

        partition = self._groups.partition_of(request.group_id)
        self._transactions.open_transaction(
            request.transactional_id, producer, partition, version >= ADDING_VERSION, run
        )

    def _commit_items(self, request: TxnOffsetCommitRequest) -> Iterator[CommitPartition]:
        now_ms = self._now_ms()
        for topic in request.topics:
            for each in topic.partitions:
                metadata = each.committed_metadata or ""
                position = Position(each.committed_offset, each.committed_leader_epoch, metadata, now_ms, -1)
                yield CommitPartition(topic.name, each.partition_index, position)

    def _partition_exists(self, item: CommitPartition) -> bool:
        return 0 <= item.partition < self._groups.topics.partition_count(item.topic)


def _not_in_transaction(code: ErrorCode, version: int) -> ApiError:
    """The error of the transaction's coordinator, mapped to errors that clients of that version know."""
    # The one retriable error on which a client repeats the commit here. After NOT_COORDINATOR, which is about the
    # transaction's coordinator, it would look for another coordinator of the group.
    if code in _RETRIABLE:
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    elif code is ErrorCode.PRODUCER_FENCED:
        code = ErrorCode.INVALID_PRODUCER_EPOCH
    elif code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (
        code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION
    ):
        code = ErrorCode.INVALID_TXN_STATE
    return ApiError(code, "the group's offsets are not in the transaction")


def _request_refusal(request: TxnOffsetCommitRequest) -> ApiError | None:
    """The error of a request that is invalid for every group; None when it is valid."""
    if not request.group_id:
        return ApiError(ErrorCode.INVALID_GROUP_ID, "the group id is empty")
    if not request.transactional_id:
        return ApiError(ErrorCode.INVALID_REQUEST, "the transactional id is empty")
    if request.producer_id < 0:
        return ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "there is no producer id below 0")
    if request.producer_epoch < 0:
        return ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "there is no epoch below 0")
    return None


def _commit_response(
    request: TxnOffsetCommitRequest,
    known: Sequence[CommitPartition],
    codes: Sequence[ErrorCode],
    by_id: bool,
    denied: AbstractSet[str],
) -> TxnOffsetCommitResponse:
    by_place = {(item.topic, item.partition): code for item, code in zip(known, codes, strict=True)}
    row = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        name, unknown = topic.name, refused_partition_error(topic, by_id, denied)
        rows = [
            row(partition_index=each.partition_index, error_code=by_place.get((name, each.partition_index), unknown))
            for each in topic.partitions
        ]
        named = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic
        response.topics.append(named(name=topic.name, topic_id=topic.topic_id, partitions=rows))
    return response
