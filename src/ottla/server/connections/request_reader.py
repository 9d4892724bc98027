"""The requests of one connection: received, cut into frames, and run as turns of the broker.

Zone: real. The incoming half of `ottla.server.connections.connection`, and the hot path of the shell: per request one
pass of the loop in `_run_frames`, and the broker's turn. This module does not look into requests.

A connection reads into the buffer that all connections share. It has an own buffer only for an incomplete frame, or for
requests that may not start yet. While any bit of `ConnectionState.blocked` is set it starts no more requests: those
that have come wait in the own buffer.

A turn of a connection is bounded in requests and in time (`SHARE`, `TurnShares.share_ns`): requests beyond that wait in
the own buffer until the other connections have had their turn (`ottla.server.connections.connection_manager`). The
clock is read only between two requests that came together.
"""

from __future__ import annotations

import logging
import mmap
import socket
import struct
import time
from typing import Final

from ottla.seams import Gate
from ottla.server.connections.buffers import reserve_room
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.connection_state import CLOSED, DEPTH, MEMORY, MUTED, ConnectionState
from ottla.server.connections.protocol_diagnosis import diagnose_peer
from ottla.server.connections.request_memory import ORDINARY, PATIENCE, PATIENCE_WAITING, PER_LOOK
from ottla.server.connections.response_queue import (
    ASKED,
    HELD,
    MAX_SLOTS,
    RELEASED,
    RequestSlot,
    ResponseQueue,
)
from ottla.server.connections.send_buffer import LARGE

log = logging.getLogger(__name__)

MIN_FRAME: Final = 8
"""Bytes of api key, version and correlation id: a request is not shorter."""
BIG: Final = 64 * 1024
"""A connection whose last frame was larger reads the next one directly into an own buffer."""
GROWTH: Final = 16
"""A frame gets a buffer of at most GROWTH times the bytes received of it, up to `BIG`; above `BIG`, twice the bytes."""
ROOMY: Final = 1024 * 1024
"""A frame larger than `ORDINARY` of which this many bytes have come gets a mapping for all of it: pages that are not
written to yet cost nothing."""
MUTED_MAX: Final = 128 * 1024
"""Bytes that a throttled connection may keep while others wait for memory: those of one ordinary reception."""
SHARE: Final = 256
"""Most requests of one turn, before the other connections get theirs."""

LATE: Final = -1
"""Passed instead of the end of a share: the share is used up."""

_now = time.monotonic_ns
_size_at = struct.Struct(">i").unpack_from
_new = object.__new__
_WAIT: Final = Gate.WAIT


class RequestReader:
    """The incoming half of a connection, on a non-blocking socket."""

    __slots__ = (
        "_big",
        "_buffer",
        "_connection",
        "_fd",
        "_filled",
        "_lent",
        "_manager",
        "_needed",
        "_own",
        "_paused",
        "_recv",
        "_responses",
        "_resuming",
        "_sock",
        "_stale",
        "charged",
    )

    def __init__(
        self, connection: ConnectionState, manager: ConnectionManager, sock: socket.socket, responses: ResponseQueue
    ) -> None:
        self._connection = connection
        self._manager = manager
        self._responses = responses
        self._sock = sock
        self._fd = sock.fileno()
        self._recv = sock.recv_into
        self._paused = self._resuming = False
        self._buffer: bytearray | mmap.mmap = manager.buffer
        self._own: memoryview | None = None
        self._lent: bytearray | mmap.mmap | None = None
        self._filled = self._needed = self._big = 0
        self._stale = 0
        self.charged = 0
        """Bytes of request memory that are charged for the own buffer."""

    def start_reading(self) -> None:
        """Receive from now on."""
        self._manager.watch.watch_read(self._fd, self.on_readable)

    # -- receiving -----------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Receive, and run each complete request as a turn."""
        if self._connection.blocked or self._own is not None or self._big:
            self._on_readable_seldom()
            return
        manager = self._manager
        buffer = manager.buffer
        try:
            end = self._recv(buffer)
        except OSError as error:
            self._connection.on_socket_error(error)
            return
        if end:
            self._run_frames(buffer, manager.view, end)
        else:
            self._on_ended()

    def _on_readable_seldom(self) -> None:
        # 1. Requests wait in the own buffer and run first. The buffer may be full, and a read of 0 bytes would look
        #    like the end of the connection.
        if self._connection.blocked or self._resuming:
            self._stop_reading()
            return
        own = self._own
        if own is None:
            # 2. The last frame was big, but memory is short: read into the shared buffer like a small one.
            if not self._manager.request_memory.is_roomy(self._big):
                self._big = 0
                self.on_readable()
                return
            # 3. The last frame was big. Big frames often come in a row with the same size: read the next one into
            #    an own buffer of that size, where it need not be copied.
            try:
                own = self._own = self._take_received(self._big)
            except MemoryError:
                self._end_for_memory(self._big)
                return
            limit = self._big
            self._stale = 0
        else:
            # 4. A frame has begun: read its rest, but nothing of the next frame.
            limit = len(own) if self._needed <= 4 else min(len(own), self._needed)
        try:
            count = self._recv(own[self._filled : limit])
        except OSError as error:
            self._connection.on_socket_error(error)
            return
        if count:
            self._connection.active = True
            self._filled += count
            self._continue_frame(0)
        else:
            self._on_ended()

    def _continue_frame(self, until: int) -> None:
        """Run the own buffer if its first frame is complete; else make room for the rest of the frame."""
        own = self._own
        assert own is not None, "no own buffer"
        filled = self._filled
        if filled >= 4:
            size = _size_at(own, 0)[0]
            if not self._connection.frame_min <= size <= self._connection.frame_max:
                self._refuse_frame(own[:filled], size)
                return
            self._needed = size + 4
            if filled >= self._needed:
                self._run_own(own, filled, until)
                return
        if filled == len(own):
            self._grow_buffer(own, filled)

    def _run_own(self, own: memoryview, filled: int, until: int) -> None:
        self._lent = self._buffer
        self._forget_own()
        self._run_frames(own, own, filled, until)
        lent, self._lent = self._lent, None
        if lent is not None:
            charged, self.charged = self.charged, 0
            self._give_buffer(lent, charged)

    def _run_frames(self, buffer: bytearray | memoryview, view: memoryview, end: int, until: int = 0) -> None:
        """Run one turn of the broker per complete frame in view[:end], until the share of this connection is used up.

        The rest is kept. until: the end of the share (monotonic, ns); 0: not known yet.
        """
        connection, responses, manager = self._connection, self._responses, self._manager
        clock = manager.clock
        on_frame = manager.on_frame
        unanswered = responses.unanswered
        connection.active = responses.in_turn = True
        left = SHARE
        pos = last = 0
        while end - pos >= 4 and not connection.blocked:
            size = _size_at(buffer, pos)[0]
            stop = pos + 4 + size
            if not connection.frame_min <= size <= connection.frame_max:  # the broker may have just changed them
                responses.in_turn = False
                self._refuse_frame(view[pos:end], size)
                return
            if stop > end:
                break
            slot: RequestSlot = _new(RequestSlot)
            slot.peer = connection
            slot.responses = responses
            slot.state = ASKED
            # Before the turn, which may answer the request at once.
            unanswered.append(slot)
            clock.instant = None
            # A slot that was answered or released within its turn has a state of RELEASED or more: its gate is not
            # needed.
            if on_frame(slot, view[pos + 4 : stop]) is _WAIT and slot.state < RELEASED:
                responses.close_gate(slot)
            last = size
            pos = stop
            if pos == end:
                break
            left -= 1
            if (_now() >= until or not left) and (until := self._share_end(until, left)) <= 0:
                break
        responses.in_turn = False
        if len(unanswered) >= MAX_SLOTS:
            connection.blocked |= DEPTH
        if last:
            self._big = last + 4 if last > BIG else 0
        # Large answers leave now; small ones leave together at the end of the round (`ConnectionManager.unsent`). The
        # queue's state is read here, not in a method of its own: one call less per turn.
        if responses.outbox is not None or responses.ready_bytes > LARGE:
            responses.flush_answers()
        elif responses.ready or responses.prepared is not None:
            manager.unsent.append(responses)
        if pos < end and not connection.blocked & CLOSED:
            self._keep_received(view, pos, end, until == LATE)
        if manager.resting:
            manager.plan_idle_time()

    def _share_end(self, until: int, left: int) -> int:
        """The end of the share of this turn (monotonic, ns); LATE: it is used up; 0: it cannot be known.

        The share begins at the instant of the first request. If that request did not read the time, its duration is not
        known, and it is a turn of its own.
        """
        if until or not left:
            return LATE
        began = self._manager.clock.instant
        if began is None:
            return 0
        until = began.mono_ns + self._manager.shares.share_ns
        return until if _now() < until else LATE

    # -- memory --------------------------------------------------------------------------------------------------

    def _keep_received(self, view: memoryview, pos: int, end: int, late: bool) -> None:
        """Keep an incomplete frame, or requests that may not start yet, in an own buffer.

        late: whether the share of this turn is used up.
        """
        have = end - pos
        needed = _size_at(view, pos)[0] + 4 if have >= 4 else GROWTH
        waits = have >= needed
        if type(self._lent) is bytearray and (waits or self._connection.blocked) and 4 * have >= len(view):
            # The bytes are in this connection's own buffer, at least a quarter of it: keep the buffer, copy nothing.
            self._buffer, self._lent = self._lent, None
            self._own = view[pos:]
        else:
            try:
                self._copy_rest(view[pos:end], have if waits else needed)
            except MemoryError:
                self._end_for_memory(needed)
                return
        self._filled = have
        self._needed = 4
        self._stale = 0
        if waits and not self._connection.blocked:
            self._resume_soon(late)

    def _copy_rest(self, rest: memoryview, needed: int) -> None:
        have = size = len(rest)
        memory = self._manager.request_memory
        # A blocked connection, or one with complete requests, gets a buffer for the bytes that have come. Only an
        # incomplete frame gets more, if the budget allows; else the connection waits for memory.
        if not self._connection.blocked and have < needed:
            ahead = self._big if memory.is_roomy(self._big) else 0
            size = max(_room_for(needed, have), min(needed, ahead))
            if not memory.may_take(self, size, needed):
                self._connection.blocked |= MEMORY
                size = have
        lent, charged = self._lent, self.charged
        own = self._take_received(size)
        own[:have] = rest
        self._own = own
        if lent is not None:
            self._lent = None
            self._give_buffer(lent, charged)

    def _grow_buffer(self, own: memoryview, filled: int) -> None:
        size = _room_for(self._needed, filled)
        if not self._manager.request_memory.may_take(self, size - filled, self._needed):
            self._connection.blocked |= MEMORY
            return
        try:
            self._enlarge_buffer(own, filled, size)
        except (MemoryError, OSError):
            self._end_for_memory(self._needed)

    def _enlarge_buffer(self, own: memoryview, filled: int, size: int) -> None:
        old, charged = self._buffer, self.charged
        if isinstance(old, mmap.mmap):
            self._own = memoryview(old)[:size]
            self.charged = size
            self._manager.request_memory.charge_bytes(size - charged)
            return
        bigger = self._take_received(size) if size < ROOMY or self._needed <= ORDINARY else self._take_room(size)
        bigger[:filled] = own
        self._own = bigger
        self._give_buffer(old, charged)

    def _take_received(self, size: int) -> memoryview:
        self._buffer = buffer = self._manager.pool.take_buffer(size)
        self.charged = len(buffer)
        self._manager.request_memory.charge_bytes(len(buffer))
        return memoryview(buffer)

    def _take_room(self, size: int) -> memoryview:
        """Map a buffer for the whole frame; returns its first `size` bytes, which alone are charged."""
        self._buffer = buffer = reserve_room(self._needed)
        self.charged = size
        self._manager.request_memory.charge_bytes(size)
        return memoryview(buffer)[:size]

    def _give_buffer(self, buffer: bytearray | mmap.mmap, charged: int) -> None:
        self._manager.pool.give_buffer(buffer)
        self._manager.request_memory.give_back(self, charged)

    def _forget_own(self) -> None:
        self._own = None
        self._buffer = self._manager.buffer
        self._filled = 0
        self._needed = 4

    @property
    def is_collecting(self) -> bool:
        """Whether it keeps part of a frame, or requests that may not start yet."""
        return self._own is not None

    def memory_granted(self) -> None:
        """Continue with a frame that had to wait for memory."""
        self._stale = min(self._stale, PATIENCE - 2)  # at least two more checks, but not the full patience again
        self._connection.clear_reasons(MEMORY)

    def grow_stale(self) -> bool:
        """Count a check that found the same frame incomplete while others wait for memory; True: one too many."""
        # The broker throttles it: the delay is not the peer's fault, unless it would keep much memory meanwhile.
        if self._connection.blocked & MUTED and self.charged <= MUTED_MAX:
            return False
        self._stale += 1
        patience = PATIENCE_WAITING if self._connection.blocked & MEMORY else PATIENCE
        return self._stale > patience + self._filled // PER_LOOK

    def hold_frame(self, slot: RequestSlot, frame: memoryview) -> memoryview:
        """Let the broker keep a frame: it gets the own buffer if the frame fills at least half of it, else a copy."""
        lent = self._lent
        # 1. The frame is in the own buffer and fills much of it: pass on the buffer with its charge.
        if lent is not None and 2 * len(frame) >= len(lent):
            self._lent = None
            slot.held, self.charged = self.charged, 0
        # 2. It is in the shared buffer, or a small part of the own one: copy it.
        else:
            frame = memoryview(bytearray(frame))
            slot.held = len(frame)
            self._manager.request_memory.charge_bytes(slot.held)
        slot.state |= HELD
        self._responses.count_owed(0, slot.held)
        return frame

    # -- pausing and ending ----------------------------------------------------------------------------------------

    def resume_reading(self) -> None:
        """Continue with requests that wait, if there are any: no reason holds them back any more."""
        if self._paused or self._own is not None:
            self._resume_soon(False)

    def _resume_soon(self, late: bool) -> None:
        """Resume from the loop, not now: a turn of the broker may run, and a backlog must not deepen the stack."""
        if not self._resuming:
            self._resuming = True
            self._manager.shares.resume_later(self, late)

    def run_backlog(self, until: int) -> None:
        """Continue with the own buffer, and read again. until: the end of the share, as in `_run_frames`."""
        self._resuming = False
        if self._connection.blocked:
            return
        if self._paused:
            self._paused = False
            self._manager.watch.watch_read(self._fd, self.on_readable)
        if self._own is not None:
            self._continue_frame(until)

    def _stop_reading(self) -> None:
        """Stop reading, because no request may start; close if the peer has closed."""
        try:
            # Nothing watches a paused connection, so its end is looked for before: the broker would keep its requests
            # until it resumes.
            if not self._sock.recv(1, socket.MSG_PEEK):
                self._on_ended()
                return
        except OSError as error:
            self._connection.on_socket_error(error)
            return
        self._paused = True
        self._manager.watch.unwatch_read(self._fd)

    def _refuse_frame(self, head: memoryview, size: int) -> None:
        largest = self._connection.frame_max
        logs_in = largest < self._manager.limits.request_max_bytes
        listener = self._connection.listener
        self._connection.drop_connection(diagnose_peer(bytes(head[:16]), size, largest, listener, logs_in=logs_in))

    def _end_for_memory(self, size: int) -> None:
        """Close: the system has no memory, although the budget allowed this request."""
        self._connection.drop_connection(
            f"the broker has no memory for its request of {size} bytes; the client may send it again"
        )

    def _on_ended(self) -> None:
        log.debug("%s: closed by the peer", self._connection.host)
        self._connection.close_connection()

    def drop_connection(self, why: str) -> None:
        """Close the connection, with one log line."""
        self._connection.drop_connection(why)

    def release_memory(self) -> None:
        """Give the own buffer back: the connection is closed."""
        if self._own is not None:
            buffer = self._buffer
            self._forget_own()
            charged, self.charged = self.charged, 0
            self._give_buffer(buffer, charged)
        self._manager.request_memory.forget_connection(self)


def _room_for(needed: int, have: int) -> int:
    """The size of the buffer for a frame of `needed` bytes of which `have` have come."""
    return min(needed, max(2 * have, min(GROWTH * have, BIG)))
