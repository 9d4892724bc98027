"""The real shell around one broker: it builds the implementations of the seams and connects them.

Zone: real. Wiring only; `ottla.server.service` decides the order of start and stop.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from ottla.config.broker import BrokerConfig
from ottla.metrics import Registry
from ottla.seams import Done, Failure, Inputs, Part, Peer, Slot, World
from ottla.server.connections.broker_calls import new_broker_client
from ottla.server.connections.connection_manager import ConnectionManager, TrafficLimits
from ottla.server.connections.connection_rates import CreationLimits, CreationRates
from ottla.server.connections.inter_broker_client import InterBrokerClient
from ottla.server.connections.listener import ConnectionLimits, Listener, Quotas, reachable_host
from ottla.server.connections.tls.transport_security import TransportSecurity
from ottla.server.disks.descriptors import Descriptors
from ottla.server.disks.disk import RealDisk
from ottla.server.entropy import RealEntropy
from ottla.server.login_files import open_token_keys, read_users
from ottla.server.loop.clock import RealClock
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.garbage_collection import GarbageCollection
from ottla.server.loop.poller import Watch
from ottla.server.loop.workers import RealWorkers
from ottla.server.zookeeper.outside_store import outside_store
from ottla.types import Endpoint


class RealNetwork:
    """The real `ottla.seams.Network`: answers go to the queue of a slot, calls go to `InterBrokerClient`.

    Only the shell creates slots and peers, so their methods are called without a type check: a check would cost a
    call per request.
    """

    __slots__ = ("_calls", "_traffic")

    def __init__(self, calls: InterBrokerClient, traffic: ConnectionManager) -> None:
        self._calls = calls
        self._traffic = traffic

    def send_reply(self, slot: Slot, parts: Sequence[Part]) -> None:
        """Answer a request; the answers of a peer are sent in the order of its requests."""
        slot.responses.queue_answer(slot, parts)  # type: ignore[attr-defined]  # see the class

    def open_gate(self, slot: Slot) -> None:
        """Open the gate of this slot."""
        slot.responses.open_gate(slot)  # type: ignore[attr-defined]  # see the class

    def hold_frame(self, slot: Slot, frame: memoryview) -> memoryview:
        """Keep a frame after its turn."""
        held: memoryview = slot.peer.hold_frame(slot, frame)  # type: ignore[attr-defined]  # see the class
        return held

    def pause_reading(self, peer: Peer, until_ns: int) -> None:
        """Read nothing from this peer before that time."""
        peer.pause_reading(until_ns)  # type: ignore[attr-defined]  # see the class

    def set_frame_bounds(self, peer: Peer, least: int, most: int | None) -> None:
        """Set the sizes of the frames that this peer may send."""
        peer.set_frame_bounds(least, most)  # type: ignore[attr-defined]  # see the class

    def measure_turns(self, report: Callable[[Peer, int], None] | None) -> None:
        """Report the time of each turn, or stop that."""
        self._traffic.measure_turns(report)

    def close_connection(self, peer: Peer, why: str) -> None:
        """Close the connection, with one log line."""
        peer.drop_connection(why)  # type: ignore[attr-defined]  # see the class

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """Send a request to a broker."""
        self._calls.call_broker(node, frame, deadline_ns, done, lane)

    def set_address(self, node: int, host: str, port: int) -> None:
        """Set the address of a broker."""
        self._calls.set_address(node, host, port)


BACKLOG: Final = 1024
"""Default of socket.listen.backlog.size: with Kafka's 50 the kernel drops SYNs of a burst of clients, and each of them
waits a second."""


class Served(Inputs, Protocol):
    """A broker as its shell uses it (`ottla.broker.broker.Broker`)."""

    metrics: Registry

    @property
    def listening(self) -> bool:
        """Whether connections have to be accepted: other brokers write to it before it is ready for clients."""
        ...

    @property
    def ready(self) -> bool:
        """Whether it serves clients."""
        ...

    @property
    def failed(self) -> Failure | None:
        """Why the broker will never be ready."""
        ...

    def find_address_limit(self, address: str) -> float | None:
        """How many connections per second an address may create; None: not limited."""
        ...

    def start_broker(self, endpoints: Sequence[Endpoint]) -> None:
        """Load the logs; `endpoints` are the addresses that clients receive."""
        ...

    def hand_over_leaderships(self, done: Callable[[], None], hand_over: bool = True) -> None:
        """Move leaderships to other brokers, while this one still serves all clients."""
        ...

    def stop_broker(self, done: Done[None]) -> None:
        """Shut down cleanly."""
        ...


class Shell:
    """Loop, disks, connections and workers of one broker."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watch: Watch,
        config: BrokerConfig,
        descriptors: int,
        garbage: GarbageCollection | None = None,
        listening: Mapping[str, socket.socket] | None = None,
        broker_secret: bytes | None = None,
        clock: RealClock | None = None,
    ) -> None:
        """`descriptors`: how many files may be open at once, without connections.

        `listening`: sockets that are bound already, by listener name. `broker_secret`: see `World`.
        `clock`: None for the machine's.
        """
        self.loop = loop
        self._watch = watch
        self._turns = CompletionQueue(loop, clock)
        limits = TrafficLimits(
            config.socket_request_max_bytes,
            config.queued_max_request_bytes,
            config.connections_max_idle_ms,
            first_frame_bytes=config.first_frame_limits,
        )
        self.traffic = ConnectionManager(loop, watch, self._turns.clock, limits, garbage)
        traffic = self.traffic
        self.rates = CreationRates.from_config(loop, config)
        self._quotas = Quotas(traffic, _connection_limits(config), self.rates)
        self.security = TransportSecurity(config, traffic, self._turns, self._quotas.give_back)
        self._calls = new_broker_client(loop, watch, self._turns, traffic, self.security, config, broker_secret)
        self._workers = RealWorkers(self._turns)
        self.descriptors = Descriptors(descriptors)
        disks = [RealDisk(directory, self._turns.add_branch(), self.descriptors) for directory in config.log_dirs]
        network = RealNetwork(self._calls, traffic)
        self._store = outside_store(config, loop, self._turns)
        entropy = RealEntropy()
        self._token_keys = open_token_keys(config.sasl_listeners)
        self.world = World(
            self._turns.clock,
            entropy,
            disks,
            network,
            self._workers,
            self._store,
            broker_secret=broker_secret,
            sasl_users=read_users(config.ottla_sasl_users_file),
            token_signatures=self._token_keys,
        )
        self._listening = listening or {}
        self._listeners: list[Listener] = []
        self._endpoints = config.endpoints
        self._advertised = config.advertised_endpoints
        self._inputs: Inputs | None = None

    def set_inputs(self, inputs: Inputs) -> None:
        """Set the broker; from now on turns may run."""
        self._inputs = inputs
        self._turns.set_end_turn(self._end_turn)
        self._turns.clock.set_receiver(self._on_alarm)
        self.traffic.set_inputs(inputs)
        self._calls.set_inputs(inputs)
        if self._store is not None:
            self._store.open_session(inputs)
            self._watch.on_standstill(self._store.standstill_ns, self._store.on_standstill)

    @property
    def failed(self) -> Failure | None:
        """Why the metadata store can never be used; None while it can be or may become so."""
        return None if self._store is None else self._store.failed

    def _end_turn(self) -> None:
        assert self._inputs is not None, "end of a turn before connect"
        self._inputs.end_turn()
        if self.traffic.resting:
            self.traffic.plan_idle_time()

    def _on_alarm(self) -> None:
        assert self._inputs is not None, "alarm before connect"
        self._inputs.on_alarm()
        if self.traffic.resting:
            self.traffic.plan_idle_time()

    def bind_listeners(self) -> list[Endpoint]:
        """Bind the listeners; returns the addresses that clients receive. Raises Failure with an address that is
        taken."""
        for endpoint in self._endpoints:
            bound_already = self._listening.get(endpoint.listener)
            opener = self.security.opener(endpoint)
            self._listeners.append(Listener(self.traffic, self._quotas, endpoint, bound_already, opener))
        bound = {listener.endpoint.listener: listener.endpoint for listener in self._listeners}
        if self._advertised is None:
            return [endpoint._replace(host=reachable_host(endpoint.host)) for endpoint in bound.values()]
        # An advertised address without a port has the bound one.
        return [told if told.port >= 0 else told._replace(port=bound[told.listener].port) for told in self._advertised]

    def apply_config(self, config: BrokerConfig) -> None:
        """Apply those of the broker's dynamic settings that belong to the shell."""
        self._quotas.set_limits(_connection_limits(config))
        self.security.apply_config(config)
        self.rates.set_limits(CreationLimits.from_config(config))

    def start_accepting(self) -> None:
        """Accept connections from now on."""
        for listener in self._listeners:
            listener.start_accepting()
        self.traffic.plan_idle_time()

    def stop_requests(self) -> None:
        """Accept no more connections and start no more requests; requests that have started are finished."""
        for listener in self._listeners:
            listener.stop_accepting()
        self._listeners.clear()
        # Sockets in a TLS handshake, and those that were refused, are not yet connections of `traffic`.
        self.security.handshakes.close_all()
        self.rates.close_all()
        self.traffic.stop_requests()

    def close_all(self) -> None:
        """Close everything, after blocking work that runs has ended."""
        for listener in self._listeners:
            listener.stop_accepting()
        if self._store is not None:
            self._store.close_session()
        self._calls.close_all()
        self.security.close_all()
        for keys in self._token_keys.values():
            keys.stop()
        self.traffic.close_all()
        # Before the threads: one thread waits for the result of each job, which may take minutes. Without its process
        # it ends.
        self._workers.stop_processes()
        self._turns.stop_threads()


def _connection_limits(config: BrokerConfig) -> ConnectionLimits:
    return ConnectionLimits(
        config.max_connections,
        config.max_connections_per_ip,
        config.connections_by_address,
        config.socket_send_buffer_bytes,
        # The kernel's own tuning takes a third less CPU than Kafka's default of 100 KiB: only a given size is set.
        config.socket_receive_buffer_bytes if "socket.receive.buffer.bytes" in config.given else -1,
        config.socket_listen_backlog_size if "socket.listen.backlog.size" in config.given else BACKLOG,
        config.inter_broker_listener if len(config.endpoints) > 1 else "",
    )
