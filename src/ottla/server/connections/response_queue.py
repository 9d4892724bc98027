"""The answers of one connection: sent in the order of the requests, coalesced, delayed when the peer reads slowly.

Zone: real. The outgoing half of `ottla.server.connections.connection`: the answers that the peer has not taken, and the
reasons not to start another of its requests. This half does not read from the socket.
"""

from __future__ import annotations

import errno
import logging
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Final

from ottla.seams import Failure, Part, Region
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.send_buffer import (
    GATHERED,
    LARGE,
    MANY,
    SendBuffer,
    StaleRegion,
    memory_of,
    pin_parts,
    read_small,
    send_at_once,
    unpin_part,
)
from ottla.server.disks.file import RealFile

log = logging.getLogger(__name__)

MAX_OWED: Final = 4 * 1024 * 1024
"""Bytes of answers and held requests of one connection above which it starts no more requests."""
NO_MEMORY: Final = "the broker has no memory for its answer; the client may send the request again"
MAX_READY: Final = GATHERED
"""Bytes of small answers that may wait for the end of a turn; more are sent at once."""
SMALL: Final = 1024
"""Regions of at most this size on average are read at once: reading is cheaper than pinning the file until later."""
MAX_SLOTS: Final = 1000
"""Unanswered requests of one connection at which it starts no more."""

# Bits of `_blocked`: reasons not to start another request.
GATE: Final = 1  # the broker returned Gate.WAIT for the last request
OUTPUT: Final = 2  # the peer reads slowly, or more than MAX_OWED waits for it
MUTED: Final = 4  # the broker throttles the peer
MEMORY: Final = 8  # the request memory of the broker is used up
DEPTH: Final = 16  # MAX_SLOTS requests are unanswered
CLOSED: Final = 32
DRAINING: Final = 64  # the broker stops
SPENT: Final = 128  # the budget for unread answers of all connections is used up

# Bits of `RequestSlot.state`; ASKED: none of them.
ASKED: Final = 0
HELD: Final = 1  # the broker keeps the frame
RELEASED: Final = 2  # the gate is open
ANSWERED: Final = 4

_size_of = struct.Struct(">i").pack


class RequestSlot:
    """The place of one answer in the order of answers. Made without `__init__`: one call less per request."""

    __slots__ = ("held", "parts", "peer", "state")

    peer: ResponseQueue
    state: int
    held: int
    """Bytes charged for the held frame; only with HELD."""
    parts: Sequence[Part]
    """The answer, while it waits for earlier ones; only with ANSWERED."""


class ResponseQueue:
    """The outgoing half of a peer on a non-blocking socket."""

    __slots__ = (
        "_active",
        "_blocked",
        "_fd",
        "_gate",
        "_held",
        "_out",
        "_outbox",
        "_owed",
        "_queue",
        "_ready",
        "_running",
        "_send",
        "_sock",
        "_straight",
        "_traffic",
        "_writing",
        "host",
        "listener",
        "principal",
    )

    def __init__(self, traffic: ConnectionManager, sock: socket.socket, listener: str, host: str) -> None:
        self.listener = listener
        self.host = host
        self.principal = "User:ANONYMOUS"
        self._traffic = traffic
        self._sock = sock
        self._fd = sock.fileno()
        self._send = sock.send
        self._queue: deque[RequestSlot] = deque()
        self._gate: RequestSlot | None = None
        self._out: list[bytes] = []
        self._outbox: SendBuffer | None = None
        self._straight: tuple[bytes, Region, RealFile, int] | None = None
        """An answer to send by sendfile, before `_out`: its bytes before the region, the region, the pinned file,
        its descriptor."""
        self._ready = 0
        """Bytes in `_out`; they are sent at the end of the turn or of the round."""
        self._owed = self._held = 0
        """Bytes of answers that were not sent by then, and of held requests; only `_count_owed` changes them."""
        self._blocked = 0
        self._running = self._writing = False
        self._active = True

    def close_connection(self) -> None:
        """Close the socket and release everything."""
        raise AssertionError("Connection implements close")

    def _memory_freed(self, size: int) -> None:
        raise AssertionError(f"Connection implements this: {size} bytes are free")

    def _clear_reasons(self, reasons: int) -> None:
        raise AssertionError(f"Connection implements this: {reasons} do not hold any more")

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, or an answer for the peer to read it."""
        return bool(self._queue or self._outbox)

    @property
    def owed_bytes(self) -> int:
        """Bytes of answers that the peer has not read."""
        return self._owed

    def _count_owed(self, answers: int, held: int = 0) -> None:
        """Add to the bytes of unsent answers and of held requests (negative: subtract), and apply the bounds. All
        changes of these figures pass here.
        """
        self._owed += answers
        self._held += held
        if answers:
            self._traffic.reply_memory.count_owed(self, answers, self._owed)
        if self._owed + self._held > MAX_OWED:
            self._blocked |= OUTPUT

    def wait_for_readers(self) -> None:
        """Start no more requests: the broker's budget for unread answers is used up."""
        self._blocked |= SPENT

    def on_budget_freed(self) -> None:
        """Continue: the budget for unread answers has room again."""
        self._clear_reasons(SPENT)

    def queue_answer(self, slot: RequestSlot, parts: Sequence[Part]) -> None:
        """Answer one request; the answer is sent after all earlier ones."""
        queue = self._queue
        # 1. Earlier answers are missing, or the frame is held: not the hot path.
        if slot.state or not queue or queue[0] is not slot:
            self._answer_seldom(slot, parts)
            return
        slot.state = ANSWERED
        queue.popleft()
        only = parts[0] if len(parts) == 1 else None
        # 2. One small part: it leaves with the others of this turn in one system call.
        if type(only) is bytes and len(only) < LARGE and self._outbox is None:
            self._out.append(_size_of(len(only)) + only)
            self._ready += len(only) + 4
            if self._ready > MAX_READY:
                self.flush_answers()
        # 3. All other answers. An empty one (acks=0) only gives up its place.
        elif parts:
            self._put_parts(parts, False)
        # 4. Later requests that were answered before this one.
        if queue and queue[0].state & ANSWERED:
            self._queue_waiting()
        if self._blocked:
            self._recheck_reasons(slot)
        if not self._running:
            self.flush_answers()

    def _answer_seldom(self, slot: RequestSlot, parts: Sequence[Part]) -> None:
        assert not slot.state & ANSWERED, "a request was answered twice"
        if slot.state & HELD:
            self._release_frame(slot)
        slot.state = ANSWERED
        if self._blocked & CLOSED:
            return
        if self._queue[0] is slot:
            slot.state = ASKED
            self.queue_answer(slot, parts)
            return
        if self._pin_parts(parts):
            slot.parts = parts
            self._count_owed(memory_of(parts))
            self._recheck_reasons(slot)

    def _queue_waiting(self) -> None:
        """Queue the answers that waited for the one that was just queued."""
        queue = self._queue
        while queue and queue[0].state & ANSWERED:
            slot = queue.popleft()
            self._count_owed(-memory_of(slot.parts))
            if slot.parts:
                self._put_parts(slot.parts, True)

    def _put_parts(self, parts: Sequence[Part], pinned: bool) -> None:
        """Queue one answer with its length prefix; `queue_answer` itself does so for one small part."""
        size, regions = 0, 0
        for part in parts:
            if type(part) is Region:
                size += part.size
                regions += 1
            else:
                size += len(part)
        # 1. Bytes only, and few: join them.
        if not regions:
            if size < LARGE and self._outbox is None:
                self._queue_small(b"".join((_size_of(size), *parts)))  # type: ignore[arg-type]  # no Region in it
                return
        # 2. Regions, with nothing unsent before them: read small ones now, send one large one by sendfile. Neither
        #    keeps the file open for longer than this turn, if the peer takes the answer.
        elif not pinned:
            if self._outbox is None:
                if size < LARGE or size < SMALL * regions:
                    self._put_small(size, parts)
                    return
                if regions == 1 and not self._out and self._prepare_sendfile(size, parts):
                    if self._ready > MAX_READY:
                        self.flush_answers()
                    return
            if not self._pin_parts(parts):
                return
        # 3. Everything else waits in the outbox; its files are kept open.
        self._put_pinned((_size_of(size), *parts))

    def _put_pinned(self, parts: Sequence[Part]) -> None:
        """Queue parts whose files are pinned; they are sent as fast as the peer reads."""
        if self._straight is not None:
            self._send_prepared()
            if self._blocked & CLOSED:
                self._unpin_parts(parts)
                return
        outbox = self._outbox
        if outbox is None:
            outbox = self._open_outbox()
        outbox.add_parts(*parts)
        self._count_owed(outbox.take_change())
        if outbox.memory > MAX_READY:
            self.flush_answers()

    def _queue_small(self, answer: bytes) -> None:
        """Queue a small answer, or a part of one, to be sent with the others in one system call."""
        self._out.append(answer)
        self._ready += len(answer)
        if self._ready > MAX_READY:
            self.flush_answers()

    def _put_small(self, size: int, parts: Sequence[Part]) -> None:
        """Read the small regions of an answer in this turn, in which their files cannot change or be closed.

        A piece is sent before the next one is read. A large part, or a part that the peer does not take now, is
        pinned and waits in the outbox.
        """
        head, at = _size_of(size), 0
        try:
            while at < min(len(parts), MANY) and self._outbox is None and not self._blocked & CLOSED:
                piece, end = read_small(parts, at)
                if end == at:
                    break
                self._queue_small(head + piece)
                head, at = b"", end
        except StaleRegion as stale:
            self.drop_connection(str(stale))
        rest = parts[at:]
        if rest and not self._blocked & CLOSED and self._pin_parts(rest):
            self._put_pinned((head, *rest))

    def _prepare_sendfile(self, size: int, parts: Sequence[Part]) -> bool:
        """Prepare an answer with one large region for sendfile in `flush_answers`. False: the region is small, or
        unsent bytes precede it."""
        at = 0
        while type(region := parts[at]) is not Region:
            at += 1
        if region.size < LARGE or self._out:
            return False
        if self._straight is not None:
            self._send_prepared()
            if self._outbox is not None or self._blocked & CLOSED:
                return self._outbox is None
        file = region.file
        assert isinstance(file, RealFile), "a region of another shell"
        try:
            fd = file.pin_descriptor()
        except Failure as failure:
            self.drop_connection(failure.message)
            return True
        head = b"".join((_size_of(size), *parts[:at]))  # type: ignore[arg-type]  # no Region in it
        self._straight = head, region, file, fd
        for part in parts[at + 1 :]:
            self._out.append(part)  # type: ignore[arg-type]  # the one Region is before it
            self._ready += len(part)
        return True

    def _send_prepared(self) -> None:
        """Send the answer prepared by `_prepare_sendfile`; the rest that the socket does not take waits in the
        outbox."""
        assert self._straight is not None, "no answer is prepared"
        head, region, file, fd = self._straight
        self._straight = None
        try:
            sent = send_at_once(self._sock, head, region, fd)
        except StaleRegion as stale:
            file.unpin_descriptor()
            self.drop_connection(str(stale))
        except OSError as error:
            file.unpin_descriptor()
            self._on_socket_error(error)
        else:
            if sent == len(head) + region.size:
                file.unpin_descriptor()
            else:
                self._keep_rest(head, region, sent)

    def _keep_rest(self, head: bytes, region: Region, sent: int) -> None:
        """Keep the unsent rest of an answer in the outbox: the socket is full."""
        done = max(0, sent - len(head))
        self._outbox = outbox = SendBuffer(self._traffic.scratch)
        outbox.add_parts(head[sent:], Region(region.file, region.pos + done, region.size - done, region.generation))
        outbox.begun = done > 0
        self._move_ready()
        self._count_owed(outbox.take_change())
        self._wait_writable()

    def _pin_parts(self, parts: Sequence[Part]) -> bool:
        try:
            pin_parts(parts)
        except StaleRegion as stale:
            self.drop_connection(str(stale))
            return False
        return True

    @staticmethod
    def _unpin_parts(parts: Sequence[Part]) -> None:
        for part in parts:
            unpin_part(part)

    def _open_outbox(self) -> SendBuffer:
        self._outbox = outbox = SendBuffer(self._traffic.scratch)
        self._move_ready()
        return outbox

    def _move_ready(self) -> None:
        """Move the small answers that were ready to the end of the outbox."""
        assert self._outbox is not None, "no outbox"
        self._outbox.add_parts(*self._out)
        self._out.clear()
        self._ready = 0

    def flush_answers(self) -> None:
        """Send the answers that are ready; small ones with one system call."""
        if self._straight is not None:
            self._send_prepared()
        if self._outbox is not None:
            if not self._writing:
                self.on_writable()
            return
        out = self._out
        if not out:
            return
        try:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self._ready = 0
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except MemoryError:
            self.drop_connection(NO_MEMORY)
            return
        except OSError as error:
            self._on_socket_error(error)
            return
        if sent < len(data):
            outbox = self._open_outbox()
            outbox.add_parts(data[sent:])
            self._count_owed(outbox.take_change())
            self._wait_writable()
        elif self._blocked:
            self._recheck_reasons(None)

    def on_writable(self) -> None:
        """Continue sending the outbox."""
        outbox = self._outbox
        assert outbox is not None, "no outbox"
        self._active = True
        try:
            finished = outbox.send_parts(self._sock)
        except (BlockingIOError, InterruptedError):
            finished = False
        except StaleRegion as stale:
            self.drop_connection(str(stale))
            return
        except MemoryError:
            self.drop_connection(NO_MEMORY)
            return
        except OSError as error:
            self._on_socket_error(error)
            return
        self._count_owed(outbox.take_change())
        if not finished:
            if outbox.take_progress():
                self._traffic.reply_memory.note_reading(self)
            self._wait_writable()
            return
        self._outbox = None
        if self._writing:
            self._writing = False
            self._traffic.watch.unwatch_write(self._fd)
        if self._blocked:
            self._recheck_reasons(None)

    def _wait_writable(self) -> None:
        """Wait until the peer has read, and start no more of its requests before that."""
        if not self._writing:
            self._writing = True
            self._blocked |= OUTPUT
            self._traffic.watch.watch_write(self._fd, self.on_writable)

    def open_gate(self, slot: RequestSlot) -> None:
        """Open the gate of this slot before its answer."""
        slot.state |= RELEASED
        if self._gate is slot:
            self._recheck_reasons(slot)

    def _recheck_reasons(self, slot: RequestSlot | None) -> None:
        """Clear the reasons in `_blocked` that do not hold any more, after an answer or a send."""
        reasons = 0
        if slot is not None and self._gate is slot:
            self._gate = None
            reasons = GATE
        # Half of the bound: a connection at the bound must not pause and resume at every answer.
        if len(self._queue) <= MAX_SLOTS // 2:
            reasons |= DEPTH
        if not self._writing and self._owed + self._held <= MAX_OWED and self._outbox is None:
            reasons |= OUTPUT
        if self._blocked & reasons:
            self._clear_reasons(reasons)

    def _release_frame(self, slot: RequestSlot) -> None:
        slot.state &= ~HELD
        self._count_owed(0, -slot.held)
        self._memory_freed(slot.held)

    def drop_connection(self, why: str) -> None:
        """Close, with one log line."""
        self._traffic.log_bad_peer("%s: connection closed: %s", self.host, why)
        self.close_connection()

    def _on_socket_error(self, error: OSError) -> None:
        if isinstance(error, (BlockingIOError, InterruptedError)):
            return
        if error.errno == errno.EIO:  # the device of a region failed: a socket does not report EIO
            self.drop_connection(f"the file of its answer cannot be read: {error.strerror}")
            return
        log.debug("%s: %s", self.host, error)
        self.close_connection()

    def _drop_answers(self) -> None:
        """Release files, held requests and answers: the connection is closed."""
        for slot in self._queue:
            if slot.state & ANSWERED:
                self._unpin_parts(slot.parts)
            elif slot.state & HELD:
                self._release_frame(slot)
        self._queue.clear()
        self._gate = None  # slot and connection refer to each other: break the cycle
        self._out.clear()
        self._ready = 0
        if self._straight is not None:
            self._straight[2].unpin_descriptor()
            self._straight = None
        if self._outbox is not None:
            self._outbox.unpin_all()
            self._outbox = None
        self._writing = False
        self._count_owed(-self._owed)
        self._traffic.reply_memory.forget_connection(self)
