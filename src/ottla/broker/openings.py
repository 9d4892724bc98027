"""Transactions that are about to be opened in partitions of groups: first their coordinators are asked (KIP-890).

Zone: deterministic. Between the handler of TxnOffsetCommit and the verifier of this broker; Produce has `verification`.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.cluster.image import CONSUMER_OFFSETS
from ottla.coordinator.shard import Producer
from ottla.errors import ErrorCode
from ottla.replication.guards import Guard
from ottla.replication.hosted import Hosted
from ottla.replication.partition import Partition
from ottla.replication.verifier import Codes, Question, Verifier

Run = Callable[[ErrorCode], None]


class Openings:
    """Implements `Transactions` of `ottla.groups.txn_offset_handlers`."""

    def __init__(self, hosted: Hosted, verifier: Verifier) -> None:
        self._hosted = hosted
        self._verifier = verifier

    def open(self, transactional_id: str, producer: Producer, partition: int, adds: bool, run: Run) -> None:
        """Ask, unless it is open here, or the partition is not led here: then whoever runs is turned away anyway."""
        found = self._hosted.find(CONSUMER_OFFSETS, partition)
        if found is None or not found.is_leader or not _is_to_ask(found, producer, adds):
            run(ErrorCode.NONE)
        else:
            self._ask(transactional_id, producer, found, adds, run)

    def _ask(self, transactional_id: str, producer: Producer, partition: Partition, adds: bool, run: Run) -> None:
        guard = partition.guards.begin(*producer)

        def answered(codes: Codes) -> None:
            _answered(partition, guard, codes, run)

        question = Question(transactional_id, *producer, [partition.tp], adds, answered)
        codes = self._verifier.ask_at_once(question)
        if codes is not None:
            answered(codes)


def _is_to_ask(partition: Partition, producer: Producer, adds: bool) -> bool:
    return (adds or partition.shared.verifies) and not partition.log.producers.is_open(*producer)


def _answered(partition: Partition, guard: Guard, codes: Codes, run: Run) -> None:
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
