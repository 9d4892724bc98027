"""Rigs: one per implementation of the seams, so that every law is checked against each of them.

Zone: real. A rig gives the seams and runs its world until a condition holds; no test here knows which one it has.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.seams import Gate
from ottla.server.connections.connection_manager import ConnectionManager, TrafficLimits
from ottla.server.connections.inter_broker_client import InterBrokerClient
from ottla.server.connections.listener import ConnectionLimits, Listener, Quotas
from ottla.server.disks.disk import RealDisk
from ottla.server.entropy import RealEntropy
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import new_loop
from ottla.server.loop.workers import RealWorkers
from ottla.server.shell import RealNetwork
from ottla.sim.disks.disk import SimDisk
from ottla.sim.disks.drive import Drive
from ottla.sim.disks.drive_faults import DriveFaults
from ottla.sim.entropy import Streams
from ottla.sim.machines.machine import Machine
from ottla.sim.machines.workers import SimWorkers
from ottla.sim.networks.network import Network as SimNetwork
from ottla.sim.networks.node_network import NodeNetwork
from ottla.sim.world import SECOND, Timeline
from ottla.types import Endpoint

NODE = 1


class Outcomes(list):
    """Collects what `done` is called with, and checks that it is never called inside a call of the seam."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = 0

    def __call__(self, value: object) -> None:
        assert self.inside == 0, "done was called before the call that took it had returned"
        self.append(bytes(value) if isinstance(value, memoryview) else value)


class Recorder:
    """A broker that notes its inputs; `behave` decides about each request."""

    def __init__(self) -> None:
        self.frames: list[bytes] = []
        self.slots: list = []
        self.gone: list = []
        self.log: list[str] = []
        self.alarms: list[Callable[[], None]] = []
        self.behave = lambda slot, frame: Gate.NEXT
        self.in_turn = False

    def on_frame(self, slot, frame):
        assert not self.in_turn, "a turn inside a turn"
        self.in_turn = True
        self.frames.append(bytes(frame))
        self.slots.append(slot)
        gate = self.behave(slot, frame)
        self.in_turn = False
        return gate

    def on_gone(self, peer):
        assert not self.in_turn, "a turn inside a turn"
        self.gone.append(peer)

    def on_alarm(self):
        assert not self.in_turn, "a turn inside a turn"
        for ring in self.alarms:
            ring()

    def end_turn(self):
        self.log.append("end_turn")

    def run_background(self, budget_ns):
        return False

    def on_session(self, state, session_id):
        raise AssertionError("no store here")

    def on_standstill(self):
        raise AssertionError("no store here")

    def on_node(self, path):
        raise AssertionError("no store here")


class RealClient:
    """A client on a socket."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setblocking(False)
        self.received: list[bytes] = []
        self.closed = False
        self._bytes = b""

    def send(self, frame: bytes) -> None:
        self.sock.sendall(struct.pack(">i", len(frame)) + frame)

    def poll(self) -> None:
        if self.closed:
            return
        try:
            data = self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        self.closed = not data
        self._bytes += data
        while len(self._bytes) >= 4:
            end = 4 + struct.unpack(">i", self._bytes[:4])[0]
            if len(self._bytes) < end:
                break
            self.received.append(self._bytes[4:end])
            self._bytes = self._bytes[end:]

    def close(self) -> None:
        self.sock.close()
        self.closed = True


class RealRig:
    """The operating system."""

    def __init__(self, directory: Path) -> None:
        self._errors: list[object] = []
        self._loop, watch = new_loop()
        self._loop.set_exception_handler(lambda _loop, context: self._errors.append(context))
        self._turns = CompletionQueue(self._loop)
        self.broker = Recorder()
        self.clock = self._turns.clock
        self.clock.set_receiver(self.broker.on_alarm)
        self._turns.set_end_turn(self.broker.end_turn)
        self.entropy = RealEntropy()
        self.disk = RealDisk(str(directory), self._turns)
        self.workers = RealWorkers(self._turns)
        self._traffic = ConnectionManager(self._loop, watch, self.clock, TrafficLimits())
        self._calls = InterBrokerClient(self._loop, self._turns, NODE)
        self._traffic.set_inputs(self.broker)
        self._calls.set_inputs(self.broker)
        self.network = RealNetwork(self._calls, self._traffic)
        self._listener: Listener | None = None
        self._clients: list[RealClient] = []

    def client(self) -> RealClient:
        if self._listener is None:
            endpoint = Endpoint("PLAINTEXT", "127.0.0.1", 0)
            self._listener = Listener(self._traffic, Quotas(self._traffic, ConnectionLimits()), endpoint)
            self._listener.start_accepting()
        client = RealClient(self._listener.endpoint.port)
        self._clients.append(client)
        return client

    def turn(self, act: Callable[[], None]) -> None:
        """Run `act` as one turn."""
        self._turns.run_soon(lambda _none: act(), None)
        self.run(1)

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()
            for client in self._clients:
                client.poll()
        assert not self._errors

    def until(self, holds: Callable[[], bool]) -> None:
        """Run until a condition holds; ten seconds are the time of a broken world, not a measurement."""
        end = time.monotonic() + 180
        while not holds():
            assert time.monotonic() < end, "the world stands still"
            self.run(1)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.run(3)
        if self._listener is not None:
            self._listener.stop_accepting()
        self._traffic.close_all()
        self._calls.close_all()
        self.workers.stop_processes()
        self._turns.stop_threads()
        self._loop.close()


class SimClient:
    """A client on a simulated connection."""

    def __init__(self, network: SimNetwork) -> None:
        self._network = network
        self._unsent: list[bytes] = []
        self.opened = self.closed = False
        self.received: list[bytes] = []
        self._connection = network.open_connection("client", NODE, self._opened, self.received.append, self._lost)

    def _opened(self, connection) -> None:
        self.opened = True
        for frame in self._unsent:
            self._network.send_frame(connection, frame)

    def _lost(self) -> None:
        self.closed = True

    def send(self, frame: bytes) -> None:
        if self.opened:
            self._network.send_frame(self._connection, frame)
        else:
            self._unsent.append(frame)

    def close(self) -> None:
        self._network.close_connection(self._connection)


class SimRig:
    """The simulated machine."""

    def __init__(self, _directory: Path) -> None:
        self._timeline = Timeline()
        streams = Streams(1)
        drive = Drive("data")
        machine = Machine(NODE, self._timeline, streams, [drive])
        self._process = machine.boot_process()
        self.broker = Recorder()
        self._process.inputs = self.broker
        self.clock = self._process.clock
        self.entropy = self._process.entropy
        self.disk = SimDisk(drive, DriveFaults(), self._process)
        self.workers = SimWorkers(self._process)
        self._net = SimNetwork(self._timeline, streams.named_stream("network"))
        self._net.machines[NODE] = machine
        self.network = NodeNetwork(self._process, self._net)
        self.network.start_listening()
        self._machine = machine

    def client(self) -> SimClient:
        return SimClient(self._net)

    def turn(self, act: Callable[[], None]) -> None:
        self._process.run_turn(act)
        self._check()

    def run(self, rounds: int) -> None:
        for _ in range(rounds):
            self._timeline.run_next_event()
        self._check()

    def until(self, holds: Callable[[], bool]) -> None:
        limit = self._timeline.now_ns + 7200 * SECOND
        held = self._timeline.run_while(lambda: not holds() and not self._machine.crashes, limit)
        self._check()
        assert held, "the world stands still"

    def _check(self) -> None:
        assert not self._machine.crashes, self._machine.crashes[0]

    def close(self) -> None:
        self._check()


RIGS = {"real": RealRig, "sim": SimRig}


@pytest.fixture(params=sorted(RIGS))
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RealRig | SimRig]:
    """One world with an empty log directory."""
    world = RIGS[request.param](tmp_path)
    yield world
    world.close()


@pytest.fixture
def outcomes() -> Callable[[], Outcomes]:
    """Makes collectors of completions."""
    return Outcomes
