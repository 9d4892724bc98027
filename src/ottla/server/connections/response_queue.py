"""The answers of one connection: sent in the order of the requests, coalesced, delayed when the peer reads slowly.

Zone: real. The outgoing half of `ottla.server.connections.connection`: the answers that the peer has not taken, and the
reasons not to start another of its requests. This half does not read from the socket.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

from ottla.seams import Failure, Part, Peer, Region
from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.connection_state import CLOSED, DEPTH, GATE, OUTPUT, SPENT, ConnectionState
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

# Bits of `RequestSlot.state`; ASKED: none of them.
ASKED: Final = 0
HELD: Final = 1  # the broker keeps the frame
RELEASED: Final = 2  # the gate is open
ANSWERED: Final = 4

_size_of = struct.Struct(">i").pack


class RequestSlot:
    """The place of one answer in the order of answers. Made without `__init__`: one call less per request."""

    __slots__ = ("held", "parts", "peer", "responses", "state")

    peer: Peer
    responses: ResponseQueue
    """Where the answer goes. The broker knows the peer only, and the peer of a closed connection has no queue."""
    state: int
    held: int
    """Bytes charged for the held frame; only with HELD."""
    parts: Sequence[Part]
    """The answer, while it waits for earlier ones; only with ANSWERED."""


class ResponseQueue:
    """The outgoing half of a connection, on a non-blocking socket."""

    outbox_class: ClassVar[type[SendBuffer]] = SendBuffer

    __slots__ = (
        "_connection",
        "_fd",
        "_gate",
        "_held",
        "_manager",
        "_owed",
        "_send",
        "_sock",
        "_writing",
        "in_turn",
        "outbox",
        "prepared",
        "ready",
        "ready_bytes",
        "unanswered",
    )

    def __init__(self, connection: ConnectionState, manager: ConnectionManager, sock: socket.socket) -> None:
        self._connection = connection
        self._manager = manager
        self._sock = sock
        self._fd = sock.fileno()
        self._send = sock.send
        self._gate: RequestSlot | None = None
        self.unanswered: deque[RequestSlot] = deque()
        """The requests without an answer, and those whose answers wait for it, in their order."""
        self.ready: list[bytes] = []
        """Small answers that are sent at the end of the turn or of the round."""
        self.ready_bytes = 0
        self.prepared: tuple[bytes, Region, RealFile, int] | None = None
        """An answer to send by sendfile, before `ready`: its bytes before the region, the region, the pinned file,
        its descriptor."""
        self.outbox: SendBuffer | None = None
        """Answers that the socket did not take."""
        self.in_turn = False
        """Whether a turn of this connection runs: its answers are sent when it ends."""
        self._owed = self._held = 0
        """Bytes of answers that were not sent by then, and of held requests; only `count_owed` changes them."""
        self._writing = False

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, or an answer for the peer to read it."""
        return bool(self.unanswered or self.outbox)

    @property
    def owed_bytes(self) -> int:
        """Bytes of answers that the peer has not read."""
        return self._owed

    @property
    def waits_for_broker(self) -> bool:
        """Whether a request waits for its answer, and none for the peer to read it."""
        return bool(self.unanswered) and not self._writing

    def drop_connection(self, why: str) -> None:
        """Close the connection, with one log line."""
        self._connection.drop_connection(why)

    def count_owed(self, answers: int, held: int = 0) -> None:
        """Add to the bytes of unsent answers and of held requests (negative: subtract), and apply the bounds. All
        changes of these figures pass here.
        """
        self._owed += answers
        self._held += held
        if answers:
            self._manager.reply_memory.count_owed(self, answers, self._owed)
        if self._owed + self._held > MAX_OWED:
            self._connection.blocked |= OUTPUT

    def wait_for_readers(self) -> None:
        """Start no more requests: the broker's budget for unread answers is used up."""
        self._connection.blocked |= SPENT

    def on_budget_freed(self) -> None:
        """Continue: the budget for unread answers has room again."""
        self._connection.clear_reasons(SPENT)

    def queue_answer(self, slot: RequestSlot, parts: Sequence[Part]) -> None:
        """Answer one request; the answer is sent after all earlier ones."""
        queue = self.unanswered
        # 1. Earlier answers are missing, or the frame is held: not the hot path.
        if slot.state or not queue or queue[0] is not slot:
            self._answer_seldom(slot, parts)
            return
        slot.state = ANSWERED
        queue.popleft()
        only = parts[0] if len(parts) == 1 else None
        # 2. One small part: it leaves with the others of this turn in one system call.
        if type(only) is bytes and len(only) < LARGE and self.outbox is None:
            self.ready.append(_size_of(len(only)) + only)
            self.ready_bytes += len(only) + 4
            if self.ready_bytes > MAX_READY:
                self.flush_answers()
        # 3. All other answers. An empty one (acks=0) only gives up its place.
        elif parts:
            self._put_parts(parts, False)
        # 4. Later requests that were answered before this one.
        if queue and queue[0].state & ANSWERED:
            self._queue_waiting()
        if self._connection.blocked:
            self._recheck_reasons(slot)
        if not self.in_turn:
            self.flush_answers()

    def _answer_seldom(self, slot: RequestSlot, parts: Sequence[Part]) -> None:
        assert not slot.state & ANSWERED, "a request was answered twice"
        # The frame is given back even on a closed connection, because its bytes are charged to the whole broker.
        if slot.state & HELD:
            self._release_frame(slot)
        slot.state = ANSWERED
        if self._connection.blocked & CLOSED:
            return
        if self.unanswered[0] is slot:
            slot.state = ASKED
            self.queue_answer(slot, parts)
            return
        if self._pin_parts(parts):
            slot.parts = parts
            self.count_owed(memory_of(parts))
            self._recheck_reasons(slot)

    def _queue_waiting(self) -> None:
        """Queue the answers that waited for the one that was just queued."""
        queue = self.unanswered
        while queue and queue[0].state & ANSWERED:
            slot = queue.popleft()
            self.count_owed(-memory_of(slot.parts))
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
            if size < LARGE and self.outbox is None:
                self._queue_small(b"".join((_size_of(size), *parts)))  # type: ignore[arg-type]  # no Region in it
                return
        # 2. Regions, with nothing unsent before them: read small ones now, send one large one by sendfile. Neither
        #    keeps the file open for longer than this turn, if the peer takes the answer.
        elif not pinned:
            if self.outbox is None:
                if size < LARGE or size < SMALL * regions:
                    self._put_small(size, parts)
                    return
                if regions == 1 and not self.ready and self._prepare_sendfile(size, parts):
                    if self.ready_bytes > MAX_READY:
                        self.flush_answers()
                    return
            if not self._pin_parts(parts):
                return
        # 3. Everything else waits in the outbox; its files are kept open.
        self._put_pinned((_size_of(size), *parts))

    def _put_pinned(self, parts: Sequence[Part]) -> None:
        """Queue parts whose files are pinned; they are sent as fast as the peer reads."""
        if self.prepared is not None:
            self._send_prepared()
            if self._connection.blocked & CLOSED:
                self._unpin_parts(parts)
                return
        outbox = self.outbox
        if outbox is None:
            outbox = self._open_outbox()
        outbox.add_parts(*parts)
        self.count_owed(outbox.take_change())
        if outbox.memory > MAX_READY:
            self.flush_answers()

    def _queue_small(self, answer: bytes) -> None:
        """Queue a small answer, or a part of one, to be sent with the others in one system call."""
        self.ready.append(answer)
        self.ready_bytes += len(answer)
        if self.ready_bytes > MAX_READY:
            self.flush_answers()

    def _put_small(self, size: int, parts: Sequence[Part]) -> None:
        """Read the small regions of an answer in this turn, in which their files cannot change or be closed.

        A piece is sent before the next one is read. A large part, or a part that the peer does not take now, is
        pinned and waits in the outbox.
        """
        head, at = _size_of(size), 0
        try:
            while at < min(len(parts), MANY) and self.outbox is None and not self._connection.blocked & CLOSED:
                piece, end = read_small(parts, at)
                if end == at:
                    break
                self._queue_small(head + piece)
                head, at = b"", end
        except StaleRegion as stale:
            self._connection.drop_connection(str(stale))
        rest = parts[at:]
        if rest and not self._connection.blocked & CLOSED and self._pin_parts(rest):
            self._put_pinned((head, *rest))

    def _prepare_sendfile(self, size: int, parts: Sequence[Part]) -> bool:
        """Prepare an answer with one large region for sendfile in `flush_answers`. False: the region is small, or
        unsent bytes precede it."""
        at = 0
        while type(region := parts[at]) is not Region:
            at += 1
        if region.size < LARGE or self.ready:
            return False
        if self.prepared is not None:
            self._send_prepared()
            if self.outbox is not None or self._connection.blocked & CLOSED:
                return self.outbox is None
        file = region.file
        assert isinstance(file, RealFile), "a region of another shell"
        try:
            fd = file.pin_descriptor()
        except Failure as failure:
            self._connection.drop_connection(failure.message)
            return True
        head = b"".join((_size_of(size), *parts[:at]))  # type: ignore[arg-type]  # no Region in it
        self.prepared = head, region, file, fd
        for part in parts[at + 1 :]:
            self.ready.append(part)  # type: ignore[arg-type]  # the one Region is before it
            self.ready_bytes += len(part)
        return True

    def _send_prepared(self) -> None:
        """Send the answer prepared by `_prepare_sendfile`; the rest that the socket does not take waits in the
        outbox."""
        assert self.prepared is not None, "no answer is prepared"
        head, region, file, fd = self.prepared
        self.prepared = None
        try:
            sent = send_at_once(self._sock, head, region, fd)
        except StaleRegion as stale:
            file.unpin_descriptor()
            self._connection.drop_connection(str(stale))
        except OSError as error:
            file.unpin_descriptor()
            self._connection.on_socket_error(error)
        else:
            if sent == len(head) + region.size:
                file.unpin_descriptor()
            else:
                self._keep_rest(head, region, sent)

    def _keep_rest(self, head: bytes, region: Region, sent: int) -> None:
        """Keep the unsent rest of an answer in the outbox: the socket is full."""
        done = max(0, sent - len(head))
        self.outbox = outbox = self.outbox_class(self._manager.scratch)
        outbox.add_parts(head[sent:], Region(region.file, region.pos + done, region.size - done, region.generation))
        # A region that sendfile has begun must not be gathered with other parts: its rest continues by sendfile.
        outbox.begun = done > 0
        self._move_ready()
        self.count_owed(outbox.take_change())
        self._wait_writable()

    def _pin_parts(self, parts: Sequence[Part]) -> bool:
        try:
            pin_parts(parts)
        except StaleRegion as stale:
            self._connection.drop_connection(str(stale))
            return False
        return True

    @staticmethod
    def _unpin_parts(parts: Sequence[Part]) -> None:
        for part in parts:
            unpin_part(part)

    def _open_outbox(self) -> SendBuffer:
        self.outbox = outbox = self.outbox_class(self._manager.scratch)
        self._move_ready()
        return outbox

    def _move_ready(self) -> None:
        """Move the small answers that were ready to the end of the outbox."""
        assert self.outbox is not None, "no outbox"
        self.outbox.add_parts(*self.ready)
        self.ready.clear()
        self.ready_bytes = 0

    def flush_answers(self) -> None:
        """Send the answers that are ready; small ones with one system call."""
        if self.prepared is not None:
            self._send_prepared()
        if self.outbox is not None:
            if not self._writing:
                self.on_writable()
            return
        out = self.ready
        if not out:
            return
        try:
            data = out[0] if len(out) == 1 else b"".join(out)
            out.clear()
            self.ready_bytes = 0
            sent = self._send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except MemoryError:
            self._connection.drop_connection(NO_MEMORY)
            return
        except OSError as error:
            self._connection.on_socket_error(error)
            return
        if sent < len(data):
            outbox = self._open_outbox()
            outbox.add_parts(data[sent:])
            self.count_owed(outbox.take_change())
            self._wait_writable()
        elif self._connection.blocked:
            self._recheck_reasons(None)

    def on_writable(self) -> None:
        """Continue sending the outbox."""
        outbox = self.outbox
        assert outbox is not None, "no outbox"
        self._connection.active = True
        try:
            finished = outbox.send_parts(self._sock)
        except (BlockingIOError, InterruptedError):
            finished = False
        except StaleRegion as stale:
            self._connection.drop_connection(str(stale))
            return
        except MemoryError:
            self._connection.drop_connection(NO_MEMORY)
            return
        except OSError as error:
            self._connection.on_socket_error(error)
            return
        self.count_owed(outbox.take_change())
        if not finished:
            if outbox.take_progress():
                self._manager.reply_memory.note_reading(self)
            self._wait_writable()
            return
        self.outbox = None
        if self._writing:
            self._writing = False
            self._manager.watch.unwatch_write(self._fd)
        if self._connection.blocked:
            self._recheck_reasons(None)

    def _wait_writable(self) -> None:
        """Wait until the peer has read, and start no more of its requests before that."""
        if not self._writing:
            self._writing = True
            self._connection.blocked |= OUTPUT
            self._manager.watch.watch_write(self._fd, self.on_writable)

    def close_gate(self, slot: RequestSlot) -> None:
        """Start no request before this slot is answered or its gate is opened."""
        # A closed connection has no gate: nothing would clear it, and slot and queue refer to each other.
        if not self._connection.blocked & CLOSED:
            self._gate = slot
        self._connection.blocked |= GATE

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
        if len(self.unanswered) <= MAX_SLOTS // 2:
            reasons |= DEPTH
        if not self._writing and self._owed + self._held <= MAX_OWED and self.outbox is None:
            reasons |= OUTPUT
        if self._connection.blocked & reasons:
            self._connection.clear_reasons(reasons)

    def _release_frame(self, slot: RequestSlot) -> None:
        slot.state &= ~HELD
        self.count_owed(0, -slot.held)
        self._connection.give_memory_back(slot.held)

    def drop_answers(self) -> None:
        """Release files, held requests and answers: the connection is closed."""
        for slot in self.unanswered:
            if slot.state & ANSWERED:
                self._unpin_parts(slot.parts)
            elif slot.state & HELD:
                self._release_frame(slot)
        self.unanswered.clear()
        self._gate = None  # slot and queue refer to each other: break the cycle
        self.ready.clear()
        self.ready_bytes = 0
        if self.prepared is not None:
            self.prepared[2].unpin_descriptor()
            self.prepared = None
        if self.outbox is not None:
            self.outbox.unpin_all()
            self.outbox = None
        self._writing = False
        self.count_owed(-self._owed)
        self._manager.reply_memory.forget_connection(self)
