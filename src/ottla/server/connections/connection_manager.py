"""The state that all connections of one loop share: buffers, limits, the broker they serve, and its idle time.

Zone: real. `ottla.server.connections.connection` keeps the state of one connection; `ottla.server.connections.listener`
accepts them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol

from ottla.seams import Gate, Inputs, Peer, Slot
from ottla.server.connections.buffers import BufferPool
from ottla.server.connections.request_memory import LOOK_S, Holder, RequestMemory
from ottla.server.connections.response_memory import Debtor, ResponseMemory
from ottla.server.connections.send_buffer import ScratchBuffer
from ottla.server.loop.clock import RealClock
from ottla.server.loop.garbage_collection import GarbageCollection
from ottla.server.loop.poller import Watch

# `TurnShares` orders the connections that have more requests than one turn runs; `RequestReader`
# decides how many one turn runs. Between two passes the loop polls its sockets, so a request that comes meanwhile waits
# for one pass at most, however many connections have a backlog.

SHARE_NS: Final = 2_000_000
"""Time of one connection before the others get their turn."""

_now = time.monotonic_ns


class Resumable(Protocol):
    """A connection that keeps requests that have not started."""

    def run_backlog(self, until: int) -> None:
        """Start at least one of them, and none after `until` (monotonic, ns)."""
        ...


class TurnShares:
    """Two queues: connections that had to wait, and connections that have used up a share."""

    __slots__ = ("_finish", "_late", "_loop", "_planned", "_soon", "share_ns")

    def __init__(self, loop: asyncio.AbstractEventLoop, finish: Callable[[], None]) -> None:
        """finish: called at the end of each pass."""
        self.share_ns = SHARE_NS
        self._loop = loop
        self._finish = finish
        self._soon: deque[Resumable] = deque()
        self._late: deque[Resumable] = deque()
        self._planned = False

    def resume_later(self, connection: Resumable, late: bool) -> None:
        """Resume a connection after the next poll of the sockets. late: whether it has used up a share."""
        (self._late if late else self._soon).append(connection)
        self._plan_pass()

    def _plan_pass(self) -> None:
        if not self._planned:
            self._planned = True
            self._loop.call_soon(self._run_pass)

    def _run_pass(self) -> None:
        """Resume connections: one share of time for all that had to wait, and one for the first late one."""
        self._planned = False
        # The late one is chosen first: a connection that becomes late in this pass has to wait for the next one.
        late = self._late.popleft() if self._late else None
        until = _now() + self.share_ns
        for _ in range(len(self._soon)):
            self._soon.popleft().run_backlog(until)
            if _now() >= until:
                break
        if late is not None:
            late.run_backlog(_now() + self.share_ns)
        self._finish()
        if self._soon or self._late:
            self._plan_pass()


log = logging.getLogger(__name__)

RECEIVE_BUFFER: Final = 128 * 1024
IDLE_AFTER_S: Final = 0.02
"""Time without requests after which the broker gets idle time; under load it gets a slice at this interval."""
IDLE_BUDGET_NS: Final = 1_000_000
COLLECT_AFTER_S: Final = 2.0
"""Idle time after which cyclic garbage is collected; the request path makes none."""
COLLECT_EVERY_S: Final = 60.0
"""Without idle time, garbage is collected between two requests after this time."""
LOG_LINES_PER_S: Final = 10


class TrafficLimits(NamedTuple):
    """Limits of the configuration that apply to connections."""

    request_max_bytes: int = 104_857_600
    """socket.request.max.bytes"""
    queued_max_bytes: int = -1
    """queued.max.request.bytes; -1: room for two of the largest requests, at least 256 MiB"""
    idle_ms: int = 600_000
    """connections.max.idle.ms; negative: never"""
    first_frame_bytes: Mapping[str, int] = MappingProxyType({})
    """The largest request of a connection that has not begun to log in, by listeners with SASL"""
    unread_max_bytes: int = 128 * 1024 * 1024
    """Answers that peers have not read, over all connections; see `ottla.server.connections.response_memory`"""

    @property
    def request_memory_bytes(self) -> int:
        """Bytes that requests may hold in memory before reading stops."""
        if self.queued_max_bytes > 0:
            return self.queued_max_bytes
        return max(2 * self.request_max_bytes, 256 * 1024 * 1024)


class UnsentAnswers(Debtor, Protocol):
    """The answers of a connection."""

    def flush_answers(self) -> None:
        """Send those that are ready."""
        ...


class OpenConnection(Peer, Protocol):
    """A connection, as its manager uses it (`ottla.server.connections.connection.Connection`)."""

    @property
    def reader(self) -> Holder:
        """The part that holds request memory."""
        ...

    @property
    def responses(self) -> UnsentAnswers:
        """The part that owes answers."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, or an answer for the peer to read it."""
        ...

    def grow_older(self) -> None:
        """Count a quarter of connections.max.idle.ms; close after the fourth without activity."""
        ...

    def stop_requests(self) -> None:
        """Start no more requests."""
        ...

    def close_connection(self) -> None:
        """Close the socket and release everything."""
        ...


class ConnectionManager:
    """The connections of one broker, and the objects that they share."""

    __slots__ = (
        "_collected_at",
        "_garbage",
        "_idle_handle",
        "_idle_time",
        "_inputs",
        "_lines",
        "_lines_at",
        "_looking",
        "_sweep_handle",
        "buffer",
        "clock",
        "connections",
        "limits",
        "loop",
        "on_closed",
        "on_frame",
        "pool",
        "reply_memory",
        "request_memory",
        "resting",
        "scratch",
        "shares",
        "unsent",
        "view",
        "watch",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watch: Watch,
        clock: RealClock,
        limits: TrafficLimits,
        garbage: GarbageCollection | None = None,
    ) -> None:
        self.loop = loop
        self.watch = watch
        self._garbage = garbage
        self._collected_at = loop.time()
        self.clock = clock
        self.limits = limits
        self.buffer = bytearray(RECEIVE_BUFFER)
        self.view = memoryview(self.buffer)
        self.scratch = ScratchBuffer()
        self.unsent: deque[UnsentAnswers] = deque()
        """Connections of this round whose answers are ready. The answers are sent when all connections were called: the
        first answer wakes a peer that sleeps, and it is still busy when the others come."""
        watch.on_served(self.unsent, self.send_answers)
        self.pool = BufferPool()
        self.shares = TurnShares(loop, self.send_answers)
        self.connections: dict[OpenConnection, None] = {}
        self.request_memory = RequestMemory(limits.request_memory_bytes, self._plan_hostage_check)
        self.reply_memory = ResponseMemory(limits.unread_max_bytes, self._all_responses, loop.time, loop.call_later)
        self.on_frame: Callable[[Slot, memoryview], Gate] = _not_ready
        self.on_closed: Callable[[OpenConnection], None] = _do_nothing
        self.resting = True
        """Whether no idle time is planned: the next request plans it (`plan_idle_time`)."""
        self._idle_time = True
        self._inputs: Inputs | None = None
        self._looking = False
        self._idle_handle: asyncio.TimerHandle | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._lines = 0
        self._lines_at = 0.0

    def set_inputs(self, inputs: Inputs) -> None:
        """Set the broker, which receives the requests."""
        self._inputs = inputs
        self.on_frame = inputs.on_frame

    def measure_turns(self, report: Callable[[Peer, int], None] | None) -> None:
        """Report the time of each request's turn, in nanoseconds; None: measure nothing, which costs nothing."""
        assert self._inputs is not None, "only the broker asks for that"
        self.on_frame = self._inputs.on_frame if report is None else _measured(self._inputs.on_frame, report)

    # -- connections ---------------------------------------------------------------------------------------------

    def on_opened(self, connection: OpenConnection) -> None:
        """Register a connection that was accepted."""
        self.connections[connection] = None
        # All open connections are held back already: a new one must not start requests beside them.
        if self.reply_memory.is_exhausted:
            self.reply_memory.hold_back(connection.responses)
        if self._sweep_handle is None and self.limits.idle_ms >= 0:
            self._plan_sweep()

    def on_connection_closed(self, connection: OpenConnection) -> None:
        """Remove a connection that is closed; the broker is informed in a turn of its own."""
        self.connections.pop(connection, None)
        # A connection may be closed within a turn of the broker, and turns are never nested.
        self.loop.call_soon(self._report_gone, connection)
        self.on_closed(connection)

    def _report_gone(self, connection: OpenConnection) -> None:
        self.clock.instant = None
        if self._inputs is not None:
            self._inputs.on_gone(connection)
        if self.resting:
            self.plan_idle_time()

    def _plan_sweep(self) -> None:
        self._sweep_handle = self.loop.call_later(max(self.limits.idle_ms, 4) / 4000, self._sweep_idle)

    def _sweep_idle(self) -> None:
        """Age all connections, four times per connections.max.idle.ms; silent ones close themselves."""
        self._sweep_handle = None
        for connection in list(self.connections):
            connection.grow_older()
        if self.connections:
            self._plan_sweep()

    def send_answers(self) -> None:
        """Send the answers of this round."""
        unsent = self.unsent
        while unsent:
            unsent.popleft().flush_answers()

    # -- memory --------------------------------------------------------------------------------------------------

    def _plan_hostage_check(self) -> None:
        """Plan a check for connections that hold request memory without using it, because another one waits for it."""
        if not self._looking:
            self._looking = True
            self.loop.call_later(LOOK_S, self._check_hostages)

    def _check_hostages(self) -> None:
        self._looking = False
        self.request_memory.close_hostages([each.reader for each in self.connections])
        if self.request_memory.waiting_connections:
            self._plan_hostage_check()

    def _all_responses(self) -> list[UnsentAnswers]:
        return [each.responses for each in self.connections]

    @property
    def is_quiet(self) -> bool:
        """Whether no request waits for its answer, and no answer for its peer."""
        return not any(connection.is_busy for connection in self.connections)

    def stop_requests(self) -> None:
        """Start no more requests; those that have started are finished."""
        for connection in self.connections:
            connection.stop_requests()

    # -- idle time -----------------------------------------------------------------------------------------------

    def plan_idle_time(self) -> None:
        """Plan the broker's idle time, after an input."""
        self.resting = False
        if self._idle_handle is not None:
            self._idle_handle.cancel()
        self._idle_handle = self.loop.call_later(IDLE_AFTER_S, self._run_idle_slice)

    def end_idle_time(self) -> None:
        """End idle time: the broker stops, and background work would use logs that it has just closed."""
        self._idle_time = False

    def _run_idle_slice(self) -> None:
        """Give the broker a slice of idle time; requests that come meanwhile delay the next one (`plan_idle_time`)."""
        self.clock.instant = None
        self.resting = True
        # 1. The broker stops, or does not run yet.
        if not self._idle_time or self._inputs is None:
            return
        # 2. The broker has more background work: another slice after the next poll.
        # 3. It has none: collect garbage after a longer pause, which every request restarts …
        # 4. … but no later than COLLECT_EVERY_S after the last collection.
        if self._inputs.run_background(IDLE_BUDGET_NS):
            self._idle_handle = self.loop.call_later(0, self._run_idle_slice)
        elif self._garbage is not None and self.loop.time() < self._collected_at + COLLECT_EVERY_S:
            self._idle_handle = self.loop.call_later(COLLECT_AFTER_S, self._collect_garbage)
        elif self._garbage is not None:
            self._collect_garbage()

    def _collect_garbage(self) -> None:
        self._idle_handle = None
        self._collected_at = self.loop.time()
        if self._garbage is not None:
            self._garbage.collect_recent()

    def close_all(self) -> None:
        """Close all connections and cancel the timers."""
        for connection in list(self.connections):
            connection.close_connection()
        for handle in (self._idle_handle, self._sweep_handle):
            if handle is not None:
                handle.cancel()
        self._idle_handle = self._sweep_handle = None

    # -- the log -------------------------------------------------------------------------------------------------

    def log_bad_peer(self, text: str, *arguments: object) -> None:
        """Log one line about a bad peer; at most LOG_LINES_PER_S, so that a flood of peers does not flood the log."""
        now = time.monotonic()
        if now - self._lines_at >= 1:
            if self._lines > LOG_LINES_PER_S:
                log.warning("%d more connections were closed or refused in a second", self._lines - LOG_LINES_PER_S)
            self._lines_at = now
            self._lines = 0
        self._lines += 1
        if self._lines <= LOG_LINES_PER_S:
            log.warning(text, *arguments)


def _measured(
    on_frame: Callable[[Slot, memoryview], Gate], report: Callable[[Peer, int], None]
) -> Callable[[Slot, memoryview], Gate]:
    def on_measured_frame(slot: Slot, frame: memoryview) -> Gate:
        began_ns = _now()
        gate = on_frame(slot, frame)
        report(slot.peer, _now() - began_ns)
        return gate

    return on_measured_frame


def _do_nothing(connection: OpenConnection) -> None:
    """The receiver of closed connections until the quotas are set."""


def _not_ready(slot: Slot, frame: memoryview) -> Gate:
    raise AssertionError(f"a request of {len(frame)} bytes from {slot.peer.host} before connect")
