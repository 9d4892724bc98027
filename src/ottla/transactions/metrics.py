"""The metrics of transactions: the number of transactional ids, their states, and pending markers.

Zone: deterministic. Values are read from the state machines at each scrape. Kafka has metrics of loading and markers;
the counts of ids and states are Ottla's own, and named as Kafka names those of groups.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Final

from ottla.metrics import Registry
from ottla.transactions.service import Transactions
from ottla.transactions.state import Transaction, TransactionStatus

_PREFIX: Final = "kafka_coordinator_transaction_transactionstatemanager_"
_MARKERS: Final = "kafka_coordinator_transaction_transactionmarkerchannelmanager_"


class TransactionMetrics:
    """Registers the metrics of one broker's transactions."""

    def __init__(self, registry: Registry, transactions: Transactions) -> None:
        self._transactions = transactions
        gauge = registry.add_gauge
        gauge(f"{_PREFIX}numtransactionalids", "Transactional ids coordinated here.", self._id_count)
        for status in TransactionStatus:
            name = f"{_PREFIX}num{status.label.lower()}"
            gauge(name, f"Transactional ids in the state {status.label}.", partial(self._in_state, status))
        gauge(f"{_PREFIX}partitionsloading", "Partitions of __transaction_state being loaded.", self._loading_count)
        gauge(
            f"{_MARKERS}pendingtransactions",
            "Decided transactions whose markers are not all written.",
            lambda: float(transactions.pending_count),
        )

    def _all_transactions(self) -> Iterator[Transaction]:
        for machine in self._transactions.machines():
            yield from machine.transactions.values()

    def _id_count(self) -> float:
        return float(sum(len(machine.transactions) for machine in self._transactions.machines()))

    def _in_state(self, status: TransactionStatus) -> float:
        return float(sum(txn.status is status for txn in self._all_transactions()))

    def _loading_count(self) -> float:
        return float(self._transactions.loading_count)
