"""The wiring of the broker's cluster side: membership, metadata, controller, and requests to them.

Zone: deterministic. Wiring only; `ottla.cluster` makes the decisions.
"""

from __future__ import annotations

from collections.abc import Callable

from ottla.broker.stores import Stores
from ottla.broker_client import BrokerClient
from ottla.cluster.cluster import Cluster
from ottla.cluster.config_changes import ConfigChanges
from ottla.cluster.config_writer import ConfigWriter
from ottla.cluster.controlled_shutdown import ControlledShutdown
from ottla.cluster.controller.controller_election import ControllerElector
from ottla.cluster.epoch_lookup import EpochLookup
from ottla.cluster.handlers.all_handlers import HandlerContext, cluster_handlers
from ottla.cluster.handlers.client_handlers import Ranges
from ottla.cluster.image import Delta
from ottla.cluster.log_dir_events import LogDirEvents
from ottla.cluster.membership import Membership, MembershipSteps
from ottla.cluster.producer_ids import ProducerIds
from ottla.cluster.topic_requests import TopicRequests
from ottla.effects import Effects
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.seams import Session, World


class ControlPlane:
    """The cluster side of one broker."""

    def __init__(
        self,
        cluster: Cluster,
        world: World,
        stores: Stores,
        effects: Effects,
        purgatory: Purgatory,
        peers: BrokerClient,
        fence: ControlFence,
        steps: MembershipSteps,
    ) -> None:
        """Opens the metadata store. Raises Failure or CorruptStore when the embedded one cannot be read."""
        store = stores.open_store(self.on_node, self.on_session)
        clock, entropy = world.clock, world.entropy
        self._store = store
        node_id = cluster.node_id
        self.changes = ConfigChanges(store, cluster, clock, purgatory, effects.queue_effect)
        self.seat = ControllerElector(
            node_id,
            store,
            clock,
            entropy,
            peers,
            world.network,
            purgatory,
            lambda: cluster.config,
            effects.queue_effect,
        )
        self.membership = Membership(cluster, self.changes, self.seat, store, fence, purgatory, clock, entropy, steps)
        self.log_dir_events = LogDirEvents(store, purgatory, node_id, cluster.config.log_dir_failure_timeout_ms)
        self.departure = ControlledShutdown(cluster, fence, peers, purgatory)
        self.topics = topics = TopicRequests(cluster, self.seat, peers, stores.is_own)
        alterations = ConfigWriter(store, cluster)
        self.producer_ids = ProducerIds(store, node_id)
        fence.look_up = EpochLookup(store, fence).look_up
        self._room = HandlerContext(cluster, self.changes, alterations, topics, fence, world.network)

    def handler_objects(self, ranges: Ranges) -> list[object]:
        """The objects whose methods are declared as handlers."""
        return cluster_handlers(self._room, ranges)

    def on_session(self, state: Session, session_id: int) -> None:
        """React to a new session with the metadata store, or to another state of it."""
        self.membership.on_session(state, session_id)

    def on_node(self, path: str) -> None:
        """React to the change of a watched node."""
        self._store.on_node_changed(path)

    def settings_changed(self, delta: Delta) -> None:
        """Inform the controller, if it is on this broker: other settings may allow an election (unclean elections)."""
        office = self.seat.controller
        if office is None:
            return
        for name in delta.configured:
            office.on_settings_changed(name)
        if delta.broker_config:
            office.on_settings_changed(None)

    def leave_cluster(self, done: Callable[[], None], hand_over: bool) -> None:
        """Hand leaderships over if another broker can take them; then leave the cluster."""

        def left() -> None:
            self.membership.leave_cluster()
            done()

        if hand_over and self.membership.is_registered and self.departure.is_needed:
            self.departure.begin_shutdown(left)
        else:
            left()
