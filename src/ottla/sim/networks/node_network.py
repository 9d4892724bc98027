"""The seam `Network` for one simulated process: ordered slots, gates, regions resolved when they are sent.

Zone: deterministic.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ottla.seams import Done, Gate, Part, Peer, Region, Slot
from ottla.sim.disks.file import POISON, SimFile
from ottla.sim.machines.machine import Process
from ottla.sim.networks.inter_broker_calls import Calls
from ottla.sim.networks.network import Connection, Network
from ottla.sim.world import US

BROKERS: Final = "PLAINTEXT"
"""The listener of brokers, and of clients where no login is needed."""
SEND_NS: Final = 30 * US
"""From `send_reply` to the system call that sends it, on an idle connection."""


class SimPeer:
    """The client of a connection, as the broker sees it."""

    __slots__ = ("end", "host", "listener", "principal")

    def __init__(self, end: ServerEnd, host: str) -> None:
        self.end = end
        self.listener = end.shell.listener_of(host)
        """Empty for a call of a node to itself."""
        self.principal = "User:ANONYMOUS"
        self.host = host


class SimSlot:
    """One ordered answer."""

    __slots__ = ("frame", "held", "parts", "peer")

    def __init__(self, peer: SimPeer, frame: bytearray) -> None:
        self.peer = peer
        self.frame = frame
        self.held = False
        self.parts: Sequence[Part] | None = None


class ServerEnd:
    """A connection at the node: requests in, replies out, both in order."""

    def __init__(self, shell: NodeNetwork, connection: Connection) -> None:
        self.shell = shell
        self.connection = connection
        self.peer = SimPeer(self, connection.host)
        self.open = True
        self.muted_until_ns = 0
        self.stalled_until_ns = 0
        """The reader's window is closed until this time: replies wait, and their regions are not resolved."""
        self._inbox: deque[bytes] = deque()
        self._slots: deque[SimSlot] = deque()
        self._gate: SimSlot | None = None
        self._reading = False
        self._sending = False

    # ---- requests ----

    def receive_frame(self, frame: bytes) -> None:
        """A request arrived at the node."""
        if self.open and self.shell.process.alive:
            self._inbox.append(frame)
            self._read_soon()

    def _read_soon(self) -> None:
        if self._inbox and self._gate is None and not self._reading and self.open and not self.shell.draining:
            self._reading = True
            delay = max(0, self.muted_until_ns - self.shell.process.timeline.now_ns)
            self.shell.process.post_turn(delay, "on_frame", self._read_request)

    def _read_request(self) -> None:
        self._reading = False
        if not self.open or not self._inbox or self._gate is not None or self.shell.draining:
            return
        # The gate is closed during the turn. It opens again if the broker returns NEXT; an answer or a release within
        # the turn has opened it already.
        inputs = self.shell.process.inputs
        assert inputs is not None
        slot = SimSlot(self.peer, bytearray(self._inbox.popleft()))
        self._slots.append(slot)
        self._gate = slot
        defects = self.shell.process.machine.defects
        frame = memoryview(slot.frame)
        gate = (
            inputs.on_frame(slot, frame)
            if defects is None
            else defects.run_request(lambda: inputs.on_frame(slot, frame))
        )
        if gate is Gate.NEXT and self._gate is slot:
            self._gate = None
        if not slot.held:
            slot.frame[:] = bytes([POISON]) * len(slot.frame)
        self._read_soon()

    def open_gate(self, slot: SimSlot) -> None:
        """Allow the next request to be read, if this slot blocked it."""
        if self._gate is slot:
            self._gate = None
            self._read_soon()

    # ---- replies ----

    def answer_slot(self, slot: SimSlot, parts: Sequence[Part]) -> None:
        """Set the parts of a slot, and send it when it is the oldest."""
        assert slot.parts is None, "a slot was answered twice"
        slot.parts = parts
        self.open_gate(slot)
        self._send_soon()

    def _send_soon(self) -> None:
        if self._slots and self._slots[0].parts is not None and not self._sending and self.open:
            self._sending = True
            timeline = self.shell.process.timeline
            delay = max(SEND_NS, self.stalled_until_ns - timeline.now_ns)
            self.shell.process.post_thread(delay, "send", self._send_reply)

    def _send_reply(self) -> None:
        self._sending = False
        if not self.open:
            return
        # The reader may have stalled after this event was scheduled. Regions are read only now, when the reply leaves:
        # a truncation meanwhile makes them invalid.
        if self.stalled_until_ns > self.shell.process.timeline.now_ns:
            self._send_soon()
            return
        slot = self._slots.popleft()
        assert slot.parts is not None
        if slot.parts:
            frame = self._resolve_parts(slot.parts)
            if frame is None:
                self.shell.process.timeline.trace_fact(f"c{self.connection.number} region refused")
                self.close_connection()
                return
            self.shell.network.deliver_frame(self.connection, frame)
        self._send_soon()

    def _resolve_parts(self, parts: Sequence[Part]) -> bytes | None:
        """The bytes to send; None when the file of a region was truncated, is too short, or cannot be read."""
        resolved = [self._bytes_of(part) for part in parts]
        if any(part is None for part in resolved):
            return None
        return b"".join(part for part in resolved if part is not None)

    def _bytes_of(self, part: Part) -> bytes | bytearray | memoryview | None:
        if not isinstance(part, Region):
            return part
        file = part.file
        assert isinstance(file, SimFile), "a region of another shell"
        if file.generation != part.generation:
            return None
        if file.disk.faults.broken:
            return None
        found = file.inode.data[part.pos : part.pos + part.size]
        return found if len(found) == part.size else None

    # ---- endings ----

    def close_connection(self) -> None:
        """The node closes the connection; `on_gone` follows as a separate turn."""
        if self.open:
            self._drop_slots()
            self.shell.network.close_from_node(self.connection)

    def on_peer_gone(self) -> None:
        """The end of the connection arrived at the node."""
        if self.open and self.shell.process.alive:
            self._drop_slots()

    def _drop_slots(self) -> None:
        self.open = False
        self._inbox.clear()
        self.shell.process.post_turn(0, "on_gone", self._on_gone)

    def _on_gone(self) -> None:
        inputs = self.shell.process.inputs
        assert inputs is not None
        inputs.on_gone(self.peer)


class NodeNetwork:
    """The network as one process sees it."""

    def __init__(self, process: Process, network: Network) -> None:
        self.process = process
        self.network = network
        self.client_listener = BROKERS
        """The listener of connections that are not a node's."""
        self.draining = False
        """The broker is stopping: no more requests are read, and those that were read are answered."""
        self._calls: dict[tuple[int, str], Calls] = {}

    @property
    def life(self) -> int:
        """The life of the machine's process."""
        return self.process.life

    def listener_of(self, host: str) -> str:
        """The listener to which a host connects; empty for this node itself."""
        if host == f"node{self.process.machine.node}":
            return ""
        return BROKERS if host.startswith("node") else self.client_listener

    def start_listening(self) -> None:
        """Accept connections from now on."""
        self.network.start_listening(self.process.machine.node, self)

    def accept_connection(self, connection: Connection) -> ServerEnd:
        """A client connects."""
        return ServerEnd(self, connection)

    def send_reply(self, slot: Slot, parts: Sequence[Part]) -> None:
        """Answer a request; answers leave in the order of the requests."""
        assert isinstance(slot, SimSlot)
        slot.peer.end.answer_slot(slot, parts)

    def open_gate(self, slot: Slot) -> None:
        """Open the gate that this slot closed, before its reply is sent."""
        assert isinstance(slot, SimSlot)
        slot.peer.end.open_gate(slot)

    def hold_frame(self, slot: Slot, frame: memoryview) -> memoryview:
        """Keep the frame valid after `on_frame` returns."""
        assert isinstance(slot, SimSlot)
        slot.held = True
        return frame

    def pause_reading(self, peer: Peer, until_ns: int) -> None:
        """Read nothing from this peer before that time of the process's clock."""
        assert isinstance(peer, SimPeer)
        mono_ns = self.process.clock.now().mono_ns
        peer.end.muted_until_ns = self.process.timeline.now_ns + max(0, until_ns - mono_ns)

    def set_frame_bounds(self, peer: Peer, least: int, most: int | None) -> None:
        """Does nothing: no client here sends frames of another size than it should."""

    def measure_turns(self, report: Callable[[Peer, int], None] | None) -> None:
        """Does nothing: a simulated turn takes no time."""

    def close_connection(self, peer: Peer, why: str) -> None:
        """Drop the connection."""
        assert isinstance(peer, SimPeer)
        self.process.timeline.trace_fact(f"c{peer.end.connection.number} closed by node: {why}")
        peer.end.close_connection()

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """Send a request to another node, or to this one; in order per node and lane."""
        calls = self._calls.get((node, lane))
        if calls is None:
            calls = self._calls[node, lane] = Calls(self.process, self.network, node)
        calls.submit_call(frame, deadline_ns, done)

    def stall_queue(self, lane: str, until_ns: int) -> None:
        """Delay later frames of this lane to other nodes until that time; called by the nemesis."""
        for (node, name), calls in self._calls.items():
            if name == lane and node != self.process.machine.node:
                calls.hold_frames_until(until_ns)

    def set_address(self, node: int, host: str, port: int) -> None:
        """Does nothing: the simulated network finds nodes by number."""
