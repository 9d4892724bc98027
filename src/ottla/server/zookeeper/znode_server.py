"""The embedded store for other processes: served on a port over ZooKeeper's client protocol.

Zone: real. Owns the store's disk, its turns, the port and the connections; `znode_client` interprets the messages.
Clients are kazoo, ZooKeeper's Java client and its shell.

All writes that wait while the journal is synced share the next sync. A malformed message closes its connection, with
one log line; the memory of a connection is bounded.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import Final

from ottla.effects import Effects
from ottla.seams import Failure, Kind
from ottla.server.disks.disk import RealDisk
from ottla.server.entropy import RealEntropy
from ottla.server.loop.completion_queue import CompletionQueue
from ottla.server.zookeeper.four_letters import CLOSED_WORD, OPEN_WORDS, WORDS, Status
from ottla.server.zookeeper.jute import BadMessage
from ottla.server.zookeeper.znode_client import ClientWire, ZnodeClient, ZnodeLimits
from ottla.znodes.sessions import MAX_PASSWORD
from ottla.znodes.store import EmbeddedStore
from ottla.znodes.tree import Tree

log = logging.getLogger(__name__)

MAX_MESSAGE: Final = 8 * 1024 * 1024
"""Bytes of one message: a multi of some thousand nodes."""
MAX_CONNECT: Final = 1_024
"""Bytes of the first message, by which a client begins or resumes a session."""
MAX_ASKED: Final = 1_000
"""Unanswered requests of one connection at which the server reads no more from it."""
CONNECT_S: Final = 10.0
"""Time for a connection to send its first message."""


class ZnodeServer:
    """One store with its port. Call `load`, then `start_listening`, then run the loop; `stop` at the end."""

    def __init__(self, loop: asyncio.AbstractEventLoop, directory: str, limits: ZnodeLimits | None = None) -> None:
        self.loop = loop
        self.limits = limits or ZnodeLimits()
        self.directory = directory
        self.port = 0
        self.effects = Effects()
        self.turns = CompletionQueue(loop)
        self.turns.set_end_turn(self.end_turn)
        self.turns.clock.set_receiver(self._on_alarm)
        self.store = EmbeddedStore(RealDisk(directory, self.turns), self.turns.clock, self.effects.queue_effect)
        self.connections: dict[ZnodeConnection, None] = {}
        self.on_change: Callable[[], None] = _do_nothing
        """Called at the end of every turn in which the store may have changed."""
        self.on_failed: Callable[[], None] = _do_nothing
        """Called once when the disk has failed: all sessions are over, and the store writes no more."""
        self._entropy = RealEntropy()
        self._alarm_ns: int | None = None
        self._flushing: dict[ZnodeConnection, None] = {}
        self._server: asyncio.Server | None = None
        self._seen_zxid = 0
        self._failed = False

    @property
    def tree(self) -> Tree:
        """All nodes, for reading."""
        return self.store.tree

    def load_store(self) -> None:
        """Read the store, blocking; sessions of an earlier process are over. Raises Failure, CorruptStore."""
        self.store.load_files()
        self.end_turn()

    async def start_listening(self, host: str, port: int) -> None:
        """Serve; port 0: a free one. Raises Failure with an address that is taken."""
        try:
            self._server = await self.loop.create_server(lambda: ZnodeConnection(self), host, port)
        except OSError as error:
            raise Failure(Kind.NOT_DONE, f"cannot serve metadata on {host}:{port}: {error.strerror}") from None
        self.port = self._server.sockets[0].getsockname()[1]

    def expire_session(self, session: int) -> None:
        """End the session of a process that is dead."""
        self.turns.clock.instant = None
        self.store.expire_session(session)
        self.end_turn()

    def new_password(self) -> bytes:
        """A random password for one session."""
        return self._entropy.random_bytes("znodes", MAX_PASSWORD)

    async def stop_serving(self) -> None:
        """Stop serving, and close the store when all of it is on the disk. Raises Failure when it cannot be written."""
        if self._server is not None:
            self._server.close()
        closed: asyncio.Future[Failure | None] = self.loop.create_future()
        self.store.close_store(closed.set_result)
        self.end_turn()
        failure = await closed
        for connection in list(self.connections):
            connection.close_connection("")
        self.turns.stop_threads()
        if failure is not None:
            raise failure

    # -- turns -------------------------------------------------------------------------------------------------------

    def end_turn(self) -> None:
        """Finish a turn: run its effects, send the answers, set the alarm for the next session to expire."""
        # Effects first: they include the answers and notices whose state is on the disk by now.
        self.effects.drain_effects()
        while self._flushing:
            self._flushing.popitem()[0].flush_messages()
        due = self.store.next_expiry_ns
        if due != self._alarm_ns:
            self._alarm_ns = due
            self.turns.clock.set_alarm(due)
        if self.store.last_zxid != self._seen_zxid:
            self._seen_zxid = self.store.last_zxid
            self.on_change()
        if self.store.failure is not None and not self._failed:
            self._failed = True
            self.on_failed()

    def _on_alarm(self) -> None:
        self._alarm_ns = None
        self.store.expire_due()
        self.end_turn()

    def close_oldest_stranger(self) -> None:
        """Close the oldest connection without credentials if there are too many: they must not crowd out brokers."""
        strangers = [one for one in self.connections if not one.client.is_trusted]
        if len(strangers) > self.limits.strangers:
            strangers[0].close_connection("too many connections have not shown the store's credentials")

    def flush_soon(self, connection: ZnodeConnection) -> None:
        """Send a connection's messages when this turn ends, with one system call."""
        self._flushing[connection] = None

    def make_status(self) -> Status:
        """The state for the four-letter commands."""
        clients = [(connection.peer, connection.client) for connection in self.connections]
        return Status(self.directory, self.port, self.limits, self.limits.connections, self.store, clients)


class ZnodeConnection(asyncio.Protocol):
    """Splits received bytes into messages for its `ZnodeClient`, and sends the messages of that client."""

    def __init__(self, server: ZnodeServer) -> None:
        self._server = server
        self._received = bytearray()
        self._out: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._paused = False
        self.peer = "?"
        self.client = ZnodeClient(
            server.store, ClientWire(self.send_message, self.close_connection), server.new_password(), server.limits
        )

    # -- asyncio -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register a new connection, unless there are too many."""
        assert isinstance(transport, asyncio.Transport)
        address = transport.get_extra_info("peername")
        self.peer = f"{address[0]}:{address[1]}" if isinstance(address, tuple) else "?"
        limits = self._server.limits
        if len(self._server.connections) >= limits.connections:
            log.warning("%s: metadata connection refused: there are %d already", self.peer, limits.connections)
            transport.abort()
            return
        self._transport = transport
        transport.set_write_buffer_limits(limits.owed)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.connections[self] = None
        wait_s = CONNECT_S if self.client.is_trusted else limits.authenticate_s
        self._deadline = self._server.loop.call_later(wait_s, self._too_late)
        self._server.close_oldest_stranger()

    def data_received(self, data: bytes) -> None:
        """Run every complete message as a turn."""
        self._received += data
        self._run_messages()

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the connection: it is closed."""
        log.debug("%s: connection over: %s", self.peer, error)
        self._transport = None
        if self._deadline is not None:
            self._deadline.cancel()
        if self in self._server.connections:
            del self._server.connections[self]
            self._server.turns.clock.instant = None
            self.client.on_lost()
            self._server.end_turn()

    def pause_writing(self) -> None:
        """Close: the client does not read its answers."""
        self.close_connection(f"more than {self._server.limits.owed} bytes are left unread")

    @property
    def _is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    # -- input -------------------------------------------------------------------------------------------------------

    def _run_messages(self) -> None:
        received = self._received
        pos = 0
        while self._is_open and len(received) - pos >= 4 and not self._is_full():
            size = int.from_bytes(received[pos : pos + 4], "big", signed=True)
            # 1. Four letters instead of the length of the first message: a command of a person or a monitor.
            if not self.client.received and bytes(received[pos : pos + 4]).isalpha():
                self._answer_command(bytes(received[pos : pos + 4]))
                return
            # 2. A length that cannot be right. Clients without credentials may only send small messages.
            if not 0 <= size <= (MAX_MESSAGE if self.client.received and self.client.is_trusted else MAX_CONNECT):
                self.close_connection(f"a message of {size} bytes")
                return
            # 3. An incomplete message: wait for the rest.
            if len(received) - pos - 4 < size:
                break
            # 4. A complete message.
            self._take_message(bytes(received[pos + 4 : pos + 4 + size]))
            pos += 4 + size
        del received[:pos]

    def _take_message(self, message: bytes) -> None:
        self._server.turns.clock.instant = None
        try:
            self.client.on_message(message)
        except BadMessage as bad:
            self.close_connection(f"a message is not understood: {bad}")
        if self._deadline is not None and self.client.is_trusted:
            self._deadline.cancel()
            self._deadline = None
        self._server.end_turn()

    def _is_full(self) -> bool:
        """Whether too many requests are unanswered; then reading pauses until `flush_messages`."""
        full = self.client.received - self.client.answered >= MAX_ASKED
        if full and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        return full

    def _answer_command(self, word: bytes) -> None:
        """Answer a four-letter command and close."""
        closed = self._server.limits.digest is not None and word not in OPEN_WORDS
        answer = None if closed else WORDS.get(word)
        text = CLOSED_WORD.format(word.decode()) if answer is None else answer(self._server.make_status())
        assert self._transport is not None
        self._transport.write(text.encode())
        self._transport.close()
        self._received.clear()

    def _too_late(self) -> None:
        self._deadline = None
        if self.client.is_trusted:
            self.close_connection(f"no message came within {CONNECT_S:g} s")
        else:
            within = self._server.limits.authenticate_s
            self.close_connection(f"the store's credentials were not shown within {within:g} s")

    # -- output ------------------------------------------------------------------------------------------------------

    def send_message(self, message: bytes) -> None:
        """Send one message when this turn ends."""
        self._out += (len(message).to_bytes(4, "big"), message)
        self._server.flush_soon(self)

    def flush_messages(self) -> None:
        """Send the messages of this turn, and read again if fewer requests are unanswered."""
        if self._transport is not None and self._out:
            self._transport.write(b"".join(self._out))
        self._out.clear()
        if self._paused and self._transport is not None and self._is_open and not self._is_full():
            self._paused = False
            self._transport.resume_reading()
            self._server.loop.call_soon(self._run_messages)

    def close_connection(self, why: str) -> None:
        """Close after all messages are sent; logs the reason, if one is given."""
        if self._transport is None or self._transport.is_closing():
            return
        if why:
            log.warning("%s: metadata connection closed: %s", self.peer, why)
        self.flush_messages()
        self._transport.close()


def _do_nothing() -> None:
    """The receiver of changes until one is set."""
