"""Registers the metrics of all wings.

Zone: deterministic. Construction only.
"""

from __future__ import annotations

from ottla.broker.assembly.entities import EntityWing
from ottla.broker.assembly.foundation import Foundation
from ottla.broker.coordination.coordinators import BrokerCoordinators
from ottla.broker.exporter import ExporterMetrics
from ottla.broker.metrics import BrokerMetrics
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.groups.metrics import GroupMetrics
from ottla.metrics import Registry
from ottla.replication.replica_manager import ReplicaManager
from ottla.security.quotas.quota_metrics import declare_metrics as declare_quotas
from ottla.storage.cleaning.metrics import declare_metrics as declare_cleaner
from ottla.transactions.metrics import TransactionMetrics


def build_metrics(
    base: Foundation,
    seat: ControllerElector,
    replicas: ReplicaManager,
    coordinators: BrokerCoordinators,
    entities: EntityWing,
) -> Registry:
    """Register everything; nothing is computed before a scrape."""
    clock, cluster, hosted = base.world.clock, base.cluster, base.hosted
    measures = BrokerMetrics(hosted, base.dispatch, base.logs, replicas.shared)
    registry = measures.registry
    measures.register_fetchers(replicas.fetchers)
    measures.register_moves(replicas.moves)
    if base.logs.cleaner is not None:
        declare_cleaner(registry, base.logs.cleaner)
    measures.register_transactions(lambda: clock.now().wall_ms, lambda: cluster.config.transaction_max_timeout_ms)
    seat.declare_metrics(registry)
    declare_quotas(registry, entities.throttles, clock)
    entities.telemetry.declare_metrics(registry)

    def end_of(topic: str, partition: int) -> int | None:
        found = hosted.find_partition(topic, partition)
        return None if found is None else found.high_watermark

    GroupMetrics(registry, coordinators.groups, end_of)
    TransactionMetrics(registry, coordinators.transactions)
    ExporterMetrics(registry, hosted, lambda: cluster.image, lambda: seat.controller is not None)
    return registry
