"""Requests from one node to another (`Network.call_broker` of the seams): in order, each answered exactly once.

Zone: deterministic.
"""

from __future__ import annotations

from collections import deque

from ottla.seams import Done, Failure, Kind
from ottla.sim.machines.machine import Process
from ottla.sim.networks.network import Connection, Network


class Call:
    """One request without an answer."""

    __slots__ = ("answered", "done", "frame", "sent")

    def __init__(self, frame: bytes, done: Done[memoryview]) -> None:
        self.frame = frame
        self.done = done
        self.sent = False
        self.answered = False


class Calls:
    """All calls from one process to one node, over one connection at a time."""

    def __init__(self, process: Process, network: Network, node: int) -> None:
        self._process = process
        self._network = network
        self._node = node
        self._connection: Connection | None = None
        self._open = False
        self._queue: deque[Call] = deque()

    def submit_call(self, frame: bytes, deadline_ns: int, done: Done[memoryview]) -> None:
        """Send the frame after all earlier ones; it fails with TIMEOUT at that time of the process's clock."""
        call = Call(bytes(frame), done)
        self._queue.append(call)
        if self._connection is None:
            self._open_connection()
        elif self._open:
            self._send_call(call)
        wait = max(0, deadline_ns - self._process.clock.now().mono_ns)
        self._process.timeline.schedule_after(wait, "call deadline", self._expire_call, call)

    def hold_frames_until(self, until_ns: int) -> None:
        """Frames on the present connection arrive no earlier than that."""
        if self._connection is not None:
            self._connection.hold_frames_until(until_ns)

    def _open_connection(self) -> None:
        host = f"node{self._process.machine.node}"
        connect = self._network.open_connection
        self._connection = connect(host, self._node, self._on_opened, self._on_response, self._on_lost)

    def _on_opened(self, connection: Connection) -> None:
        if not self._process.alive:
            self._network.close_connection(connection)
            return
        self._open = True
        for call in self._queue:
            self._send_call(call)

    def _send_call(self, call: Call) -> None:
        assert self._connection is not None
        call.sent = True
        self._network.send_frame(self._connection, call.frame)

    def _on_response(self, frame: bytes) -> None:
        call = self._queue.popleft()
        if not call.answered:
            call.answered = True
            self._process.post_turn(0, "call answered", self._process.deliver_completion, call.done, memoryview(frame))

    def _on_lost(self) -> None:
        self._connection, self._open = None, False
        queue, self._queue = self._queue, deque()
        for call in queue:
            kind = Kind.UNKNOWN if call.sent else Kind.NOT_DONE
            self._fail_call(call, Failure(kind, f"connection to node {self._node} lost"))

    def _expire_call(self, call: Call) -> None:
        self._fail_call(call, Failure(Kind.TIMEOUT, f"no answer from node {self._node}"))

    def _fail_call(self, call: Call, failure: Failure) -> None:
        if not call.answered:
            call.answered = True
            self._process.post_turn(0, "call failed", self._process.deliver_completion, call.done, failure)
