"""One connection of a client: frames in, ordered answers out.

Zone: real. The hot path of the shell: per request one pass of the loop in `_run`, the broker's turn, `answer`, `flush`.
Nothing here knows what a request means; listening and limits per address are `ottla.server.listener`'s.

A connection reads into the buffer that all share, and keeps one of its own only for a frame that has not come whole.
While any bit of `_blocked` is set it starts no more requests; what came already waits in that own buffer.
"""

from __future__ import annotations

import logging
import socket
import struct
from typing import Final

from ottla.seams import Gate
from ottla.server.badpeer import diagnosis
from ottla.server.outbox import LARGE
from ottla.server.replies import (
    ASKED,
    CLOSED,
    DEPTH,
    DRAINING,
    GATE,
    HELD,
    MAX_OWED,
    MAX_SLOTS,
    MEMORY,
    MUTED,
    OUTPUT,
    RELEASED,
    Replies,
    RequestSlot,
)
from ottla.server.traffic import Traffic

log = logging.getLogger(__name__)

MIN_FRAME: Final = 8
"""api key, version, correlation id: less is no request."""
BIG: Final = 64 * 1024
"""A connection whose last frame was larger reads the next one straight into a buffer of its own."""
GROWTH: Final = 16
"""A frame gets memory for at most this many times the bytes that have come of it."""

_size_at = struct.Struct(">i").unpack_from
_new = object.__new__
_WAIT: Final = Gate.WAIT


class Connection(Replies):
    """A peer on a non-blocking socket."""

    __slots__ = ("_age", "_big", "_buffer", "_filled", "_lent", "_needed", "_own", "_paused", "_recv", "_resuming")

    def __init__(self, traffic: Traffic, sock: socket.socket, listener: str, host: str) -> None:
        super().__init__(traffic, sock, listener, host)
        self._recv = sock.recv_into
        self._paused = self._resuming = False
        self._buffer = traffic.buffer
        self._own: memoryview | None = None
        self._lent: bytearray | None = None
        self._filled = self._needed = self._big = 0
        self._age = 0
        traffic.opened(self)
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
            self._ended()

    def _on_readable_seldom(self) -> None:
        if self._blocked:
            self._pause()
            return
        if self._resuming:
            return  # what waits runs first; its buffer may be full, and a read of no bytes would look like the end
        own = self._own
        if own is None:
            if not self._traffic.budget.allows(self._big):
                self._big = 0
                self.on_readable()
                return
            # Big frames come in rows of one size: the next one is read where it can stay.
            own = self._own = self._take(self._big)
            limit = self._big
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
            self._go_on()
        else:
            self._ended()

    def _go_on(self) -> None:
        """Run the own buffer when its first frame is whole, else see that there is room for the rest."""
        own = self._own
        assert own is not None, "nothing was kept"
        filled = self._filled
        if filled >= 4:
            size = _size_at(self._buffer, 0)[0]
            if size < MIN_FRAME or size > self._traffic.limits.request_max_bytes:
                self._refuse(own[:filled], size)
                return
            self._needed = size + 4
            if filled >= self._needed:
                self._run_own(own, filled)
                return
        if filled == len(own):
            self._grow(own, filled)

    def _run_own(self, own: memoryview, filled: int) -> None:
        self._lent = self._buffer
        self._forget_own()
        self._run(self._lent, own, filled)
        if self._lent is not None:
            self._give(self._lent)
            self._lent = None

    def _run(self, buffer: bytearray, view: memoryview, end: int) -> None:
        """One turn of the broker per whole frame in view[:end]; the rest is kept."""
        traffic = self._traffic
        clock = traffic.clock
        on_frame = traffic.on_frame
        largest = traffic.limits.request_max_bytes
        queue = self._queue
        self._active = self._running = True
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
                self._gate = slot
                self._blocked |= GATE
            elif len(queue) >= MAX_SLOTS:
                self._blocked |= DEPTH
            last = size
            pos = stop
        self._running = False
        if last:
            self._big = last + 4 if last > BIG else 0
        if self._outbox is not None or self._owed > LARGE:
            self.flush()
        elif self._out or self._straight is not None:
            traffic.unsent.append(self)
        if pos < end and not self._blocked & CLOSED:
            self._keep(buffer, view, pos, end)
        if traffic.resting:
            traffic.stir()

    # -- memory --------------------------------------------------------------------------------------------------

    def _keep(self, buffer: bytearray, view: memoryview, pos: int, end: int) -> None:
        """Copy an unfinished frame, or requests that may not start yet, into an own buffer."""
        have = end - pos
        needed = _size_at(buffer, pos)[0] + 4 if have >= 4 else GROWTH
        size = have
        if not self._blocked and have < needed:
            size = min(needed, max(GROWTH * have, self._big))
            if not self._traffic.may_take(self, size):
                self._blocked |= MEMORY
                size = have
        own = self._take(size)
        own[:have] = view[pos:end]
        self._own = own
        self._filled = have
        self._needed = 4
        if not self._blocked and have >= needed:
            self._resume_soon()

    def _grow(self, own: memoryview, filled: int) -> None:
        size = min(self._needed, GROWTH * filled)
        if not self._traffic.may_take(self, size - filled):
            self._blocked |= MEMORY
            return
        old = self._buffer
        bigger = self._take(size)
        bigger[:filled] = own
        self._own = bigger
        self._give(old)

    def _take(self, size: int) -> memoryview:
        self._buffer = buffer = self._traffic.pool.take(size)
        self._traffic.budget.charge(len(buffer))
        return memoryview(buffer)

    def _give(self, buffer: bytearray) -> None:
        self._traffic.pool.give(buffer)
        self._traffic.memory_freed(self, len(buffer))

    def _forget_own(self) -> None:
        self._own = None
        self._buffer = self._traffic.buffer
        self._filled = 0
        self._needed = 4

    def _memory_freed(self, size: int) -> None:
        self._traffic.memory_freed(self, size)

    @property
    def collects(self) -> bool:
        """Whether part of a frame is here and the rest is not."""
        return self._own is not None

    def memory_granted(self) -> None:
        """Go on with a frame that had to wait for memory."""
        self._unblock(MEMORY)

    def hold(self, slot: RequestSlot, frame: memoryview) -> memoryview:
        """Let the broker keep a frame: it gets the buffer when the frame fills it, else a copy."""
        lent = self._lent
        if lent is not None and 2 * len(frame) >= len(lent):
            self._lent = None
            slot.held = len(lent)
        else:
            frame = memoryview(bytearray(frame))
            slot.held = len(frame)
            self._traffic.budget.charge(slot.held)
        slot.state |= HELD
        self._owed += slot.held
        if self._owed > MAX_OWED:
            self._blocked |= OUTPUT
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
            self._resume_soon()

    def _resume_soon(self) -> None:
        """Not now: the caller may stand in a turn of the broker, and a long backlog must not become a deep stack."""
        if not self._resuming:
            self._resuming = True
            self._traffic.loop.call_soon(self._resume)

    def _resume(self) -> None:
        self._resuming = False
        if self._blocked:
            return
        if self._paused:
            self._paused = False
            self._traffic.watch.read(self._fd, self.on_readable)
        if self._own is not None:
            self._go_on()
            self._traffic.send_answers()

    def _pause(self) -> None:
        """There is something to read, but nothing may be: stop listening, unless it is the end."""
        try:
            if not self._sock.recv(1, socket.MSG_PEEK):
                self._ended()
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

    def _ended(self) -> None:
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
            self._give(buffer)
        traffic.closed(self)
