"""Verifies the first batch of a transaction in each partition with the transaction's coordinator (KIP-890).

Zone: deterministic. A step of `slow_produce`; `verifier` asks the coordinators.

A batch that arrives after the end of its transaction would open one that no coordinator ends, and would hold up every
reader of committed records. So a leader accepts the first batch of a transaction only when the coordinator confirms
that the partition is part of it; later batches belong to a transaction that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CONTROL, HEADER_SIZE, MAGIC_V2, TRANSACTIONAL, unpack_header
from ottla.record.header_fields import ATTRIBUTES, MAGIC, PRODUCER_EPOCH, PRODUCER_ID
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.verification_guards import VerificationGuard
from ottla.replication.partition_registry import Topics, find_writable
from ottla.replication.produce.produce_items import BatchItem, refuse_item
from ottla.replication.produce.script import Script, wait_for_ever
from ottla.replication.produce.verifier import VerificationCodes, VerificationRequest, Verifier
from ottla.seams import Clock

ADDING_VERSION: Final = 12
"""From this version of Produce on the partition's leader adds the partition to the transaction (version 2 of those)."""
ABORTABLE_VERSION: Final = 11
"""From this version of Produce on clients know TRANSACTION_ABORTABLE."""
_RETRIABLE: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Clients do not expect these codes from Produce; like Kafka, answer NOT_ENOUGH_REPLICAS, on which all retry."""

PartitionSlots = list[tuple[int, Partition, VerificationGuard]]
Beginning = tuple[int, Partition, tuple[int, int]]
"""An item that begins a transaction in its partition: (index, partition, (producer id, epoch))."""


def find_beginnings(version: int, topics: Topics, items: Sequence[BatchItem]) -> Iterator[Beginning]:
    """The items that begin a transaction in their partition."""
    for at, (name, index, records) in enumerate(items):
        partition = find_writable(topics, name, index)
        if partition is not None and isinstance(records, memoryview):
            identity = beginning_producer(partition, records, version >= ADDING_VERSION)
            if identity is not None:
                yield at, partition, identity


def beginning_producer(partition: Partition, records: memoryview, adds: bool) -> tuple[int, int] | None:
    """Producer id and epoch of a batch that begins a transaction here, so that its coordinator has to be asked first.

    None if there is nothing to ask. `adds`: the leader has to add the partition to the transaction, so the coordinator
    is asked even if verification is switched off.
    """
    # 1. Verification is off, or this replica refuses the batch anyway.
    if not (adds or partition.shared.verifies) or not partition.is_leader or len(records) < HEADER_SIZE:
        return None
    # 2. The batch belongs to no transaction; markers (CONTROL) are refused later.
    header = unpack_header(records, 0)
    producer_id, epoch = header[PRODUCER_ID], header[PRODUCER_EPOCH]
    if header[MAGIC] != MAGIC_V2 or header[ATTRIBUTES] & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL:
        return None
    if producer_id < 0 or epoch < 0:
        return None
    # 3. Its transaction is open here already, or the batch is a duplicate, or its sequence is refused by the append.
    log = partition.log
    try:
        # A duplicate of a transaction that has ended must not ask: the coordinator would refuse it, and the producer
        # would take a batch that was written for a failed one.
        if log.producers.is_open(producer_id, epoch) or log.check_producer(header) is not None:
            return None
    except ApiError:
        return None
    return producer_id, epoch


class Verification:
    """The batches of one request that a coordinator has to confirm."""

    __slots__ = ("_clock", "_has_waited", "_items", "_version", "_waiting")

    def __init__(self, clock: Clock, version: int, items: list[BatchItem]) -> None:
        """`version`: of Produce. Refused items are replaced by their errors."""
        self._clock = clock
        self._version = version
        self._items = items
        self._waiting: PartitionSlots = []
        self._has_waited = False
        """Whether the coordinator's answer came in a later turn."""

    def verify_batches(self, verifier: Verifier, transactional_id: str, topics: Topics) -> Script[None]:
        """Ask the coordinator about the items that begin a transaction. `end_verification` has to follow in any case,
        after the appends."""
        beginnings = list(find_beginnings(self._version, topics, self._items))
        if not beginnings:
            return
        producer = beginnings[0][2]
        for at, partition, identity in beginnings:
            if identity != producer:  # a request has one transactional id, so at most one of them can be right
                error = ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a request with batches of several producers")
                self._refuse_item(at, partition, error)
                continue
            guard = partition.leader_role.guards.begin_verification(*identity)
            guard.adds = self._version >= ADDING_VERSION
            self._waiting.append((at, partition, guard))
        codes: VerificationCodes = yield partial(self._ask_coordinator, verifier, transactional_id, producer)
        # The broker has stopped: the connection is gone, and the logs take no appends.
        if any(partition.log.closed for _, partition, _ in self._waiting):
            yield from wait_for_ever()
        for at, partition, guard in self._waiting:
            code = codes[partition.tp]
            if code is not ErrorCode.NONE:
                self._refuse_item(at, partition, producer_error(code, self._version))
            elif guard.role_changed and partition.is_leader:
                self._refuse_item(at, partition, _unverified_error())
            else:
                guard.passed = True
        if self._has_waited:
            self._refuse_unverified(topics)

    def end_verification(self) -> None:
        """End the verification: it counts for the appends of this request only."""
        for _, partition, guard in self._waiting:
            partition.leader_role.guards.end_verification(guard)
        self._waiting.clear()

    def _refuse_unverified(self, topics: Topics) -> None:
        """Refuse batches that begin a transaction now, but did not when the coordinator was asked.

        This broker became the leader of their partition meanwhile, or a marker ended the transaction that was open.
        """
        asked = {at for at, _, _ in self._waiting}
        for at, partition, _ in find_beginnings(self._version, topics, self._items):
            if at not in asked:
                self._refuse_item(at, partition, _unverified_error())

    def _ask_coordinator(
        self,
        verifier: Verifier,
        transactional_id: str,
        producer: tuple[int, int],
        done: Callable[[VerificationCodes], None],
    ) -> None:
        partitions = list(dict.fromkeys(partition for _, partition, _ in self._waiting))
        add = self._version >= ADDING_VERSION
        tps = [partition.tp for partition in partitions]
        codes = verifier.ask_at_once(VerificationRequest(transactional_id, *producer, tps, add, done))
        if codes is None:
            self._has_waited = True
        else:
            done(codes)

    def _refuse_item(self, at: int, partition: Partition, error: ApiError) -> None:
        _, _, records = self._items[at]
        assert isinstance(records, memoryview), "only records are verified"
        # So that later batches of the producer get the same error until this one has come again (`sequence_gaps`).
        partition.leader_role.note_refused(records, error, self._clock.now())
        refuse_item(self._items, at, error)


def _unverified_error() -> ApiError:
    # Any error that is not retriable would fail the transaction, or lose records of clients that commit in spite of it.
    text = "the partition changed while the transaction coordinator was asked; retry"
    return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text)


def producer_error(code: ErrorCode, version: int) -> ApiError:
    """The error for a producer of that version of Produce when the coordinator answered `code`."""
    # 1. The coordinator may answer otherwise in a moment: a code on which every producer retries.
    if code in _RETRIABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDING_VERSION):
        text = f"the transaction coordinator could not confirm the partition now ({code.name}); retry"
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    # 2. Another instance of the producer has the transactional id: Produce has an older code for that.
    if code is ErrorCode.PRODUCER_FENCED:
        return ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "another producer has taken over the transactional id")
    # 3. Codes that this producer does not know, or would take for its own missing authorization.
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (
        code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION
    ):
        code = ErrorCode.INVALID_TXN_STATE
    return ApiError(code, "the partition is not in the transaction")
