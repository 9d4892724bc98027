"""The broker: one synchronous object that reaches the world through its seams only.

Zone: deterministic. Contains start, stop, and the inputs of the shell (each one turn); decisions are made in other
packages, and `assembly` creates the objects.

Start: the broker reads settings from the metadata store, recovers its logs, and registers (it is `listening`: other
brokers may write to it); the controller sends what it leads and follows, and then it is `ready`.
Stop: it hands leaderships over while it still serves requests, drops waiting requests with their connections, flushes
and checkpoints its logs, and writes the marker of a clean shutdown last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Final, NamedTuple

from ottla.broker.assembly.foundation import Foundation
from ottla.broker.assembly.metadata import MetadataWing
from ottla.broker.coordination.coordinators import BrokerCoordinators
from ottla.broker.ready_check import ReadyCheck
from ottla.broker.startup import Startup
from ottla.cluster.controlled_shutdown import ControlledShutdown
from ottla.cluster.membership import Membership
from ottla.metrics import Registry
from ottla.replication.fetch.fetch import FetchHandler
from ottla.replication.produce.verifier import Verifier
from ottla.replication.replica_manager import ReplicaManager
from ottla.seams import Done, Failure, Gate, Peer, Session, Slot
from ottla.security.quotas.request_throttles import FrameInput
from ottla.types import Endpoint

_WARM_NS: Final = 500_000
"""Cost of compiling one pair of codecs."""


class Wings(NamedTuple):
    """The parts of a broker, on its foundation."""

    metadata: MetadataWing
    membership: Membership
    shutdown: ControlledShutdown
    replicas: ReplicaManager
    coordinators: BrokerCoordinators
    verifier: Verifier
    """Asks transaction coordinators for this broker's leaders."""
    fetch: FetchHandler
    frames: FrameInput
    """Passes requests to the dispatch."""
    startup: Startup
    ready_check: ReadyCheck
    metrics: Registry


class Broker:
    """One broker. Implements `ottla.seams.Inputs`."""

    def __init__(self, base: Foundation, wings: Wings) -> None:
        self.config = base.config
        self.hosted = base.hosted
        self.logs = base.logs
        self.cluster = base.cluster
        """Its view of the cluster."""
        self.verifier = wings.verifier
        self.metrics = wings.metrics
        self._effects = base.effects
        self._alarm = base.alarm
        self._containment = base.containment
        self._purgatory = base.purgatory
        self._leaders = base.leaders
        self._dispatch = base.dispatch
        self._world = base.world
        self._frames = wings.frames
        self._log_timers = base.logs.timers
        self._metadata = wings.metadata
        self._membership = wings.membership
        self._shutdown = wings.shutdown
        self._fence = wings.metadata.fence
        self._replicas = wings.replicas
        self._coordinators = wings.coordinators
        self._fetch = wings.fetch
        self._rights = base.rights
        self.login = base.login.clients
        self.users = base.login.users
        """The users that can log in."""
        self._startup = wings.startup
        self._ready_check = wings.ready_check
        self._left = False

    @property
    def listening(self) -> bool:
        """Whether other brokers may write to it, so the listeners have to be open."""
        return self._startup.listening

    @property
    def ready(self) -> bool:
        """Whether it has applied the controller's orders and serves all requests."""
        return self._ready_check.ready

    @property
    def failed(self) -> Failure | None:
        """Why it cannot become ready."""
        return self._startup.failed

    @property
    def is_controller(self) -> bool:
        """Whether this broker is the controller of its cluster now."""
        return self._metadata.seat.controller is not None

    def find_address_limit(self, address: str) -> float | None:
        """How many connections per second an address may create; None: not limited."""
        return self._frames.find_address_limit(address)

    # -- start -------------------------------------------------------------------------------------------------------

    def start_broker(self, endpoints: Sequence[Endpoint]) -> None:
        """Join the cluster once there is a session with the metadata store; `on_ready` follows in a later turn.

        `endpoints` are the addresses for clients and other brokers. Raises Failure or CorruptStore when the first log
        directory, which contains the embedded metadata store, cannot be read."""
        # The endpoints first: a session with the store starts the registration, which contains them.
        self._membership.set_endpoints(endpoints)
        self._metadata.stores.open_store()
        self.end_turn()

    # -- stop --------------------------------------------------------------------------------------------------------

    def hand_over_leaderships(self, done: Callable[[], None], hand_over: bool = True) -> None:
        """Hand leaderships over while the broker still serves (controlled shutdown); `done` follows in any case.
        Not hand_over: all brokers stop, so there is no broker to take them."""
        # `stop_broker` calls this again when the service has handed over before it: then nothing is left to do. `done`
        # is an effect here, so that it is never called within the call of this method.
        if self._left:
            self._effects.queue_effect(done)
        else:
            self._left = True
            self._ready_check.stop_waiting()
            self._shutdown.leave_cluster(done, hand_over)
        self.end_turn()

    def stop_broker(self, done: Done[None]) -> None:
        """Leave, flush, checkpoint, write the marker of a clean shutdown; then close the metadata store."""

        def left() -> None:
            # From the writers down to what they write to: coordinators append to partitions, replicas to logs. In the
            # other order an append would meet a log that is closed already.
            self._ready_check.stop_serving()
            self._coordinators.stop_coordinators()
            self._replicas.shut_down()
            self.logs.stop_logs(logs_stopped)

        def logs_stopped(outcome: Failure | None) -> None:
            # If both fail, the failure of the logs is reported: it is the reason for which the next start recovers
            # them.
            self._metadata.stores.close_store(lambda failure: done(outcome or failure))

        self.hand_over_leaderships(left)

    # -- inputs: each one turn ---------------------------------------------------------------------------------------

    def on_frame(self, slot: Slot, frame: memoryview) -> Gate:
        """Handle one request."""
        gate = self._frames.on_frame(slot, frame)
        # The conditions of `end_turn`, checked here because nearly every request leaves neither effects nor another
        # deadline, and would pay for the call.
        if self._effects.queue or self._log_timers.next_ns != self._alarm.logs_ns:
            self.end_turn()
        return gate

    def on_gone(self, peer: Peer) -> None:
        """Drop the requests of a connection that has ended."""
        self._fetch.on_gone(peer)
        self._dispatch.on_gone(peer)
        if self._rights is not None:
            self._rights.on_gone(peer)
        self.login.on_gone(peer)
        self._frames.on_gone(peer)
        self.end_turn()

    def on_alarm(self) -> None:
        """Expire what is due in the purgatory and the logs."""
        now = self._alarm.on_fired()
        self._purgatory.on_alarm()
        deadline = self._log_timers.next_ns
        if deadline is not None and deadline <= now.mono_ns:
            self.logs.run_due()
        self.end_turn()
        # `end_turn` sets the alarm only if a deadline has changed. The alarm that has fired is gone in any case:
        # without this call an unchanged deadline of the logs would never fire.
        self._alarm.set_next_alarm()

    def on_session(self, state: Session, session_id: int) -> None:
        """React to a new session with the metadata store, or to another state of it."""
        self._membership.on_session(state, session_id)
        self.end_turn()

    def on_standstill(self) -> None:
        """Give up leadership after a pause longer than the session: other brokers may lead by now."""
        self._replicas.step_back()
        self.end_turn()

    def on_node(self, path: str) -> None:
        """React to the change of a watched node of the metadata store."""
        self._metadata.stores.watched.on_node_changed(path)
        self.end_turn()

    def end_turn(self) -> None:
        """End a turn: drain the effects, and set the alarm for the logs' next deadline."""
        if self._effects.queue:
            self._effects.drain_effects()
        # After the effects, because one of them may have applied the order that is still missing. The check is an
        # effect as well: becoming ready runs clients' requests, which leave effects of their own.
        if self._ready_check.is_waiting:
            self._effects.queue_effect(self._ready_check.check_ready)
            self._effects.drain_effects()
        deadline = self._log_timers.next_ns
        if deadline != self._alarm.logs_ns:
            self._alarm.set_logs_alarm(deadline)

    def run_background(self, budget_ns: int) -> bool:
        """Do idle work: retention, flushing, checkpoints, warming of codecs."""
        more = self.logs.run_background(budget_ns)
        self.end_turn()
        # At least one pair per slice: with a budget below the cost of one pair the warming would never end.
        warmed = list(islice(self._ready_check.warming, 1 + budget_ns // _WARM_NS))
        return more or bool(warmed)
