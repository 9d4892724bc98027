"""A Produce request whose batches begin transactions in their partitions: first their coordinator is asked (KIP-890).

Zone: deterministic. What happens to a Produce request before it runs; asking is `verifier`'s, the request `produce`'s.

A batch that came late, after its transaction had been ended, would open one that nobody ends, and hold up every reader
of committed records. So the leader takes the first batch of a transaction only when the coordinator knows that the
partition is in it; the next ones are of a transaction that is open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from ottla.errors import ApiError, ErrorCode
from ottla.record.batch import CONTROL, HEADER_SIZE, MAGIC_V2, TRANSACTIONAL, unpack_header
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.verification_guards import VerificationGuard
from ottla.replication.partition_registry import Topics, writable
from ottla.replication.produce.batch_preprocessing import BatchItem, RefusedBatch
from ottla.replication.produce.verifier import VerificationCodes, VerificationRequest, Verifier
from ottla.seams import Clock

ADDING_VERSION: Final = 12
"""Produce from here on is of a client that leaves adding partitions to their leaders (transaction version 2)."""
ABORTABLE_VERSION: Final = 11
"""Produce from here on knows TRANSACTION_ABORTABLE."""
_RETRIABLE: Final = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
"""Clients do not expect these of a Produce; Kafka says NOT_ENOUGH_REPLICAS, on which all of them try again."""

PartitionSlots = list[tuple[int, Partition, VerificationGuard]]
Beginning = tuple[int, Partition, tuple[int, int]]
"""An item that begins a transaction in its partition: (place, partition, (producer id, epoch))."""


def unverified(version: int, topics: Topics, items: Sequence[BatchItem]) -> Iterator[Beginning]:
    """Items that begin a transaction in their partition."""
    for at, (name, index, records) in enumerate(items):
        partition = writable(topics, name, index)
        if partition is not None and isinstance(records, memoryview):
            identity = beginning(partition, records, version >= ADDING_VERSION)
            if identity is not None:
                yield at, partition, identity


def beginning(partition: Partition, records: memoryview, adds: bool) -> tuple[int, int] | None:
    """Producer id and epoch of a batch that begins a transaction here: its coordinator has to be asked first.

    None: it is of none, of one that is open here, written already, or refused anyway. `adds`: its producer leaves
    it to the leader to add the partition, so it is asked about even if nothing is verified.
    """
    if not (adds or partition.shared.verifies) or not partition.is_leader or len(records) < HEADER_SIZE:
        return None
    header = unpack_header(records, 0)
    producer_id, epoch = header[9], header[10]
    if header[3] != MAGIC_V2 or header[5] & (TRANSACTIONAL | CONTROL) != TRANSACTIONAL:
        return None
    if producer_id < 0 or epoch < 0:
        return None
    log = partition.log
    try:
        if log.producers.is_open(producer_id, epoch) or log.check_producer(header) is not None:
            return None
    except ApiError:
        return None
    return producer_id, epoch


class Verification:
    """The batches of one request that wait for the word of their coordinator."""

    def __init__(
        self, clock: Clock, version: int, items: Sequence[BatchItem], run: Callable[[Sequence[BatchItem]], None]
    ) -> None:
        """`version`: of Produce. `run` goes on with the items, in which refused ones have their error."""
        self._clock = clock
        self._version = version
        self._items: list[BatchItem] = list(items)
        self._run = run
        self._places: PartitionSlots = []

    def start(self, verifier: Verifier, transactional_id: str, beginnings: Iterable[Beginning]) -> bool:
        """Ask, and run the request when the answer is here; whether it has run already.

        `beginnings`: the items that begin a transaction (`unverified`).
        """
        asked: dict[Partition, None] = {}
        producer: tuple[int, int] | None = None
        for at, partition, identity in beginnings:
            producer = producer or identity
            if identity != producer:
                error = ApiError(ErrorCode.INVALID_PRODUCER_ID_MAPPING, "a request with batches of several producers")
                self._refuse(at, partition, error)
                continue
            asked[partition] = None
            guard = partition.guards.begin_verification(*identity)
            guard.adds = self._version >= ADDING_VERSION
            self._places.append((at, partition, guard))
        assert producer is not None, "a request without such batches is not verified"
        partitions = [partition.tp for partition in asked]
        add = self._version >= ADDING_VERSION
        codes = verifier.ask_at_once(
            VerificationRequest(transactional_id, *producer, partitions, add, self._on_verified)
        )
        if codes is not None:
            self._on_verified(codes)
        return codes is not None

    def hold(self, items: Sequence[BatchItem]) -> None:
        """Take the same items from where they stay while the answer is waited for; refused ones stay refused."""
        for at, (_, _, records) in enumerate(self._items):
            if isinstance(records, memoryview):
                self._items[at] = items[at]

    def _on_verified(self, codes: VerificationCodes) -> None:
        if any(partition.log.closed for _, partition, _ in self._places):
            return  # this broker has stopped, and nobody waits any more
        for at, partition, guard in self._places:
            code = codes[partition.tp]
            if code is ErrorCode.NONE:
                guard.passed = True
            else:
                self._refuse(at, partition, refusal(code, self._version))
        try:
            self._run(self._items)
        finally:
            for _, partition, guard in self._places:
                partition.guards.end(guard)

    def _refuse(self, at: int, partition: Partition, error: ApiError) -> None:
        name, index, records = self._items[at]
        assert isinstance(records, memoryview), "only records are verified"
        partition.note_refused(records, error, self._clock.now())
        self._items[at] = (name, index, RefusedBatch(error))


def refusal(code: ErrorCode, version: int) -> ApiError:
    """The coordinator's error as producers of that version of Produce know it."""
    if code in _RETRIABLE or (code is ErrorCode.CONCURRENT_TRANSACTIONS and version < ADDING_VERSION):
        text = f"whether the partition is in the transaction cannot be told now: {code.name}"
        return ApiError(ErrorCode.NOT_ENOUGH_REPLICAS, text)
    if code is ErrorCode.PRODUCER_FENCED:
        return ApiError(ErrorCode.INVALID_PRODUCER_EPOCH, "another producer has taken the transactional id over")
    if code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED or (
        code is ErrorCode.TRANSACTION_ABORTABLE and version < ABORTABLE_VERSION
    ):
        code = ErrorCode.INVALID_TXN_STATE
    return ApiError(code, "the partition is not in the transaction")
