"""Verifies transactions before TxnOffsetCommit opens them in a partition of `__consumer_offsets` (KIP-890).

Zone: deterministic. Connects the handler of TxnOffsetCommit with this broker's verifier; Produce has `verification`.
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

    def open_transaction(
        self, transactional_id: str, producer: JournalProducer, partition: int, adds: bool, run: RunEffects
    ) -> None:
        """Ask the coordinator, then call `run` with its code; at once with NONE if there is nothing to ask.

        That is so if the transaction is open here, or if the partition is not led here: then `run` fails anyway.
        """
        found = self._hosted.find_partition(CONSUMER_OFFSETS, partition)
        if found is None or not found.is_leader or not _is_to_ask(found, producer, adds):
            run(ErrorCode.NONE)
        else:
            self._verify_partition(transactional_id, producer, found, adds, run)

    def _verify_partition(
        self, transactional_id: str, producer: JournalProducer, partition: Partition, adds: bool, run: RunEffects
    ) -> None:
        # The guard is registered before the question is asked: if the transaction ends before the answer comes,
        # `may_open` refuses the guard. Otherwise a late TxnOffsetCommit would open a transaction that no marker ends.
        guard = partition.leader_role.guards.begin_verification(*producer)

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
        return  # the broker has stopped: no client waits any more
    code = codes[partition.tp]
    guard.passed = code is ErrorCode.NONE
    if guard.passed and not partition.leader_role.guards.may_open(guard.producer_id, guard.epoch):
        code = ErrorCode.CONCURRENT_TRANSACTIONS  # the transaction has ended since the answer: the client retries
    try:
        # The guard is valid during `run`, whose append opens the transaction under it, and not longer.
        run(code)
    finally:
        partition.leader_role.guards.end_verification(guard)
