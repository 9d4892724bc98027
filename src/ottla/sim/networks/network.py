"""The simulated network: connections between clients and brokers, and their faults.

Zone: deterministic. A connection behaves like TCP: frames arrive in order or not at all. A lost packet is a late
retransmission, or in the end a broken connection. Duplicates come from clients that send again over a new connection
while the old one still delivers. Frames of different connections have no order. `node_network.py` is the broker's
side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from ottla.sim.entropy import Stream
from ottla.sim.machines.machine import Machine, Process
from ottla.sim.world import MS, SECOND, US, Timeline

FOREVER: Final = 1 << 62
CONNECT_TIMEOUT_NS: Final = 2 * SECOND
RETRANSMIT_NS: Final = 200 * MS
"""TCP's smallest retransmission time-out on Linux."""


@dataclass(slots=True)
class Weather:
    """The present state of the network; the nemesis changes it."""

    latency_mean_ns: int = 300 * US
    loss: float = 0.0
    """Chance that a frame needs a retransmission."""
    garble: float = 0.0
    """Chance that one bit of a Produce request's batch flips without TCP's checksum noticing."""
    slow_until_ns: int = 0
    """Until this time a link transfers 64 KiB per second."""


class End(Protocol):
    """A connection at the side that accepted it."""

    stalled_until_ns: int
    """The client reads nothing before this time."""

    def receive_frame(self, frame: bytes) -> None:
        """A request arrived."""
        ...

    def on_peer_gone(self) -> None:
        """The end of the connection arrived."""
        ...


class Acceptor(Protocol):
    """A listener at a node: the shell of a broker, or a server of the metadata store."""

    @property
    def life(self) -> int:
        """Rises with each restart."""
        ...

    def accept_connection(self, connection: Connection) -> End:
        """A client connects."""
        ...


class Path:
    """The link between one host and one node, in both directions."""

    __slots__ = ("inward_cut_ns", "outward_cut_ns")

    def __init__(self) -> None:
        self.inward_cut_ns = 0
        """Nothing reaches the node before that time."""
        self.outward_cut_ns = 0
        """Nothing leaves the node before that time."""


class Connection:
    """One TCP connection, as its client sees it."""

    __slots__ = (
        "_inward_ns",
        "_outward_ns",
        "closed",
        "host",
        "life",
        "node",
        "number",
        "on_close",
        "on_frame",
        "server",
    )
    server: End

    def __init__(
        self,
        number: int,
        host: str,
        node: int,
        on_frame: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> None:
        self.number = number
        self.host = host
        self.node = node
        self.life = 0
        """The life of the node that accepted it."""
        self.on_frame = on_frame
        self.on_close = on_close
        self.closed = False
        self._inward_ns = 0
        self._outward_ns = 0

    def hold_frames_until(self, until_ns: int) -> None:
        """Delay later frames of the client until that time; other connections are not affected."""
        self._inward_ns = max(self._inward_ns, until_ns)

    def next_arrival(self, inward: bool, wanted_ns: int) -> int:
        """The arrival time of a frame: `wanted_ns`, or later, so that it comes after all earlier frames."""
        if inward:
            self._inward_ns = max(self._inward_ns + 1, wanted_ns)
            return self._inward_ns
        self._outward_ns = max(self._outward_ns + 1, wanted_ns)
        return self._outward_ns


class Network:
    """All links between all hosts and nodes."""

    def __init__(self, timeline: Timeline, random: Stream) -> None:
        self.timeline = timeline
        self.random = random
        self.weather = Weather()
        self.fired: Callable[[str], None] = lambda _kind: None
        self.machines: dict[int, Machine] = {}
        self.listening: dict[int, Acceptor] = {}
        """The listeners by node."""
        self.connections: dict[int, Connection] = {}
        """Open connections by number."""
        self._paths: dict[tuple[str, int], Path] = {}
        self._numbers = 0

    def path_between(self, host: str, node: int) -> Path:
        """The link between a host and a node."""
        return self._paths.setdefault((host, node), Path())

    def heal_links(self) -> None:
        """End all cuts, losses and delays."""
        self.weather = Weather()
        self._paths.clear()
        for connection in self.connections.values():
            connection.server.stalled_until_ns = 0

    # ---- nodes ----

    def start_listening(self, node: int, acceptor: Acceptor) -> None:
        """Accept connections for a node."""
        self.listening[node] = acceptor

    def on_process_gone(self, process: Process, silent: bool) -> None:
        """The process died: its peers get a reset soon, or, if the machine lost power, notice it late."""
        # First the connections that the process accepted, then those that it opened.
        node = process.machine.node
        self.listening.pop(node, None)
        for connection in [c for c in self.connections.values() if c.node == node and c.life == process.life]:
            del self.connections[connection.number]
            self._notify_client(connection, self._draw_notice_delay(silent))
        for connection in [c for c in self.connections.values() if c.host == f"node{node}"]:
            del self.connections[connection.number]
            connection.closed = True
            self.timeline.schedule_after(
                self._draw_notice_delay(silent), "closed by client", connection.server.on_peer_gone
            )

    def _draw_notice_delay(self, silent: bool) -> int:
        return self.random.between(MS, 5 * SECOND) if silent else self.draw_latency()

    # ---- connections ----

    def open_connection(
        self,
        host: str,
        node: int,
        on_open: Callable[[Connection], None],
        on_frame: Callable[[bytes], None],
        on_close: Callable[[], None],
    ) -> Connection:
        """Open a connection. Calls `on_open` on success, `on_close` on failure or at the end, never in this call."""
        self._numbers += 1
        connection = Connection(self._numbers, host, node, on_frame, on_close)
        self.timeline.schedule_after(
            2 * self.draw_latency(), "connect", self._establish_connection, connection, on_open
        )
        return connection

    def _establish_connection(self, connection: Connection, on_open: Callable[[Connection], None]) -> None:
        path, now = self.path_between(connection.host, connection.node), self.timeline.now_ns
        shell = self.listening.get(connection.node)
        # 1. The client has given up meanwhile.
        # 2. The link is cut: the SYN is lost, and the attempt times out.
        # 3. There is no listener: the node refuses at once.
        # 4. The listener accepts.
        if connection.closed:
            return
        if path.inward_cut_ns > now or path.outward_cut_ns > now:
            self._notify_client(connection, CONNECT_TIMEOUT_NS)
        elif shell is None:
            self._notify_client(connection, 0)
        else:
            connection.life = shell.life
            connection.server = shell.accept_connection(connection)
            self.connections[connection.number] = connection
            on_open(connection)

    def send_frame(self, connection: Connection, frame: bytes) -> None:
        """The client sends a request (without its length prefix)."""
        if connection.closed or connection.number not in self.connections:
            return
        self.timeline.trace_fact(f"c{connection.number} >", frame)
        arrival = self._frame_arrival(connection, True, len(frame))
        if arrival < FOREVER:
            self.timeline.schedule_at(arrival, "frame in", connection.server.receive_frame, self._maybe_flip_bit(frame))

    def deliver_frame(self, connection: Connection, frame: bytes) -> None:
        """The node sends a reply (without its length prefix)."""
        self.timeline.trace_fact(f"c{connection.number} <", frame)
        arrival = self._frame_arrival(connection, False, len(frame))
        if arrival < FOREVER:
            self.timeline.schedule_at(arrival, "frame out", self._frame_out, connection, frame)

    def _frame_out(self, connection: Connection, frame: bytes) -> None:
        if not connection.closed:
            connection.on_frame(frame)

    def _frame_arrival(self, connection: Connection, inward: bool, size: int) -> int:
        path, now = self.path_between(connection.host, connection.node), self.timeline.now_ns
        # 1. Through a cut the frame arrives with the first retransmission after its end.
        # 2. A lost frame costs one to three retransmission timeouts, which double each time.
        # 3. On a slow link the transfer takes time in proportion to the size.
        # 4. A frame never overtakes earlier ones of its connection (`Connection.next_arrival`).
        cut = path.inward_cut_ns if inward else path.outward_cut_ns
        start = now
        if cut > now:
            start = cut + self.random.between(0, 2 * RETRANSMIT_NS)
        if self.random.chance(self.weather.loss):
            start += RETRANSMIT_NS << self.random.random_below(3)
        if self.weather.slow_until_ns > now:
            start += size * (SECOND // 65536)
        return connection.next_arrival(inward, start + self.draw_latency())

    def draw_latency(self) -> int:
        """Draw the travel time of one frame."""
        return 20 * US + int(self.random.exponential(self.weather.latency_mean_ns))

    def _maybe_flip_bit(self, frame: bytes) -> bytes:
        """Sometimes flip a bit in the last bytes of a Produce request, which are inside its last batch."""
        if not self.random.chance(self.weather.garble) or len(frame) < 200 or frame[:2] != b"\0\0":
            return frame
        self.fired("bit flip on the wire")
        changed = bytearray(frame)
        at = len(frame) - 16 - self.random.random_below(40)
        changed[at] ^= 1 << self.random.random_below(8)
        return bytes(changed)

    # ---- endings ----

    def close_connection(self, connection: Connection) -> None:
        """The client closes the connection; frames that it sent before still arrive."""
        if connection.closed:
            return
        connection.closed = True
        if self.connections.pop(connection.number, None) is not None:
            self._notify_server(connection)

    def cut_off(self, connection: Connection) -> None:
        """Break the connection for both sides; requests in flight may still arrive before the node notices the end."""
        if self.connections.pop(connection.number, None) is None:
            return
        self._notify_client(connection, self.draw_latency())
        self._notify_server(connection)

    def close_from_node(self, connection: Connection) -> None:
        """The node closes the connection; replies that it sent before still arrive."""
        if self.connections.pop(connection.number, None) is not None:
            arrival = connection.next_arrival(False, self.timeline.now_ns + self.draw_latency())
            self.timeline.schedule_at(arrival, "closed by node", self._on_closed, connection)

    def _notify_server(self, connection: Connection) -> None:
        arrival = self._frame_arrival(connection, True, 0)
        self.timeline.schedule_at(min(arrival, FOREVER), "closed by client", connection.server.on_peer_gone)

    def _notify_client(self, connection: Connection, delay_ns: int) -> None:
        self.timeline.schedule_after(delay_ns, "connection lost", self._on_closed, connection)

    def _on_closed(self, connection: Connection) -> None:
        if not connection.closed:
            connection.closed = True
            connection.on_close()
