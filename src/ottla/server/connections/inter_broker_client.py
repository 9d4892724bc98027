"""Requests to brokers: one ordered connection per node and lane, and a loopback for calls to this broker.

Zone: real. Chooses the connection of a call, and runs calls of a broker to itself;
`ottla.server.connections.broker_connection` is one connection. The content of the requests is the broker's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from ottla.seams import Done, Failure, Gate, Inputs, Kind, Part, Region
from ottla.server.connections.broker_connection import BrokerCall, BrokerConnection, ConnectionContext
from ottla.server.connections.buffers import BufferPool
from ottla.server.connections.send_buffer import StaleRegion, pin_parts, unpin_part
from ottla.server.disks.file import RealFile
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.loop.poller import LoopWatch

LANE_BUFFER: Final = 128 * 1024
IN_ONE_GO: Final = 100
"""Calls of a broker to itself in one round, before other connections get their turn."""


Connect = Callable[[ConnectionContext, int, tuple[str, int]], BrokerConnection]


class InterBrokerClient:
    """Sends a call over the connection of its node and lane."""

    __slots__ = ("_addresses", "_connect", "_here", "_lines", "_node", "_turns", "_wiring")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        turns: CompletionQueue,
        node: int,
        shared: ConnectionContext | None = None,
        connect: Connect = BrokerConnection,
    ) -> None:
        """`shared`: the watch and the buffers of this broker's connections; None: its own. `connect`: makes a
        connection from the context, the number of the broker and its address."""
        self._turns = turns
        if shared is None:
            shared = ConnectionContext(loop, LoopWatch(loop), turns, BufferPool(), memoryview(bytearray(LANE_BUFFER)))
        self._wiring = shared
        self._connect = connect
        self._node = node
        self._addresses: dict[int, tuple[str, int]] = {}
        self._here = Loopback(loop, turns)
        self._lines: dict[int, dict[str, BrokerConnection]] = {}

    def set_address(self, node: int, host: str, port: int) -> None:
        """Set the address of a broker; connections to an earlier address are closed."""
        if self._addresses.get(node) != (host, port):
            self._addresses[node] = (host, port)
            for line in self._lines.pop(node, {}).values():
                line.fail_calls(f"broker {node} has moved to {host}:{port}")

    def set_inputs(self, inputs: Inputs) -> None:
        """Set the broker of this node, which receives the calls to itself."""
        self._here.set_inputs(inputs)

    def call_broker(self, node: int, frame: bytes, deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """Send a request (without length prefix); `done` gets the answer, header included, or a Failure."""
        call = BrokerCall(bytes(frame), deadline_ns, done)
        if node == self._node:
            self._here.submit_call(call)
            return
        lines = self._lines.setdefault(node, {})
        line = lines.get(lane)
        if line is None:
            address = self._addresses.get(node)
            if address is None:
                self._turns.run_soon(done, Failure(Kind.NOT_DONE, f"the address of broker {node} is not known"))
                return
            line = lines[lane] = self._connect(self._wiring, node, address)
        line.submit_call(call)

    def close_all(self) -> None:
        """Close all connections; calls that wait for an answer fail."""
        for node in sorted(self._lines):
            for line in self._lines[node].values():
                line.fail_calls("the broker stops")


class LoopbackSlot:
    """The place of the answer to a call of this broker to itself."""

    __slots__ = ("call", "peer", "released", "responses")

    def __init__(self, peer: Loopback, call: BrokerCall) -> None:
        self.peer = self.responses = peer
        self.call = call
        self.released = False


class Loopback:
    """This broker as its own peer: the same turns as over a socket, without a socket."""

    __slots__ = (
        "_answers",
        "_gate",
        "_inputs",
        "_loop",
        "_planned",
        "_queue",
        "_running",
        "_settled",
        "_timer",
        "_timer_ns",
        "_turns",
        "host",
        "listener",
        "principal",
    )

    def __init__(self, loop: asyncio.AbstractEventLoop, turns: CompletionQueue) -> None:
        self.listener = ""
        self.host = "127.0.0.1"
        self.principal = "User:ANONYMOUS"
        self._loop = loop
        self._turns = turns
        self._inputs: Inputs | None = None
        self._queue: deque[LoopbackSlot] = deque()
        self._answers: dict[LoopbackSlot, memoryview | Failure | None] = {}
        self._gate: LoopbackSlot | None = None
        self._planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._running = False
        self._settled: deque[tuple[Done[memoryview], memoryview | Failure]] = deque()
        """Answers of the current round, which are delivered after the turn in which they were made."""

    def set_inputs(self, inputs: Inputs) -> None:
        """Set the broker."""
        self._inputs = inputs

    def submit_call(self, call: BrokerCall) -> None:
        """Queue a call to this broker; it runs in a later turn."""
        self._queue.append(LoopbackSlot(self, call))
        self._plan_run()

    def _plan_run(self) -> None:
        if not self._planned and self._queue and self._gate is None:
            self._planned = True
            self._loop.call_soon(self._run_queued)

    def _run_queued(self) -> None:
        """Run queued calls and deliver their answers, each in a turn of its own.

        With one call per round of the loop, a round of all clients would pass between any two of them.
        """
        self._planned = False
        self._running = True
        for _ in range(IN_ONE_GO):
            if self._gate is not None or not self._queue:
                break
            self._run_one()
            while self._settled:
                self._turns.run_now(*self._settled.popleft())
        self._running = False
        self._plan_run()

    def _run_one(self) -> None:
        assert self._inputs is not None, "a call before connect"
        slot = self._queue.popleft()
        self._answers[slot] = None
        self._watch_deadline(slot.call.deadline_ns)
        self._turns.clock.instant = None
        gate = self._inputs.on_frame(slot, memoryview(bytearray(slot.call.frame)))
        # The slot may have been answered or released within this turn: then nothing would open the gate later.
        if gate is Gate.WAIT and not slot.released and slot in self._answers:
            self._gate = slot

    def _watch_deadline(self, deadline_ns: int) -> None:
        """Set the one timer to that time if it is earlier: nearly every call is answered long before its deadline."""
        if self._timer is None or deadline_ns < self._timer_ns:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_ns = deadline_ns
            self._timer = self._loop.call_at(deadline_ns / 1e9, self._expire_calls)

    def _expire_calls(self) -> None:
        """Fail the calls whose deadline has passed, and set the timer to the next deadline."""
        due_ns, self._timer = self._timer_ns, None
        missing = [slot for slot, answer in self._answers.items() if answer is None]
        for slot in missing:
            if slot.call.deadline_ns <= due_ns:
                self._settle_call(slot, Failure(Kind.TIMEOUT, "this broker did not answer itself in time"))
            else:
                self._watch_deadline(slot.call.deadline_ns)

    def queue_answer(self, slot: LoopbackSlot, parts: Sequence[Part]) -> None:
        """Deliver the answer to the caller, after the answers to earlier calls."""
        if slot in self._answers:
            try:
                self._settle_call(slot, memoryview(b"".join(map(_part_bytes, parts))))
            except StaleRegion as stale:
                self._settle_call(slot, Failure(Kind.UNKNOWN, str(stale)))

    def _settle_call(self, slot: LoopbackSlot, outcome: memoryview | Failure) -> None:
        self._answers[slot] = outcome
        self.open_gate(slot)
        # Answers keep the order of the calls: this one may have to wait for earlier ones, or later ones for it.
        while self._answers:
            first = next(iter(self._answers))
            ready = self._answers[first]
            if ready is None:
                return
            del self._answers[first]
            # A turn runs: the answer is delivered after it, in this round. Otherwise a turn is queued on the loop.
            if self._running:
                self._settled.append((first.call.done, ready))
            else:
                self._turns.run_soon(first.call.done, ready)

    def open_gate(self, slot: LoopbackSlot) -> None:
        """Open the gate of this slot."""
        slot.released = True
        if self._gate is slot:
            self._gate = None
            self._plan_run()

    def hold_frame(self, slot: LoopbackSlot, frame: memoryview) -> memoryview:  # noqa: ARG002 - same face as a connection
        """Return the frame itself: it is a copy already."""
        return frame

    def pause_reading(self, until_ns: int) -> None:
        """Do nothing: a broker does not throttle itself."""

    def drop_connection(self, why: str) -> None:
        """Fail the outstanding calls, as if their connection were lost."""
        for slot in list(self._answers):
            if slot in self._answers and self._answers[slot] is None:
                self._settle_call(slot, Failure(Kind.UNKNOWN, why))


def _part_bytes(part: Part) -> bytes | bytearray | memoryview:
    if not isinstance(part, Region):
        return part
    pin_parts((part,))
    try:
        file = part.file
        assert isinstance(file, RealFile), "a region of another shell"
        into = memoryview(bytearray(part.size))
        if file.generation != part.generation or file.read_now(part.pos, into) != part.size:
            raise StaleRegion("the file was truncated")
        return into
    finally:
        unpin_part(part)
