"""Builds a broker.

Zone: deterministic. Construction only: nothing is read or written before `Broker.start_broker`.
"""

from __future__ import annotations

from ottla.broker.assembly import handlers, records
from ottla.broker.assembly.entities import build_entities, new_frame_input
from ottla.broker.assembly.forward import Forward
from ottla.broker.assembly.foundation import lay_foundation
from ottla.broker.assembly.groups import build_groups
from ottla.broker.assembly.login import new_users
from ottla.broker.assembly.metadata import build_membership, build_metadata, build_ready_check, build_shutdown
from ottla.broker.assembly.metrics import build_metrics
from ottla.broker.assembly.replication import build_replicas
from ottla.broker.assembly.transactions import build_transactions
from ottla.broker.broker import Broker, Wings
from ottla.broker.cluster_changes import ClusterChanges
from ottla.broker.coordination.coordinators import BrokerCoordinators
from ottla.broker.listener import BrokerListener
from ottla.broker.startup import Startup
from ottla.cluster.image import Delta
from ottla.config.broker import BrokerConfig
from ottla.seams import Session, World


def build_broker(config: BrokerConfig, world: World, listener: BrokerListener) -> Broker:
    """Create a broker that has not started. `listener` receives its events."""
    on_change: Forward[[Delta]] = Forward("the handling of changes of the cluster")
    on_session: Forward[[Session, int]] = Forward("the handling of sessions with the metadata store")
    on_new_controller: Forward[[]] = Forward("the handling of a new controller")
    on_dir_offline: Forward[[str]] = Forward("the handling of failed log directories")

    users = new_users(config, world)
    entities = build_entities(config, world, users.on_user_config)
    base = lay_foundation(config, entities.throttled_world(world), on_change, on_dir_offline, users)
    metadata = build_metadata(base, entities.reader, on_session, on_new_controller, listener.on_failure_not_reported)
    # The coordinators come before the replicas, whose partitions report their roles to them.
    markers = handlers.new_marker_handlers(base)
    version = metadata.features.transaction_version
    transactions = build_transactions(base, metadata.producer_ids, metadata.topics, markers.write_markers, version)
    groups = build_groups(base, transactions.verifier)
    coordinators = BrokerCoordinators(groups.groups, groups.heartbeats, transactions.transactions, transactions.view)
    on_dir_failure = metadata.log_dir_events.report_failure
    replicas = build_replicas(base, metadata.fence, base.cluster.topic_config, coordinators, on_dir_failure)
    on_new_controller.bind(replicas.isr_changes.on_new_controller)
    on_dir_offline.bind(replicas.on_dir_offline)

    startup = Startup(config, base.cluster, base.logs, replicas, metadata.stores.is_own, listener)
    membership = build_membership(base, metadata, startup.membership_steps())
    on_session.bind(membership.on_session)
    ready_check = build_ready_check(base, metadata, startup, listener)
    changes = ClusterChanges(base.cluster, metadata.seat, base.logs, replicas, coordinators, ready_check, listener)
    on_change.bind(changes.on_change)

    records.add_produce(base, transactions.verifier)
    fetch = records.add_fetch(base, replicas, entities.throttles)
    handlers.add_cluster(base, metadata, entities)
    handlers.add_replicas(base, metadata, replicas, ready_check, changes)
    handlers.add_coordinators(base, markers, transactions, groups)
    handlers.add_login(base)
    return Broker(
        base,
        Wings(
            metadata,
            membership,
            build_shutdown(base, metadata, membership),
            replicas,
            coordinators,
            transactions.verifier,
            fetch,
            new_frame_input(entities, base.dispatch),
            startup,
            ready_check,
            build_metrics(base, metadata.seat, replicas, coordinators, entities),
        ),
    )
