"""A listener on a real socket for a broker that the test defines, stepped by the test.

Zone: real.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Callable, Iterator

import pytest
from tests.server.served import Served

from ottla.seams import Gate
from ottla.server.connections.connection_manager import ConnectionManager, TrafficLimits
from ottla.server.connections.inter_broker_client import InterBrokerClient
from ottla.server.connections.listener import ConnectionLimits, Listener, Quotas
from ottla.server.loop.clock import RealClock
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import new_loop
from ottla.server.shell import RealNetwork
from ottla.server.zookeeper import znode_client
from ottla.types import Endpoint

HOUR_NS = 3_600_000_000_000


class Echo:
    """Answers every request with the bytes of `answer`; without them the test has to answer."""

    def __init__(self) -> None:
        self.network: RealNetwork
        self.answer: list = [b"ok"]
        self.clock: RealClock
        self.asks_time = True
        self.frames = 0
        self.bytes = 0
        self.slots: list = []
        self.gone = 0

    def on_frame(self, slot, frame):
        if self.asks_time:
            self.clock.now()  # as Produce and Fetch do
        self.frames += 1
        self.bytes += len(frame)
        if self.answer:
            self.network.send_reply(slot, self.answer)
        else:
            self.slots.append(slot)
        return Gate.NEXT

    def on_gone(self, peer):
        self.gone += 1

    def on_alarm(self):
        raise AssertionError("no alarm was asked for")

    def end_turn(self):
        pass

    def run_background(self, budget_ns):
        return False


class Server:
    """The shell without a broker process."""

    def __init__(self, limits: TrafficLimits, connection_limits: ConnectionLimits) -> None:
        self.errors: list[dict] = []
        self.loop, watch = new_loop()
        self.loop.set_exception_handler(lambda _loop, context: self.errors.append(context))
        self.turns = CompletionQueue(self.loop)
        self.traffic = ConnectionManager(self.loop, watch, self.turns.clock, limits)
        self.calls = InterBrokerClient(self.loop, self.turns, 1)
        self.broker = Echo()
        self.broker.network = RealNetwork(self.calls, self.traffic)
        self.broker.clock = self.turns.clock
        self.traffic.shares.share_ns = HOUR_NS  # tests count requests, not time
        self.traffic.set_inputs(self.broker)
        self.quotas = Quotas(self.traffic, connection_limits)
        self.listener = Listener(self.traffic, self.quotas, Endpoint("PLAINTEXT", "127.0.0.1", 0))
        self.listener.start_accepting()
        self.port = self.listener.endpoint.port
        self.clients: list[socket.socket] = []

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port))
        sock.setblocking(False)
        self.clients.append(sock)
        return sock

    def step(self) -> None:
        self.loop.call_soon(self.loop.stop)
        self.loop.run_forever()
        assert not self.errors, self.errors

    def steps(self, count: int = 10) -> None:
        for _ in range(count):
            self.step()

    def until(self, holds: Callable[[], bool]) -> None:
        """Step until it holds. Ten seconds only bound a test that is broken."""
        end = time.monotonic() + 180
        while not holds():
            assert time.monotonic() < end, "timed out"
            self.step()

    def send(self, sock: socket.socket, data: bytes) -> None:
        """Send all of it, while the server runs."""
        view = memoryview(data)
        end = time.monotonic() + 180
        while view:
            with contextlib.suppress(BlockingIOError):
                view = view[sock.send(view) :]
            self.step()
            assert time.monotonic() < end, "the server does not read"

    def receive(self, sock: socket.socket, size: int) -> bytes:
        """Receive exactly that many bytes."""
        data = bytearray()

        def enough() -> bool:
            with contextlib.suppress(BlockingIOError):
                data.extend(sock.recv(size - len(data)))
            return len(data) >= size

        self.until(enough)
        return bytes(data)

    def closed(self, sock: socket.socket) -> bool:
        try:
            return not sock.recv(1 << 16)
        except BlockingIOError:
            return False
        except ConnectionError:
            return True

    def stop(self) -> None:
        for sock in self.clients:
            sock.close()
        self.listener.stop_accepting()
        self.traffic.close_all()
        self.steps(3)
        self.calls.close_all()
        self.turns.stop_threads()
        self.loop.close()


def frame(size: int, fill: bytes = b"f") -> bytes:
    """A frame with a body of `size` bytes."""
    return struct.pack(">i", size) + fill * size


@pytest.fixture
def make_server() -> Iterator[Callable[..., Server]]:
    """Starts servers with the limits that the test chooses, and stops them."""
    servers: list[Server] = []

    def make(limits: TrafficLimits | None = None, connection_limits: ConnectionLimits | None = None) -> Server:
        servers.append(Server(limits or TrafficLimits(), connection_limits or ConnectionLimits()))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def server(make_server) -> Server:
    """A server with Kafka's limits."""
    return make_server()


@pytest.fixture
def framed() -> Callable[..., bytes]:
    """Makes frames."""
    return frame


@pytest.fixture
def make_served(tmp_path) -> Iterator[Callable[..., Served]]:
    made: list[Served] = []

    def make(**limits) -> Served:
        made.append(Served(str(tmp_path), znode_client.ZnodeLimits(**limits)))
        return made[-1]

    yield make
    for served in made:
        if served.loop.is_running():
            served.stop()


@pytest.fixture
def served(make_served) -> Served:
    return make_served()
