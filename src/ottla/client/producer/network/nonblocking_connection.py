"""A connection that never blocks: sends requests and returns their answers in order.

Zone: real. Sockets of the producer's thread. `Connection` connects and negotiates versions in its own thread, because
resolving names and connecting block; then the socket is moved here.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Any, NamedTuple

from ottla.client.connections.address import Address
from ottla.client.connections.connection import Connection, why_lost
from ottla.client.errors import (
    LOST_NEXT_STEP,
    ClientError,
    ConnectionLostError,
    MalformedReplyError,
    RequestTimeoutError,
    UsageError,
)
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode, encode
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.schema import Message
from ottla.wire.single_batch_produce import LoneAnswer, LoneProduce

_CHUNK = 65_536
_PARTS = 64
"""The most pieces of memory per system call."""
_COPIED = 16_384
"""Up to this size of records a request is joined to one piece: copying is cheaper than passing three pieces."""
_new = tuple.__new__  # three times as fast as the constructors


class PendingResponse(NamedTuple):
    """A request without an answer yet."""

    correlation_id: int
    api_key: int
    version: int
    tag: Any
    sent_at: float
    until: float
    lone: LoneProduce | None
    """The fast decoder of a successful answer, for requests with one batch."""


class Received(NamedTuple):
    """An answer; or, with message None, the event that a request without an answer was written."""

    tag: Any
    message: Message | LoneAnswer | None
    seconds: float


class Channel:
    """One open connection to a broker. Any error closes it for good."""

    def __init__(self, node: int, connection: Connection) -> None:
        """Takes over the connection's socket. node: a broker's id, or a negative number for a bootstrap address."""
        self.node = node
        self.connection = connection
        self.address = connection.address
        self.sock = connection.detach_socket()
        self.sock.setblocking(False)
        self._config = connection.config
        self._most = connection.config.receive_message_max_bytes
        self._next_id = 0
        self._out: deque[tuple[memoryview, Any]] = deque()
        self._in = bytearray()
        self.awaited: deque[PendingResponse] = deque()
        self.lones: dict[Any, LoneProduce] = {}
        """Prepared requests for one batch on this connection, by the key that the sender chooses."""
        self.write_awaited = False
        """Whether its selector also waits for writability; the owner of the selector sets it."""

    @property
    def wants_write(self) -> bool:
        """Whether there are bytes to send."""
        return bool(self._out)

    @property
    def response_deadline(self) -> float:
        """When the oldest request times out; infinite if none is unanswered."""
        return self.awaited[0].until if self.awaited else float("inf")

    def send_request(self, api_key: int, message: Message, version: int, tag: Any, *, answered: bool = True) -> None:
        """Queue a request. answered=False: there is no answer; `flush_requests` reports when it was written.

        Raises UsageError for a value that does not fit the protocol, without queueing anything.
        """
        self._next_id = (self._next_id + 1) & 0x7FFF_FFFF
        parts = self._encode_frame(api_key, message, version)
        now = time.monotonic()
        # Only the last piece has the tag: the request is written when that piece is.
        for part in parts[:-1]:
            self._out.append((part, None))
        self._out.append((parts[-1], None if answered else tag))
        if answered:
            until = now + self._config.request_timeout_ms / 1000
            self.awaited.append(PendingResponse(self._next_id, api_key, version, tag, now, until, None))

    def send_lone(self, lone: LoneProduce, records: bytearray | memoryview, tag: Any, *, answered: bool = True) -> None:
        """Queue a prepared Produce request of one batch; as `send_request`."""
        self._next_id = (self._next_id + 1) & 0x7FFF_FFFF
        size = len(records)
        head = lone.frame_head(self._next_id, size)
        last = None if answered else tag
        if size <= _COPIED:
            self._out.append((memoryview(b"".join((head, records, lone.tail))), last))
        else:
            self._out += [(memoryview(head), None), (memoryview(records), None), (memoryview(lone.tail), last)]
        if answered:
            now = time.monotonic()
            until = now + self._config.request_timeout_ms / 1000
            self.awaited.append(
                _new(PendingResponse, (self._next_id, ApiKey.PRODUCE, lone.version, tag, now, until, lone))
            )

    def _encode_frame(self, api_key: int, message: Message, version: int) -> list[memoryview]:
        header = encode_request_header(api_key, version, self._next_id, self._config.client_id)
        parts: list[memoryview] = []
        try:
            for part in encode(message, version):
                assert isinstance(part, bytes | bytearray | memoryview)  # clients send memory, never file regions
                parts.append(memoryview(part))
        except (struct.error, UnicodeEncodeError) as error:
            name = API_TABLE[api_key].name
            raise UsageError(f"a value of the {name} request does not fit the protocol: {error}") from error
        size = len(header) + sum(part.nbytes for part in parts)
        return [memoryview(size.to_bytes(4, "big") + header), *parts]

    def flush_requests(self) -> list[Received]:
        """Write what the socket takes. Returns requests without an answer that were written. Raises ClientError."""
        left: list[Received] = []
        try:
            while self._out:
                if len(self._out) == 1:
                    sent = self.sock.send(self._out[0][0])
                else:
                    sent = self.sock.sendmsg([piece for piece, _ in islice(self._out, _PARTS)])
                while self._out and sent >= self._out[0][0].nbytes:
                    piece, tag = self._out.popleft()
                    sent -= piece.nbytes
                    if tag is not None:
                        left.append(Received(tag, None, 0.0))
                if sent:
                    self._out[0] = (self._out[0][0][sent:], self._out[0][1])
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            raise why_lost(self.address, self._config, error) from error
        return left

    def receive_responses(self) -> tuple[list[Received], ClientError | None]:
        """The answers that have arrived, and the error after them, or None. After an error the caller closes this."""
        try:
            chunk = self.sock.recv(_CHUNK)
        except (BlockingIOError, InterruptedError):
            return [], None
        except OSError as error:
            return [], why_lost(self.address, self._config, error)
        if not chunk:
            cause = f"the connection to {self.address} broke: the broker closed it"
            return [], ConnectionLostError(cause, LOST_NEXT_STEP)
        answers: list[Received] = []
        try:
            size = len(chunk) - 4
            if not self._in and 4 <= size <= self._most and int.from_bytes(chunk[:4], "big", signed=True) == size:
                return [self._deliver_response(memoryview(chunk)[4:])], None  # exactly one answer, the usual case
            self._in += chunk
            while (frame := self._frame_in()) is not None:
                answers.append(self._deliver_response(frame))
        except ClientError as error:
            return answers, error
        return answers, None

    def _frame_in(self) -> memoryview | None:
        """The next whole frame. Raises MalformedReplyError for an impossible size."""
        if len(self._in) < 4:
            return None
        size = int.from_bytes(self._in[:4], "big", signed=True)
        if not 4 <= size <= self._most:
            raise MalformedReplyError(f"{self.address} announced a response of {size} bytes")
        if len(self._in) < 4 + size:
            return None
        frame = bytes(self._in[4 : 4 + size])
        del self._in[: 4 + size]
        return memoryview(frame)

    def _deliver_response(self, frame: memoryview) -> Received:
        got = int.from_bytes(frame[:4], "big", signed=True)
        if not self.awaited or self.awaited[0].correlation_id != got:
            raise MalformedReplyError(f"{self.address} answered request {got}, which is not the next one")
        asked = self.awaited[0]
        usual = asked.lone.read(frame) if asked.lone is not None else None
        if usual is not None:
            self.awaited.popleft()
            return _new(Received, (asked.tag, usual, time.monotonic() - asked.sent_at))
        api = API_TABLE[asked.api_key]
        try:
            at = response_body_pos(asked.api_key, asked.version, frame)
            message, _ = decode(api.response, asked.version, frame, at)
        except MalformedMessage as error:
            raise MalformedReplyError(
                f"{self.address} sent a malformed {api.name} v{asked.version} response: {error}"
            ) from error
        self.awaited.popleft()
        return Received(asked.tag, message, time.monotonic() - asked.sent_at)

    def timeout_error(self) -> RequestTimeoutError:
        """The error for a request that was not answered in time."""
        return RequestTimeoutError(
            f"{self.address} did not answer in time",
            "The broker is overloaded, stopped or cut off; request.timeout.ms sets the limit",
        )

    def close_channel(self) -> list[tuple[Any, bool]]:
        """Close; returns (tag, whether the broker may have it) of requests without an outcome."""
        with contextlib.suppress(OSError):
            self.sock.close()
        lost = [(asked.tag, True) for asked in self.awaited]
        lost += [(tag, True) for _, tag in self._out if tag is not None]
        self.awaited.clear()
        self._out.clear()
        return lost


def open_in_background(
    address: Address, config: ClientConfig, then: Callable[[Connection | ClientError], None]
) -> threading.Thread:
    """Connect in a new thread, which calls `then` with the open connection, or with the error."""

    def connect() -> None:
        connection = Connection(address, config)
        try:
            connection.open_connection(Deadline.after_ms(config.request_timeout_ms))
        except ClientError as error:
            connection.close_connection()
            then(error)
        except Exception as error:  # noqa: BLE001  the producer waits for an outcome
            connection.close_connection()
            then(MalformedReplyError(f"connecting to {address} failed: {error!r}"))
        else:
            then(connection)

    thread = threading.Thread(target=connect, name=f"ottla-connect-{address}", daemon=True)
    thread.start()
    return thread
