"""The broker: one synchronous object that reaches the world through its seams only.

Zone: deterministic. Contains the wiring, start, stop, and the inputs of the shell (each one turn); decisions are made
in other packages.

Start: the broker reads settings from the metadata store, recovers its logs, and registers (it is `listening`: other
brokers may write to it); the controller sends what it leads and follows, and then it is `ready`.
Stop: it hands leaderships over while it still serves requests, drops waiting requests with their connections, flushes
and checkpoints its logs, and writes the marker of a clean shutdown last.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from ottla.broker.alarm import SharedAlarm
from ottla.broker.containment import Containment
from ottla.broker.control_plane import ControlPlane
from ottla.broker.coordinators import BrokerCoordinators
from ottla.broker.dispatch import Dispatch
from ottla.broker.exporter import ExporterMetrics
from ottla.broker.group_txn_verification import GroupTxnVerification
from ottla.broker.log_dir_handlers import LogDirHandlers
from ottla.broker.log_handlers import LogHandlers
from ottla.broker.metrics import BrokerMetrics
from ottla.broker.readiness import Readiness
from ottla.broker.stores import Stores
from ottla.broker.transaction_cluster_view import TransactionClusterView
from ottla.broker_client import BrokerClient
from ottla.changes import changes_state
from ottla.cluster.cluster import Cluster
from ottla.cluster.image import Delta
from ottla.cluster.leaders import ImageLeaders
from ottla.cluster.log_import import import_logs
from ottla.cluster.membership import MembershipSteps
from ottla.cluster.store.workflow import Workflow
from ottla.config.broker import BrokerConfig
from ottla.effects import Effects
from ottla.errors import ApiError, ErrorCode
from ottla.groups import heartbeats
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.replication.control_handlers import ControlHandlers
from ottla.replication.epoch_handlers import EpochHandlers
from ottla.replication.fetch import fetch
from ottla.replication.fetch.fetch import FetchHandler
from ottla.replication.fetch.fetch_session import FetchSessions
from ottla.replication.fetch.replica_selector import selector_named
from ottla.replication.marker_handlers import MarkerHandlers
from ottla.replication.partition_registry import PartitionRegistry
from ottla.replication.produce import produce
from ottla.replication.produce.produce import ProduceHandler
from ottla.replication.produce.verifier import Verifier
from ottla.replication.replica_manager import ReplicaManager
from ottla.seams import Done, Failure, Gate, Peer, Session, Slot, World
from ottla.security.broker_login import BrokerLogin
from ottla.storage.checkpoints import CorruptCheckpoint
from ottla.storage.cleaning.metrics import declare_metrics as declare_cleaner
from ottla.storage.errors import WrongDirectory
from ottla.storage.log_manager import LogManager
from ottla.transactions.service import TOPIC as TRANSACTION_STATE
from ottla.types import Endpoint
from ottla.wire.apis import ApiKey

_log = logging.getLogger(__name__)
_WARM_NS: Final = 500_000
"""Cost of compiling one pair of codecs."""
SLICE_PAUSE_MS: Final = 1
"""Pause between two slices of large requests, for other turns."""
READY_MS: Final = 2000
"""A broker that knows its controller is ready when nothing new has arrived for this time: missing partitions may stay
missing for long."""
READY_AT_MOST_MS: Final = 60_000
"""After this time the broker is ready in any case, and serves what it has."""


class Broker:
    """One broker. Implements `ottla.seams.Inputs`."""

    def __init__(self, config: BrokerConfig, world: World) -> None:
        self.config = config
        self.listening = False
        """Whether other brokers may write to it, so the listeners have to be open."""
        self.on_listening: Callable[[], None] = _ignore_event
        """Called once, when `listening` becomes true."""
        self.ready = False
        """Whether it has applied the controller's orders and serves all requests."""
        self.on_ready: Callable[[], None] = _ignore_event
        """Called once, when `ready` becomes true."""
        self.on_config: Callable[[BrokerConfig], None] = _ignore_config
        """Called with the effective settings after a change of dynamic ones."""
        self.failed: Failure | None = None
        """Why it cannot become ready."""
        self.on_unheard: Callable[[], None] = _ignore_event
        """Called when no controller took the report of a failed log directory (KIP-858): the broker has to stop."""
        self.is_wanted: Callable[[], bool] = _is_always_wanted
        """Polled during log recovery, which may take long; False aborts start-up."""
        self._world = world
        self._effects = Effects()
        self.hosted = PartitionRegistry()
        self._alarm = SharedAlarm(world.clock)
        self._containment = Containment(world.network, world.clock)
        self._purgatory = Purgatory(self._alarm, self._containment.contain_callback)
        self.logs = LogManager(world.disks, world.clock, world.entropy, config, world.workers)
        self._log_timers = self.logs.timers
        self.cluster = Cluster(config, self._purgatory)
        """Its view of the cluster."""
        self.cluster.on_change = self._on_change
        self._fence = ControlFence(config.node_id)
        self._peers = BrokerClient(world.network, world.clock, config.node_id)
        self._replicas = self._replica_manager()
        self._replicas.fetchers.on_responding = self._on_leader_responding
        self._warming: Iterator[ApiKey] = iter(())
        self._stores = Stores(world, self._effects)
        self._leaders = ImageLeaders(lambda: self.cluster.image)
        self._login = BrokerLogin(world.broker_secret, world.entropy, world.network) if world.broker_secret else None
        self._dispatch = self._new_dispatch()
        self._dispatch.hold_clients()
        self._on_frame = self._dispatch.on_frame
        self._serve_hot_requests()
        self.metrics = self._new_metrics().registry
        self._readiness = Readiness(config.node_id)
        self._has_image = False
        """Whether the controller has sent the cluster's state."""
        self._left = False

    def _new_dispatch(self) -> Dispatch:
        return Dispatch(
            self._world.network,
            lambda action: self._purgatory.look_after(SLICE_PAUSE_MS, action),
            self.config.inter_broker_listener,
            self._stores.is_own,
            self._login is not None,
            self._containment,
        )

    def _replica_manager(self) -> ReplicaManager:
        return ReplicaManager(
            self.config,
            self._world.clock,
            self.logs,
            self.hosted,
            self._purgatory,
            self._peers,
            self._fence,
            self._effects.queue_effect,
            self.cluster.topic_config,
        )

    def _new_verifier(self) -> Verifier:
        config = self.config
        return Verifier(
            self._peers,
            self._world.clock,
            self._purgatory,
            self._effects.queue_effect,
            lambda transactional_id: self._leaders.coordinator_of(TRANSACTION_STATE, transactional_id),
            config.request_timeout_ms,
            config.add_partitions_to_txn_retry_backoff_ms,
            config.add_partitions_to_txn_retry_backoff_max_ms,
        )

    def _new_metrics(self) -> BrokerMetrics:
        measures = BrokerMetrics(self.hosted, self._dispatch, self.logs, self._replicas.shared)
        measures.register_fetchers(self._replicas.fetchers)
        measures.register_moves(self._replicas.moves)
        if self.logs.cleaner is not None:
            declare_cleaner(measures.registry, self.logs.cleaner)
        clock, cluster = self._world.clock, self.cluster
        measures.register_transactions(lambda: clock.now().wall_ms, lambda: cluster.config.transaction_max_timeout_ms)
        return measures

    def _serve_hot_requests(self) -> None:
        world = self._world
        self.verifier = self._new_verifier()
        """Asks transaction coordinators for this broker's leaders."""
        contain, run_steps = self._containment.contain_defect, self._dispatch.sliced.run_steps
        slots = self.config.max_incremental_fetch_session_cache_slots
        self._fetch = FetchHandler(
            world,
            self.hosted,
            self._purgatory,
            FetchSessions(world.clock, world.entropy, slots),
            self._effects.queue_effect,
            self._dispatch.is_broker,
            self._leaders,
            selector_named(self.config.replica_selector_class),
            self._replicas.throttles.leader,
            contain,
            run_steps,
        )
        producing = (world, self.hosted, self._purgatory, self._leaders, self.verifier)
        self._dispatch.add_hot(produce.DECLARATION, ProduceHandler(*producing, contain, run_steps).on_request)
        self._dispatch.add_hot(fetch.DECLARATION, self._fetch.on_request)

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller of its cluster now."""
        return self._control.seat.controller is not None

    # -- start -------------------------------------------------------------------------------------------------------

    def start_broker(self, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster once there is a session with the metadata store; `on_ready` follows in a later turn.

        `endpoints` are the addresses for clients and other brokers. Raises Failure or CorruptStore when the first log
        directory, which contains the embedded metadata store, cannot be read."""
        steps = MembershipSteps(
            self._stored_cluster_id,
            self.logs.has_blank_dir,
            self.logs.topic_names,
            self.logs.incomplete_partitions,
            self._adopt_logs,
            self._on_found,
            self._on_failed,
        )
        self._control = control = ControlPlane(
            self.cluster,
            self._world,
            self._stores,
            self._effects,
            self._purgatory,
            self._peers,
            self._fence,
            steps,
        )
        self._coordinators = self._new_coordinators(control)
        control.membership.set_endpoints(endpoints)
        self._dispatch.add_handlers(control.handler_objects(self._dispatch.version_ranges))
        is_broker = self._dispatch.is_broker
        log_handlers = LogHandlers(self.hosted, self._purgatory, self._world.clock, self._leaders, is_broker)
        log_dirs = LogDirHandlers(self.logs, self._replicas.moves)
        orders = ControlHandlers(
            self._replicas,
            self._fence,
            self._world.clock,
            self._purgatory,
            control.changes.prepare_topics,
        )
        markers = self._marker_handlers()
        epochs = EpochHandlers(self.hosted, self._leaders, self._replicas.removals, is_broker)
        self._dispatch.add_handlers([log_handlers, log_dirs, epochs, orders, markers, *filter(None, (self._login,))])
        self._dispatch.add_handlers(self._coordinators.handler_objects())
        self._dispatch.add_hot(heartbeats.DECLARATION, self._coordinators.heartbeats.on_request)
        self.verifier.ask_local = self._coordinators.verify_here
        self._coordinators.transactions.here = self.config.node_id, markers.write_markers
        orders.on_applied = self._readiness.mark_applied
        self._replicas.on_dir_failure = lambda _: control.log_dir_events.report_failure()
        control.log_dir_events.on_not_reported = self.on_unheard
        control.seat.declare_metrics(self.metrics)
        self._coordinators.declare_metrics(self.metrics, self.hosted)
        ExporterMetrics(self.metrics, self.hosted, lambda: self.cluster.image, lambda: self.is_controller)
        self.end_turn()

    def _new_coordinators(self, control: ControlPlane) -> BrokerCoordinators:
        surroundings = TransactionClusterView(self.cluster, self.hosted, control.topics, self._world.clock)
        return BrokerCoordinators(
            self.cluster,
            self._world,
            self._purgatory,
            self._effects,
            self._replicas.shared,
            self._peers,
            control.producer_ids,
            surroundings,
            GroupTxnVerification(self.hosted, self.verifier),
        )

    def _marker_handlers(self) -> MarkerHandlers:
        timeout_ms = self.config.request_timeout_ms
        is_broker = self._dispatch.is_broker
        return MarkerHandlers(self.hosted, self._purgatory, self._world.clock, self._leaders, is_broker, timeout_ms)

    def _stored_cluster_id(self) -> str | None:
        try:
            return self.logs.stored_cluster_id()
        except WrongDirectory as wrong:
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, str(wrong)) from None
        except Failure:
            return None  # claiming that directory takes it offline later

    def _adopt_logs(self, new_id: Callable[[], bytes]) -> Workflow[None] | None:
        return self._adoption_steps(new_id) if self.config.ottla_adopt_logs and self._stores.is_own else None

    def _adoption_steps(self, new_id: Callable[[], bytes]) -> Workflow[None]:
        cluster_id = self._stored_cluster_id()
        assert cluster_id is not None, "only logs of another cluster are adopted"
        self._check_owner(cluster_id)
        try:
            found = self.logs.found_logs()
        except (Failure, CorruptCheckpoint) as error:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, f"the logs cannot be adopted: {error}") from None
        yield from import_logs(found, self.config, new_id)

    def _check_owner(self, cluster_id: str) -> None:
        try:
            self.logs.claim_directories(cluster_id, self.config.node_id, check_only=True)
        except WrongDirectory as wrong:
            raise ApiError(ErrorCode.INCONSISTENT_CLUSTER_ID, str(wrong)) from None

    def _on_found(self, cluster_id: str) -> None:
        """Recover the logs when the cluster and its settings are known. Other brokers may write from now on."""
        self._check_owner(cluster_id)
        if not self.logs.load_logs(self.cluster.topic_config, is_wanted=self.is_wanted):
            self._control.membership.leave_cluster()
            return
        self._replicas.start_checks()
        self.listening = True
        self.on_listening()

    def _on_failed(self, failure: Failure) -> None:
        _log.error("broker %d cannot start: %s", self.config.node_id, failure)
        self.failed = failure

    @changes_state
    def _check_ready(self, at_last: bool = False) -> None:
        """Become ready if nothing is missing. Called in each turn after the controller's first message."""
        if self.ready or self._left:
            return
        if not self._has_all():
            if not at_last:
                return
            node_id, missing = self.config.node_id, self._readiness.missing
            _log.warning("broker %d is ready, but the controller has not assigned %s yet", node_id, missing)
        self._report_strays()
        self._warming = self._dispatch.warm_up()
        self.ready = True
        self._dispatch.serve_clients()
        self._claim_blank_dirs()
        self.on_ready()

    def _has_all(self) -> bool:
        """Whether all orders of the controller that the broker can expect have been applied."""
        image, expected = self.cluster.image, self.cluster.expected_topics
        return self._control.seat.is_settled and self._readiness.is_complete(image, expected)

    @property
    def _message_count(self) -> int:
        """A number that grows with each message of the controller."""
        return self.cluster.image.epoch + self._readiness.applied_orders

    def _check_ready_late(self, heard: int, waited_ms: int) -> None:
        """Wait on while messages arrive, or while this broker's own controller starts; then become ready."""
        news = self._message_count
        if (news > heard or not self._control.seat.is_settled) and waited_ms < READY_AT_MOST_MS:
            self._purgatory.look_after(READY_MS, lambda: self._check_ready_late(news, waited_ms + READY_MS))
        else:
            self._check_ready(at_last=True)

    def _claim_blank_dirs(self) -> None:
        """Mark new log directories as this broker's once the controller knows that they are new. If the broker dies
        before that, its next start has to report them as new again."""
        image = self.cluster.image
        if not self._readiness.is_complete(image, self.cluster.expected_topics):
            self._purgatory.look_after(READY_MS, self._claim_blank_dirs)
            return
        self.logs.forget_missing()
        if image.cluster_id is not None and self.logs.has_blank_dir():
            self.logs.claim_directories(image.cluster_id, self.config.node_id)

    def _report_strays(self) -> None:
        """Report logs that the cluster does not know; they stay on disk, so that no data is lost."""
        for log in self.logs.online_logs():
            if self.hosted.find_partition(*log.tp) is None:
                _log.warning("%s/%s is not a replica of this broker; keeping its log on disk", log.disk.name, log.tp)

    # -- stop --------------------------------------------------------------------------------------------------------

    def hand_over_leaderships(self, done: Callable[[], None], hand_over: bool = True) -> None:
        """Hand leaderships over while the broker still serves (controlled shutdown); `done` follows in any case.
        Not hand_over: all brokers stop, so there is no broker to take them."""
        if self._left:
            self._effects.queue_effect(done)
        else:
            self._left = True
            self._control.leave_cluster(done, hand_over)
        self.end_turn()

    def stop_broker(self, done: Done[None]) -> None:
        """Leave, flush, checkpoint, write the marker of a clean shutdown; then close the metadata store."""

        def left() -> None:
            self.ready = False
            self._coordinators.stop_coordinators()
            self._replicas.shut_down()
            self.logs.stop_logs(logs_stopped)

        def logs_stopped(outcome: Failure | None) -> None:
            self._stores.close_store(lambda failure: done(outcome or failure), self._effects.queue_effect)

        self.hand_over_leaderships(left)

    def _on_leader_responding(self, leader: int, hears: bool) -> None:
        if hears:
            self.cluster.on_broker_responding(leader)
        else:
            self.cluster.on_broker_silent(leader)

    # -- changes of the cluster --------------------------------------------------------------------------------------

    def _on_change(self, delta: Delta) -> None:
        if not self._has_image and self.cluster.image.brokers:
            self._has_image = True
            heard = self._message_count
            self._purgatory.look_after(READY_MS, lambda: self._check_ready_late(heard, READY_MS))
        if delta.deleted:
            self._readiness.forget_topics(delta.deleted)
            self.logs.forget_topics(delta.deleted)
            self._coordinators.topics_deleted(delta.deleted)
        for name in delta.configured:
            self._replicas.apply_topic_config(name, self.cluster.topic_config(name))
        if delta.broker_config:
            self.logs.apply_config(self.cluster.config)
            self._replicas.apply_broker_config(self.cluster.config)
            self.on_config(self.cluster.config)
        if delta.configured or delta.broker_config:
            self._control.settings_changed(delta)

    # -- inputs: each one turn ---------------------------------------------------------------------------------------

    def on_frame(self, slot: Slot, frame: memoryview) -> Gate:
        """Handle one request."""
        gate = self._on_frame(slot, frame)
        if self._effects.queue or self._log_timers.next_ns != self._alarm.logs_ns:
            self.end_turn()
        return gate

    def on_gone(self, peer: Peer) -> None:
        """Drop the requests of a connection that has ended."""
        self._fetch.on_gone(peer)
        self._dispatch.on_gone(peer)
        if self._login is not None:
            self._login.on_gone(peer)
        self.end_turn()

    def on_alarm(self) -> None:
        """Expire what is due in the purgatory and the logs."""
        now = self._alarm.on_fired()
        self._purgatory.on_alarm()
        deadline = self._log_timers.next_ns
        if deadline is not None and deadline <= now.mono_ns:
            self.logs.run_due()
        self.end_turn()
        self._alarm.set_next_alarm()

    def on_session(self, state: Session, session_id: int) -> None:
        """React to a new session with the metadata store, or to another state of it."""
        self._control.on_session(state, session_id)
        self.end_turn()

    def on_standstill(self) -> None:
        """Give up leadership after a pause longer than the session: other brokers may lead by now."""
        self._replicas.step_back()
        self.end_turn()

    def on_node(self, path: str) -> None:
        """React to the change of a watched node of the metadata store."""
        self._control.on_node(path)
        self.end_turn()

    def end_turn(self) -> None:
        """End a turn: drain the effects, and set the alarm for the logs' next deadline."""
        if self._effects.queue:
            self._effects.drain_effects()
        if self._has_image and not self.ready:
            self._effects.queue_effect(self._check_ready)
            self._effects.drain_effects()
        deadline = self._log_timers.next_ns
        if deadline != self._alarm.logs_ns:
            self._alarm.set_logs_alarm(deadline)

    def run_background(self, budget_ns: int) -> bool:
        """Do idle work: retention, flushing, checkpoints, warming of codecs."""
        more = self.logs.run_background(budget_ns)
        self.end_turn()
        warmed = list(islice(self._warming, 1 + budget_ns // _WARM_NS))
        return more or bool(warmed)


def _ignore_event() -> None:
    """Ignore the event: the default of a callback."""


def _is_always_wanted() -> bool:
    """The default of `is_wanted`: start-up is not aborted."""
    return True


def _ignore_config(_: BrokerConfig) -> None:
    """Ignore the settings: the default of a callback."""
