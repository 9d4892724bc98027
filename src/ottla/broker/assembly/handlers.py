"""Registers the handlers of all requests.

Zone: deterministic. Construction only. Produce, Fetch and Heartbeat are called with frames, all others with decoded
requests.
"""

from __future__ import annotations

from ottla.broker.assembly.entities import EntityWing
from ottla.broker.assembly.foundation import SLICE_PAUSE_MS, Foundation
from ottla.broker.assembly.groups import GroupWing
from ottla.broker.assembly.metadata import MetadataWing
from ottla.broker.assembly.tokens import add_tokens
from ottla.broker.assembly.transactions import TransactionWing
from ottla.broker.cluster_changes import ClusterChanges
from ottla.broker.log_dir_handlers import LogDirHandlers
from ottla.broker.log_handlers import LogHandlers
from ottla.broker.ready_check import ReadyCheck
from ottla.cluster.acls.acl_handlers import AclHandlers
from ottla.cluster.handlers.all_handlers import HandlerContext, cluster_handlers
from ottla.groups import heartbeats
from ottla.replication.control_handlers import ControlHandlers
from ottla.replication.epoch_handlers import EpochHandlers
from ottla.replication.marker_handlers import MarkerHandlers
from ottla.replication.replica_manager import ReplicaManager
from ottla.security.quotas.quota_handlers import ClientQuotaHandlers
from ottla.security.sasl.scram_handlers import ScramHandlers


def new_marker_handlers(base: Foundation) -> MarkerHandlers:
    """Create the handlers that write markers, which the transaction coordinator here calls without a request."""
    clock, is_broker, timeout_ms = base.world.clock, base.dispatch.is_broker, base.config.request_timeout_ms
    return MarkerHandlers(base.hosted, base.purgatory, clock, base.leaders, is_broker, timeout_ms)


def add_coordinators(
    base: Foundation, markers: MarkerHandlers, transactions: TransactionWing, groups: GroupWing
) -> None:
    """Register the requests of transactions and groups."""
    base.dispatch.add_handlers([markers, *groups.handlers, transactions.producers, transactions.admin])
    base.dispatch.add_hot(heartbeats.DECLARATION, groups.heartbeats.on_request)


def add_cluster(base: Foundation, metadata: MetadataWing, entities: EntityWing) -> None:
    """Register the requests about the cluster, its topics, its settings and quotas."""
    context = HandlerContext(
        base.cluster,
        metadata.changes,
        metadata.alterations,
        metadata.topics,
        metadata.fence,
        base.world.network,
        base.audit,
        entities.throttles.admit_mutations,
        entities.resources,
        entities.telemetry.note_software,
        metadata.features,
    )
    acls = AclHandlers(
        metadata.stores.watched,
        metadata.acls,
        base.authorizer,
        base.audit,
        lambda action: base.purgatory.look_after(SLICE_PAUSE_MS, action),
    )
    quotas = ClientQuotaHandlers(entities.quotas, metadata.alterations, base.audit)
    users = ScramHandlers(base.login.users, metadata.alterations, base.audit)
    own = [acls, quotas, users, entities.telemetry]
    base.dispatch.add_handlers([*cluster_handlers(context, base.dispatch.version_ranges), *own])
    add_tokens(base, metadata)


def add_replicas(
    base: Foundation, metadata: MetadataWing, replicas: ReplicaManager, ready_check: ReadyCheck, changes: ClusterChanges
) -> None:
    """Register the requests about this broker's logs, and the controller's orders."""
    clock, is_broker = base.world.clock, base.dispatch.is_broker
    orders = ControlHandlers(
        replicas,
        metadata.fence,
        clock,
        base.purgatory,
        metadata.changes.prepare_topics,
        ready_check.readiness.mark_applied,
        changes.on_topics_deleted,
    )
    logs = LogHandlers(base.hosted, base.purgatory, clock, base.leaders, is_broker)
    epochs = EpochHandlers(base.hosted, base.leaders, replicas.removals, is_broker)
    base.dispatch.add_handlers([logs, LogDirHandlers(base.logs, replicas.moves), epochs, orders])


def add_login(base: Foundation) -> None:
    """Register the requests of logins, and hold clients back until the broker is ready."""
    base.dispatch.add_handlers([base.login.clients])
    base.dispatch.hold_clients()
