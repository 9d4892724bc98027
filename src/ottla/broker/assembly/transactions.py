"""The transaction coordinator of a broker, and the verifier that asks the coordinators of its producers.

Zone: deterministic. Construction only; `ottla.transactions` has the coordinator.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.broker.assembly.foundation import Foundation
from ottla.broker.coordination.local_verification import LocalVerification
from ottla.broker.coordination.transaction_cluster_view import InternalTopics, TransactionClusterView
from ottla.config.broker import BrokerConfig
from ottla.coordinator.shard_runtime import RuntimeContext
from ottla.replication.marker_handlers import WriteHere
from ottla.replication.produce.verifier import LocalCoordinator, Verifier
from ottla.transactions.admin_handlers import TransactionAdminHandlers
from ottla.transactions.codec import TransactionCodec
from ottla.transactions.machine import Policy
from ottla.transactions.producer_handlers import ProducerHandlers
from ottla.transactions.service import TOPIC, IdSource, Transactions
from ottla.transactions.state import TransactionVersion, VersionOfCluster


class TransactionWing(NamedTuple):
    """The coordinator of transactions, its handlers, and the verifier."""

    transactions: Transactions
    view: TransactionClusterView
    producers: ProducerHandlers
    admin: TransactionAdminHandlers
    verifier: Verifier


def build_transactions(
    base: Foundation,
    ids: IdSource,
    topics: InternalTopics,
    write_here: WriteHere | None,
    version: VersionOfCluster | None = None,
) -> TransactionWing:
    """Create the objects. `write_here` writes markers to partitions of this broker; `version`: that of the cluster's
    transactions; the newest one by default.

    None: this broker gets requests from itself like from others, for markers and for verification.
    """
    config, clock, cluster = base.config, base.world.clock, base.cluster
    version = version or TransactionVersion()
    view = TransactionClusterView(cluster, base.hosted, topics, clock)
    tools = RuntimeContext(
        clock,
        base.purgatory,
        base.effects.queue_effect,
        TransactionCodec(version),
        buffer_size=config.transaction_state_log_load_buffer_size,
    )
    transactions = Transactions(
        tools,
        _transaction_policy(config, version),
        ids,
        base.peers,
        view,
        None if write_here is None else (base.node_id, write_here),
        config.request_timeout_ms,
    )
    producers = ProducerHandlers(transactions, ids, view)
    admin = TransactionAdminHandlers(transactions, lambda: clock.now().wall_ms)
    ask_local = None if write_here is None else LocalVerification(transactions, producers).verify_here
    return TransactionWing(transactions, view, producers, admin, _new_verifier(base, ask_local))


def _new_verifier(base: Foundation, ask_local: LocalCoordinator | None) -> Verifier:
    config = base.config
    return Verifier(
        base.peers,
        base.world.clock,
        base.purgatory,
        base.effects.queue_effect,
        lambda transactional_id: base.leaders.coordinator_of(TOPIC, transactional_id),
        ask_local,
        config.request_timeout_ms,
        config.add_partitions_to_txn_retry_backoff_ms,
        config.add_partitions_to_txn_retry_backoff_max_ms,
    )


def _transaction_policy(config: BrokerConfig, version: VersionOfCluster) -> Policy:
    return Policy(
        config.transaction_max_timeout_ms,
        config.transactional_id_expiration_ms,
        config.transaction_abort_timed_out_transaction_cleanup_interval_ms,
        config.transaction_remove_expired_transaction_cleanup_interval_ms,
        version,
    )
