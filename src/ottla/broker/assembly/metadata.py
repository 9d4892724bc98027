"""The metadata store of a broker and what works on it: the fence, elections, settings, requests to the controller.

Zone: deterministic. Construction only; `ottla.cluster` makes the decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from ottla.broker.assembly.foundation import Foundation
from ottla.broker.listener import BrokerListener
from ottla.broker.ready_check import ReadyCheck
from ottla.broker.startup import Startup
from ottla.broker.stores import Stores
from ottla.cluster.acls.acl_store import AclStore
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.config_writer import ConfigWriter
from ottla.cluster.controlled_shutdown import ControlledShutdown
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.cluster.entities.entity_reader import EntityReader
from ottla.cluster.epoch_lookup import EpochLookup
from ottla.cluster.features.feature_store import FeatureStore
from ottla.cluster.log_dir_events import LogDirEvents
from ottla.cluster.membership import Membership, MembershipSteps
from ottla.cluster.producer_ids import ProducerIds
from ottla.cluster.tokens.token_store import TokenStore
from ottla.cluster.topic_requests import TopicRequests
from ottla.replication.control import ControlFence
from ottla.seams import Session


class MetadataWing(NamedTuple):
    """The cluster side of one broker, without its membership."""

    stores: Stores
    fence: ControlFence
    changes: ConfigChanges
    alterations: ConfigWriter
    seat: ControllerElector
    topics: TopicRequests
    producer_ids: ProducerIds
    log_dir_events: LogDirEvents
    acls: AclStore | None
    """None without an authorizer."""
    tokens: TokenStore | None
    """None without delegation tokens."""
    features: FeatureStore


def build_metadata(
    base: Foundation,
    entities: EntityReader,
    on_session: Callable[[Session, int], None],
    on_new_controller: Callable[[], None],
    on_failure_not_reported: Callable[[], None],
) -> MetadataWing:
    """Create the objects; none of them uses the store before it is open."""
    cluster, world, later = base.cluster, base.world, base.effects.queue_effect
    stores = Stores(world, base.effects, on_session)
    store = stores.watched
    seat = ControllerElector(
        base.node_id,
        store,
        world.clock,
        world.entropy,
        base.peers,
        world.network,
        base.purgatory,
        lambda: cluster.config,
        later,
    )
    timeout_ms = base.config.log_dir_failure_timeout_ms
    return MetadataWing(
        stores,
        ControlFence(base.node_id, EpochLookup(store).read_epoch, on_new_controller),
        ConfigChanges(store, cluster, world.clock, base.purgatory, later, entities),
        ConfigWriter(store, cluster, entities),
        seat,
        TopicRequests(cluster, seat, base.peers, stores.is_own),
        ProducerIds(store, base.node_id),
        LogDirEvents(store, base.purgatory, base.node_id, timeout_ms, on_failure_not_reported),
        None if base.authorizer is None else AclStore(store, base.authorizer, world.clock, base.purgatory),
        None if base.login.tokens is None else TokenStore(store, base.login.tokens, world.clock, base.purgatory),
        FeatureStore(store, base.purgatory),
    )


def build_membership(base: Foundation, metadata: MetadataWing, steps: MembershipSteps) -> Membership:
    """Create the object that joins and leaves the cluster. `steps` need the logs and their replicas."""
    clock, entropy = base.world.clock, base.world.entropy
    store, fence = metadata.stores.watched, metadata.fence
    steps = steps._replace(read_features=metadata.features.read_all)
    if metadata.acls is not None:
        steps = steps._replace(read_acls=metadata.acls.read_all)
    if metadata.tokens is not None:
        steps = steps._replace(read_tokens=metadata.tokens.read_all)
    return Membership(
        base.cluster, metadata.changes, metadata.seat, store, fence, base.purgatory, clock, entropy, steps
    )


def build_ready_check(
    base: Foundation, metadata: MetadataWing, startup: Startup, listener: BrokerListener
) -> ReadyCheck:
    """Create the object that decides when the broker serves clients."""
    store = metadata.stores.watched
    return ReadyCheck(base.cluster, store, metadata.seat, startup, base.dispatch, base.purgatory, listener)


def build_shutdown(base: Foundation, metadata: MetadataWing, membership: Membership) -> ControlledShutdown:
    """Create the object that hands leaderships over before the broker leaves."""
    return ControlledShutdown(base.cluster, membership, metadata.fence, base.peers, base.purgatory)
