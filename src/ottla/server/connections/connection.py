"""One connection of a client: a request reader and a response queue on one socket.

Zone: real. A connection keeps the reasons why it starts no request, its age, and its end; its two parts do the work.
`ottla.server.connections.listener` accepts connections and limits them per address.
"""

from __future__ import annotations

import errno
import logging
import socket
from typing import Any, ClassVar, Final

from ottla.server.connections.connection_manager import ConnectionManager
from ottla.server.connections.connection_state import CLOSED, DRAINING, MUTED
from ottla.server.connections.request_reader import MIN_FRAME, RequestReader
from ottla.server.connections.response_queue import RequestSlot, ResponseQueue

log = logging.getLogger(__name__)

MUTED_S: Final = 5.0
"""Time after which a muted connection that was closed is freed."""


class Connection:
    """A peer on a non-blocking socket."""

    reader_class: ClassVar[type[RequestReader]] = RequestReader
    responses_class: ClassVar[type[ResponseQueue]] = ResponseQueue
    """The two parts; a transport that is not a plain socket has others (`ottla.server.connections.tls`)."""

    __slots__ = (
        "_age",
        "_fd",
        "_manager",
        "_sock",
        "active",
        "blocked",
        "frame_max",
        "frame_min",
        "host",
        "listener",
        "principal",
        "reader",
        "responses",
    )

    def __init__(self, manager: ConnectionManager, sock: socket.socket | Any, listener: str, host: str) -> None:
        self.listener = listener
        self.host = host
        self.principal = "User:ANONYMOUS"
        self.blocked = 0
        self.active = True
        self.frame_min = MIN_FRAME
        self.frame_max = manager.limits.first_frame_bytes.get(listener, manager.limits.request_max_bytes)
        self._age = 0
        self._manager = manager
        self._sock = sock
        self._fd = sock.fileno()
        self.responses = self.responses_class(self, manager, sock)
        self.reader = self.reader_class(self, manager, sock, self.responses)
        manager.on_opened(self)
        self.reader.start_reading()

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer, or an answer for the peer to read it."""
        return self.responses.is_busy

    def hold_frame(self, slot: RequestSlot, frame: memoryview) -> memoryview:
        """Let the broker keep a frame after its turn."""
        # A closed connection has given its memory back: nothing is charged.
        if self.blocked & CLOSED:
            return memoryview(bytearray(frame))
        return self.reader.hold_frame(slot, frame)

    def give_memory_back(self, size: int) -> None:
        """Bytes of a request that the broker kept are free."""
        self._manager.request_memory.give_back(self.reader, size)

    def set_frame_bounds(self, least: int, most: int | None) -> None:
        """Set the sizes of the frames that the peer may send; None: the limit of the configuration."""
        self.frame_min = least
        self.frame_max = self._manager.limits.request_max_bytes if most is None else most

    def pause_reading(self, until_ns: int) -> None:
        """Start no request before that time."""
        if not self.blocked & (MUTED | CLOSED):
            self.blocked |= MUTED
            self._stay_muted(until_ns / 1e9)

    def _stay_muted(self, until: float) -> None:
        # A timer holds the connection. The pause may be long, so the timer is renewed while the connection is open.
        loop = self._manager.loop
        if self.blocked & CLOSED:
            return
        if loop.time() >= until:
            self.clear_reasons(MUTED)
        else:
            loop.call_at(min(until, loop.time() + MUTED_S), self._stay_muted, until)

    def stop_requests(self) -> None:
        """Start no more requests: the broker stops."""
        self.blocked |= DRAINING

    def clear_reasons(self, reasons: int) -> None:
        """These reasons do not hold any more: continue with the requests if no other one does."""
        self.blocked &= ~reasons
        if not self.blocked:
            self.reader.resume_reading()

    def grow_older(self) -> None:
        """Count a quarter of connections.max.idle.ms without activity; close at the fourth."""
        # The client of a long poll is silent because it waits for this broker: that is not idleness.
        if self.active or self.responses.waits_for_broker:
            self.active = False
            self._age = 0
            return
        self._age += 1
        if self._age >= 4:
            log.info("%s: connection closed after connections.max.idle.ms without a request", self.host)
            self.close_connection()

    def drop_connection(self, why: str) -> None:
        """Close, with one log line."""
        self._manager.log_bad_peer("%s: connection closed: %s", self.host, why)
        self.close_connection()

    def on_socket_error(self, error: OSError) -> None:
        """Close after an error of the socket, or of a file that is sent; an interruption is none."""
        if isinstance(error, (BlockingIOError, InterruptedError)):
            return
        if error.errno == errno.EIO:  # the device of a region failed: a socket does not report EIO
            self.drop_connection(f"the file of its answer cannot be read: {error.strerror}")
            return
        log.debug("%s: %s", self.host, error)
        self.close_connection()

    def close_connection(self) -> None:
        """Close the socket and release everything; the broker is informed in a turn of its own."""
        if self.blocked & CLOSED:
            return
        self.blocked |= CLOSED
        manager = self._manager
        manager.watch.unwatch_read(self._fd)
        manager.watch.unwatch_write(self._fd)
        self._sock.close()
        self.responses.drop_answers()
        self.reader.release_memory()
        # Both refer to the connection. Without these references nothing of it waits for the collector of cycles.
        del self.responses, self.reader
        manager.on_connection_closed(self)
