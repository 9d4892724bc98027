"""One connection of a client: frames in, ordered answers out.

Zone: real. The hot path of the shell: per request one pass of the loop in `_run`, the broker's turn, `answer`, `flush`.
Nothing here knows what a request means; listening and limits per address are `ottla.server.connections.listener`'s.

A connection reads into the buffer that all share, and keeps one of its own only for a frame that has not come whole.
While any bit of `_blocked` is set it starts no more requests; what came already waits in that own buffer.

A turn of a connection is bounded in requests and in time (`SHARE`, `TurnShares.share_ns`): what came beyond that waits
in the own buffer, too, until the other connections have had their turn (`ottla.server.connections.connection_manager`).
The clock is read only between two requests that came together.
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
from ottla.server.connections.protocol_diagnosis import diagnosis
from ottla.server.connections.request_memory import ORDINARY, PATIENCE, PATIENCE_WAITING, PER_LOOK
from ottla.server.connections.response_queue import (
    ASKED,
    CLOSED,
    DEPTH,
    DRAINING,
    GATE,
    HELD,
    MAX_SLOTS,
    MEMORY,
    MUTED,
    RELEASED,
    RequestSlot,
    ResponseQueue,
)
from ottla.server.connections.send_buffer import LARGE

log = logging.getLogger(__name__)

MIN_FRAME: Final = 8
"""api key, version, correlation id: less is no request."""
BIG: Final = 64 * 1024
"""A connection whose last frame was larger reads the next one straight into a buffer of its own."""
GROWTH: Final = 16
"""A frame gets memory for at most this many times the bytes that have come of it, up to `BIG`; beyond, for twice."""
ROOMY: Final = 1024 * 1024
"""From so many bytes that have come on a frame larger than `ORDINARY` gets its whole room: what is not written to yet
costs nothing."""
SHARE: Final = 256
"""Requests that came together and are run before the other connections get their turn."""

LATE: Final = -1
"""In place of the end of a share: it is used up."""

_now = time.monotonic_ns
_size_at = struct.Struct(">i").unpack_from
_new = object.__new__
_WAIT: Final = Gate.WAIT


class Connection(ResponseQueue):
    """A peer on a non-blocking socket."""

    __slots__ = (
        "_age",
        "_big",
        "_buffer",
        "_filled",
        "_lent",
        "_needed",
        "_own",
        "_paused",
        "_recv",
        "_resuming",
        "_stale",
        "charged",
    )

    def __init__(self, traffic: ConnectionManager, sock: socket.socket, listener: str, host: str) -> None:
        super().__init__(traffic, sock, listener, host)
        self._recv = sock.recv_into
        self._paused = self._resuming = False
        self._buffer: bytearray | mmap.mmap = traffic.buffer
        self._own: memoryview | None = None
        self._lent: bytearray | mmap.mmap | None = None
        self._filled = self._needed = self._big = 0
        self._age = self._stale = 0
        self.charged = 0
        """Bytes of request memory that the own buffer counts for."""
        traffic.on_opened(self)
        traffic.watch.read(self._fd, self.on_readable)

    # -- in ------------------------------------------------------------------------------------------------------

    def on_readable(self) -> None:
        """Take what came, and run each whole request as a turn."""
        if self._blocked or self._own is not None or self._big:
            self._on_readable_seldom()
            return
        traffic = self._traffic
        buffer = traffic.buffer
        try:
            end = self._recv(buffer)
        except OSError as error:
            self._broken(error)
            return
        if end:
            self._run(buffer, traffic.view, end)
        else:
            self._on_ended()

    def _on_readable_seldom(self) -> None:
        if self._blocked or self._resuming:
            # What waits runs first; its buffer may be full, and a read of no bytes would look like the end.
            self._pause()
            return
        own = self._own
        if own is None:
            if not self._traffic.request_memory.is_roomy(self._big):
                self._big = 0
                self.on_readable()
                return
            # Big frames come in rows of one size: the next one is read where it can stay.
            try:
                own = self._own = self._take_received(self._big)
            except MemoryError:
                self._end_for_memory(self._big)
                return
            limit = self._big
            self._stale = 0
        else:
            limit = len(own) if self._needed <= 4 else min(len(own), self._needed)
        try:
            count = self._recv(own[self._filled : limit])
        except OSError as error:
            self._broken(error)
            return
        if count:
            self._active = True
            self._filled += count
            self._go_on(0)
        else:
            self._on_ended()

    def _go_on(self, until: int) -> None:
        """Run the own buffer when its first frame is whole, else see that there is room for the rest."""
        own = self._own
        assert own is not None, "nothing was kept"
        filled = self._filled
        if filled >= 4:
            size = _size_at(own, 0)[0]
            if size < MIN_FRAME or size > self._traffic.limits.request_max_bytes:
                self._refuse(own[:filled], size)
                return
            self._needed = size + 4
            if filled >= self._needed:
                self._run_own(own, filled, until)
                return
        if filled == len(own):
            self._grow(own, filled)

    def _run_own(self, own: memoryview, filled: int, until: int) -> None:
        self._lent = self._buffer
        self._forget_own()
        self._run(own, own, filled, until)
        lent, self._lent = self._lent, None
        if lent is not None:
            charged, self.charged = self.charged, 0
            self._give(lent, charged)

    def _run(self, buffer: bytearray | memoryview, view: memoryview, end: int, until: int = 0) -> None:
        """One turn of the broker per whole frame in view[:end], as far as the share of this connection goes.

        The rest is kept. until: the end of the share (monotonic, ns); 0: not known yet.
        """
        traffic = self._traffic
        clock = traffic.clock
        on_frame = traffic.on_frame
        largest = traffic.limits.request_max_bytes
        queue = self._queue
        self._active = self._running = True
        left = SHARE
        pos = last = 0
        while end - pos >= 4 and not self._blocked:
            size = _size_at(buffer, pos)[0]
            stop = pos + 4 + size
            if size < MIN_FRAME or size > largest:
                self._running = False
                self._refuse(view[pos:end], size)
                return
            if stop > end:
                break
            slot: RequestSlot = _new(RequestSlot)
            slot.peer = self
            slot.state = ASKED
            queue.append(slot)
            clock.instant = None
            if on_frame(slot, view[pos + 4 : stop]) is _WAIT and slot.state < RELEASED:
                if not self._blocked & CLOSED:  # else nothing would clear it, and it holds this connection
                    self._gate = slot
                self._blocked |= GATE
            last = size
            pos = stop
            if pos == end:
                break
            left -= 1
            if (_now() >= until or not left) and (until := self._share_end(until, left)) <= 0:
                break
        self._running = False
        if len(queue) >= MAX_SLOTS:
            self._blocked |= DEPTH
        if last:
            self._big = last + 4 if last > BIG else 0
        if self._outbox is not None or self._ready > LARGE:
            self.flush()
        elif self._out or self._straight is not None:
            traffic.unsent.append(self)
        if pos < end and not self._blocked & CLOSED:
            self._keep(view, pos, end, until == LATE)
        if traffic.resting:
            traffic.stir()

    def _share_end(self, until: int, left: int) -> int:
        """When the share of this turn ends (monotonic, ns); LATE: it is used up; 0: it cannot be known.

        A first request that did not ask for the time may have taken any time, so it is a turn of its own.
        """
        if until or not left:
            return LATE
        began = self._traffic.clock.instant
        if began is None:
            return 0
        until = began.mono_ns + self._traffic.shares.share_ns
        return until if _now() < until else LATE

    # -- memory --------------------------------------------------------------------------------------------------

    def _keep(self, view: memoryview, pos: int, end: int, late: bool) -> None:
        """Keep an unfinished frame, or requests that may not start yet, in an own buffer.

        late: the share of this turn was used up.
        """
        have = end - pos
        needed = _size_at(view, pos)[0] + 4 if have >= 4 else GROWTH
        waits = have >= needed
        if type(self._lent) is bytearray and (waits or self._blocked) and 4 * have >= len(view):
            # The buffer is ours, and a good part of it is still of use.
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
        if waits and not self._blocked:
            self._resume_soon(late)

    def _copy_rest(self, rest: memoryview, needed: int) -> None:
        have = size = len(rest)
        memory = self._traffic.request_memory
        if not self._blocked and have < needed:
            ahead = self._big if memory.is_roomy(self._big) else 0
            size = max(_room_for(needed, have), min(needed, ahead))
            if not memory.may_take(self, size, needed):
                self._blocked |= MEMORY
                size = have
        lent, charged = self._lent, self.charged
        own = self._take_received(size)
        own[:have] = rest
        self._own = own
        if lent is not None:
            self._lent = None
            self._give(lent, charged)

    def _grow(self, own: memoryview, filled: int) -> None:
        size = _room_for(self._needed, filled)
        if not self._traffic.request_memory.may_take(self, size - filled, self._needed):
            self._blocked |= MEMORY
            return
        try:
            self._enlarge(own, filled, size)
        except (MemoryError, OSError):
            self._end_for_memory(self._needed)

    def _enlarge(self, own: memoryview, filled: int, size: int) -> None:
        old, charged = self._buffer, self.charged
        if isinstance(old, mmap.mmap):
            self._own = memoryview(old)[:size]
            self.charged = size
            self._traffic.request_memory.charge(size - charged)
            return
        bigger = self._take_received(size) if size < ROOMY or self._needed <= ORDINARY else self._take_room(size)
        bigger[:filled] = own
        self._own = bigger
        self._give(old, charged)

    def _take_received(self, size: int) -> memoryview:
        self._buffer = buffer = self._traffic.pool.take_buffer(size)
        self.charged = len(buffer)
        self._traffic.request_memory.charge(len(buffer))
        return memoryview(buffer)

    def _take_room(self, size: int) -> memoryview:
        """A buffer for the whole frame; the caller may write its first `size` bytes."""
        self._buffer = buffer = reserve_room(self._needed)
        self.charged = size
        self._traffic.request_memory.charge(size)
        return memoryview(buffer)[:size]

    def _give(self, buffer: bytearray | mmap.mmap, charged: int) -> None:
        self._traffic.pool.give(buffer)
        self._traffic.request_memory.give_back(self, charged)

    def _forget_own(self) -> None:
        self._own = None
        self._buffer = self._traffic.buffer
        self._filled = 0
        self._needed = 4

    def _memory_freed(self, size: int) -> None:
        self._traffic.request_memory.give_back(self, size)

    @property
    def collects(self) -> bool:
        """Whether part of a frame, or requests that may not start yet, are kept."""
        return self._own is not None

    def memory_granted(self) -> None:
        """Go on with a frame that had to wait for memory."""
        self._stale = min(self._stale, PATIENCE - 2)  # time to go on, but not all of it again
        self._unblock(MEMORY)

    def grow_stale(self) -> bool:
        """Others wait for memory, and the same frame is still unfinished; returns whether that was once too often."""
        if self._blocked & MUTED:  # we ourselves keep it waiting
            return False
        self._stale += 1
        patience = PATIENCE_WAITING if self._blocked & MEMORY else PATIENCE
        return self._stale > patience + self._filled // PER_LOOK

    def hold(self, slot: RequestSlot, frame: memoryview) -> memoryview:
        """Let the broker keep a frame: it gets the buffer when the frame fills it, else a copy."""
        lent = self._lent
        if self._blocked & CLOSED:
            return memoryview(bytearray(frame))
        if lent is not None and 2 * len(frame) >= len(lent):
            self._lent = None
            slot.held, self.charged = self.charged, 0
        else:
            frame = memoryview(bytearray(frame))
            slot.held = len(frame)
            self._traffic.request_memory.charge(slot.held)
        slot.state |= HELD
        self._owe(0, slot.held)
        return frame

    # -- holding back --------------------------------------------------------------------------------------------

    def mute(self, until_ns: int) -> None:
        """Read nothing before that time."""
        if not self._blocked & (MUTED | CLOSED):
            self._blocked |= MUTED
            self._traffic.loop.call_at(until_ns / 1e9, self._unblock, MUTED)

    def _unblock(self, reasons: int) -> None:
        self._blocked &= ~reasons
        if not self._blocked and (self._paused or self._own is not None):
            self._resume_soon(False)

    def _resume_soon(self, late: bool) -> None:
        """Not now: a turn of the broker may run, and a long backlog must not become a deep stack."""
        if not self._resuming:
            self._resuming = True
            self._traffic.shares.resume_later(self, late)

    def resume(self, until: int) -> None:
        """Go on with what is kept, and read again. until: the end of the share, as in `_run`."""
        self._resuming = False
        if self._blocked:
            return
        if self._paused:
            self._paused = False
            self._traffic.watch.read(self._fd, self.on_readable)
        if self._own is not None:
            self._go_on(until)

    def _pause(self) -> None:
        """There is something to read, but nothing may be: stop listening, unless it is the end."""
        try:
            if not self._sock.recv(1, socket.MSG_PEEK):
                self._on_ended()
                return
        except OSError as error:
            self._broken(error)
            return
        self._paused = True
        self._traffic.watch.unread(self._fd)

    def drain(self) -> None:
        """Start no more requests: the broker is about to stop."""
        self._blocked |= DRAINING

    def grow_older(self) -> None:
        """A quarter of connections.max.idle.ms has passed; the fifth without a sign of life is the last."""
        if self._active or (self._queue and not self._writing):
            self._active = False
            self._age = 0
            return
        self._age += 1
        if self._age >= 4:
            log.info("%s: closed after connections.max.idle.ms without a request", self.host)
            self.close()

    # -- the end -------------------------------------------------------------------------------------------------

    def _refuse(self, head: memoryview, size: int) -> None:
        largest = self._traffic.limits.request_max_bytes
        self.drop(diagnosis(bytes(head[:16]), size, largest, self.listener))

    def _end_for_memory(self, size: int) -> None:
        """The system gives no memory, whatever the budget says: that costs this connection."""
        self.drop(f"the broker has no memory for its request of {size} bytes; it may be sent again")

    def _on_ended(self) -> None:
        log.debug("%s: closed by the peer", self.host)
        self.close()

    def close(self) -> None:
        """Let everything go; the broker is told in a turn of its own."""
        if self._blocked & CLOSED:
            return
        self._blocked |= CLOSED
        traffic = self._traffic
        traffic.watch.unread(self._fd)
        traffic.watch.unwrite(self._fd)
        self._sock.close()
        self._drop_answers()
        if self._own is not None:
            buffer = self._buffer
            self._forget_own()
            charged, self.charged = self.charged, 0
            self._give(buffer, charged)
        traffic.request_memory.forget_connection(self)
        traffic.closed(self)


def _room_for(needed: int, have: int) -> int:
    """Bytes that a frame of `needed` bytes gets when `have` of them have come."""
    return min(needed, max(2 * have, min(GROWTH * have, BIG)))
