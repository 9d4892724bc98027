"""Transactions that are about to be opened in partitions of groups: first their coordinators are asked (KIP-890).

Zone: deterministic. Between the handler of TxnOffsetCommit and the verifier of this broker; Produce has `verification`.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cluster.image import CONSUMER_OFFSETS
from ottla.coordinator.shard import JournalProducer
from ottla.errors import ErrorCode
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.verification_guards import VerificationGuard
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.produce.verifier import VerificationCodes, VerificationRequest, Verifier

RunEffects = Callable[[ErrorCode], None]


class GroupTxnVerification:
    """Implements `Transactions` of `ottla.groups.handlers.txn_offset_handlers`."""

    def __init__(self, hosted: PartitionRegistry, verifier: Verifier) -> None:
        self._hosted = hosted
        self._verifier = verifier

    def open(
        self, transactional_id: str, producer: JournalProducer, partition: int, adds: bool, run: RunEffects
    ) -> None:
        """Ask, unless it is open here, or the partition is not led here: then whoever runs is turned away anyway."""
        found = self._hosted.find(CONSUMER_OFFSETS, partition)
        if found is None or not found.is_leader or not _is_to_ask(found, producer, adds):
            run(ErrorCode.NONE)
        else:
            self._verify_partition(transactional_id, producer, found, adds, run)

    def _verify_partition(
        self, transactional_id: str, producer: JournalProducer, partition: Partition, adds: bool, run: RunEffects
    ) -> None:
        guard = partition.guards.begin_verification(*producer)

        def on_response(codes: VerificationCodes) -> None:
            _on_verified(partition, guard, codes, run)

        question = VerificationRequest(transactional_id, *producer, [partition.tp], adds, on_response)
        codes = self._verifier.ask_at_once(question)
        if codes is not None:
            on_response(codes)


def _is_to_ask(partition: Partition, producer: JournalProducer, adds: bool) -> bool:
    return (adds or partition.shared.verifies) and not partition.log.producers.is_open(*producer)


def _on_verified(partition: Partition, guard: VerificationGuard, codes: VerificationCodes, run: RunEffects) -> None:
    if partition.log.closed:
        return  # this broker has stopped, and nobody waits any more
    code = codes[partition.tp]
    guard.passed = code is ErrorCode.NONE
    if guard.passed and not partition.guards.passes(guard.producer_id, guard.epoch):
        code = ErrorCode.CONCURRENT_TRANSACTIONS  # the answer was about a transaction that has ended since: ask again
    try:
        run(code)
    finally:
        partition.guards.end(guard)
