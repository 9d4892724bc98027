"""One connection to one broker: sends requests, returns answers in their order, negotiates versions first.

Zone: real. The blocking sockets of the clients are here and nowhere else; the meaning of answers is elsewhere. A
Connection belongs to one thread. Any error except UnsupportedVersionError closes it for good, because the order of
answers is not certain any more.
"""

from __future__ import annotations

import re
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar, cast

import ottla
from ottla.client.connections.address import Address
from ottla.client.errors import (
    LOST_NEXT_STEP,
    ClientError,
    ConnectionLostError,
    MalformedReplyError,
    RequestTimeoutError,
    UnreachableError,
    UnsupportedVersionError,
    UsageError,
)
from ottla.client.retry import Deadline
from ottla.client.settings import ClientConfig
from ottla.errors import ErrorCode
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode, encode
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.schema import Message

if TYPE_CHECKING:
    from ottla.client.security.tls import TlsSocket

R = TypeVar("R", bound=Message)

_SOFTWARE_VERSION = re.sub(r"[^a-zA-Z0-9.\-]", "-", ottla.__version__).strip("-.")
"""KIP-511 allows letters, digits, '.' and '-' only."""
_SPARE_MIN: Final = 1 << 16
_SPARE_MAX: Final = 1 << 24
"""Answers between these sizes are read into buffers of earlier answers that are free again."""
_SPARES: Final = 2
"""Number of such buffers: a reader often holds one answer while it receives the next one."""


class Call(NamedTuple, Generic[R]):
    """A request that was sent; `Connection.wait_for_response` takes it and returns the answer."""

    correlation_id: int
    api_key: int
    version: int
    response: type[R]
    sent: Deadline
    """`request.timeout.ms` after it was sent."""


class Connection:
    """A TCP connection, opened by `open_connection`. Requests may be pipelined; brokers answer in the order of the
    requests."""

    __slots__ = (
        "_abandoned",
        "_early",
        "_expected",
        "_next_id",
        "_sock",
        "_spares",
        "address",
        "config",
        "features",
        "session_ends",
        "versions",
    )

    def __init__(self, address: Address, config: ClientConfig) -> None:
        self.address = address
        self.config = config
        self.versions: dict[int, tuple[int, int]] = {}
        """(lowest, highest) version that the broker serves, per API key."""
        self.features: dict[str, int] = {}
        """The finalized level of each feature that the broker reports (KIP-584)."""
        self.session_ends = float("inf")
        """When a new connection must replace this one, on the monotonic clock: SASL sessions may expire (KIP-368)."""
        self._sock: socket.socket | None = None
        self._next_id = 0
        self._expected: deque[int] = deque()
        self._early: dict[int, memoryview] = {}
        self._abandoned: set[int] = set()
        self._spares: list[bytearray] = []

    @property
    def is_open(self) -> bool:
        """Whether it was opened and not closed; does not probe the socket."""
        return self._sock is not None

    def open_connection(self, deadline: Deadline) -> None:
        """Connect to the first address of the host that accepts, negotiate versions, log in if SASL is configured.

        Raises UnreachableError, MalformedReplyError (not a Kafka broker), RequestTimeoutError, ConnectionLostError,
        AuthenticationError.
        """
        assert self._sock is None
        self._sock = self._connect_socket(deadline)
        highest = API_TABLE[ApiKey.API_VERSIONS].max_version
        try:
            self._negotiate_versions(highest, deadline)
        except ConnectionLostError:
            # Some services close the connection on an unknown version instead of answering with error 35.
            self._sock = self._connect_socket(deadline)
            self._negotiate_versions(0, deadline)
        if self.config.security.sasl:
            self._log_in(deadline)

    def _connect_socket(self, deadline: Deadline) -> socket.socket:
        sock = _connect_to_host(self.address, self.config, deadline)
        if not self.config.security.tls:
            return sock
        from ottla.client.security.tls import secure_socket  # noqa: PLC0415  TLS takes time to load, few need it

        limit = deadline.within_ms(self.config.socket_connection_setup_timeout_ms)
        sock.settimeout(limit.remaining_s() or 1e-6)
        return secure_socket(sock, self.address, self.config.security)

    def _log_in(self, deadline: Deadline) -> None:
        from ottla.client.security.login import log_in  # noqa: PLC0415  hashes and HTTP take time to load

        try:
            self.session_ends = log_in(self, self.config.security, deadline)
        except BaseException:
            self.close_connection()
            raise

    def _negotiate_versions(self, version: int, deadline: Deadline) -> None:
        reply, at = self._ask_versions(version, deadline)
        # KIP-511: a broker that does not know our version of ApiVersions answers with error 35 in version 0, which
        # names the versions that it knows. Ask again with the highest of these.
        if version and int.from_bytes(reply[at : at + 2], "big", signed=True) == ErrorCode.UNSUPPORTED_VERSION:
            version = min(_offered_version(reply, at), version - 1)
            reply, at = self._ask_versions(version, deadline)
        message = self._decode_versions(reply, version, at)
        if message.error_code:
            self.close_connection()
            raise MalformedReplyError(f"{self.address} refuses every version of ApiVersions")
        self.versions = {api.api_key: (api.min_version, api.max_version) for api in message.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in message.finalized_features}

    def _ask_versions(self, version: int, deadline: Deadline) -> tuple[memoryview, int]:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version=_SOFTWARE_VERSION)
        call = self.send_request(request, version, ApiVersionsResponse)
        reply = self._await_frame(call.correlation_id, Deadline(min(deadline.at, call.sent.at)))
        return reply, response_body_pos(ApiKey.API_VERSIONS, version, reply)

    def _decode_versions(self, reply: memoryview, version: int, at: int) -> ApiVersionsResponse:
        try:
            return decode(ApiVersionsResponse, version, reply, at)[0]
        except MalformedMessage as error:
            self.close_connection()
            raise MalformedReplyError(f"{self.address} sent a malformed ApiVersions response: {error}") from error

    def choose_version(self, api_key: int, at_most: int = 32_767, at_least: int = 0) -> int:
        """The highest version of an API that both sides serve, in [at_least, at_most].

        Raises UnsupportedVersionError; the connection stays open.
        """
        api = API_TABLE[api_key]
        low, high = self.versions.get(api_key, (0, -1))
        best = min(high, api.max_version, at_most)
        least = max(api.min_version, at_least)
        if best < max(low, least):
            theirs = f"serves versions {low} to {high}" if high >= 0 else "does not serve it"
            raise UnsupportedVersionError(
                f"{api.name}: this client needs version {least} to {min(api.max_version, at_most)}, "
                f"{self.address} {theirs}",
                "Use a newer broker" if high < least else "Use a newer client",
                missing_api=ApiKey(api_key).name if high < 0 else "",
            )
        return best

    def send_request(self, message: Message, version: int, response: type[R]) -> Call[R]:
        """Send a request; `wait_for_response` returns its answer. Raises ConnectionLostError, RequestTimeoutError,
        UsageError."""
        call = self._new_call(message, version, response)
        self._write_call(call, message)
        # Only after the write: if that fails, the connection is closed and expects no answer.
        self._expected.append(call.correlation_id)
        return call

    def send_unanswered(self, message: Message, version: int, response: type[R]) -> None:
        """Send a request that the broker does not answer (Produce with acks=0)."""
        self._write_call(self._new_call(message, version, response), message)

    def wait_for_response(self, call: Call[R], deadline: Deadline) -> R:
        """Wait for the answer, until `deadline` or `request.timeout.ms` after sending, and decode it.

        `records` in it are views of the answer's buffer, which is not reused while a view of it exists.
        Raises RequestTimeoutError, ConnectionLostError, MalformedReplyError.
        """
        frame = self._await_frame(call.correlation_id, Deadline(min(deadline.at, call.sent.at)))
        try:
            at = response_body_pos(call.api_key, call.version, frame)
            return decode(call.response, call.version, frame, at)[0]
        except MalformedMessage as error:
            self.close_connection()
            name = API_TABLE[call.api_key].name
            raise MalformedReplyError(
                f"{self.address} sent a malformed {name} v{call.version} response: {error}"
            ) from error

    def fileno(self) -> int:
        """For `select`: readable when an answer begins to arrive. Raises UsageError if it is closed."""
        return self._open_socket().fileno()

    def has_answer(self, call: Call[R]) -> bool:
        """Whether the answer was received already, while `wait_for_response` waited for another one."""
        return call.correlation_id in self._early

    def abandon_call(self, call: Call[R]) -> None:
        """Drop this answer when it arrives: the caller will not ask for it."""
        if self._early.pop(call.correlation_id, None) is None and call.correlation_id in self._expected:
            self._abandoned.add(call.correlation_id)

    def detach_socket(self) -> socket.socket:
        """Return the socket and give it up. Nothing may be unanswered; the negotiated versions stay readable here."""
        assert not self._expected
        sock, self._sock = self._open_socket(), None
        return sock

    def went_stale(self) -> bool:
        """Whether the broker closed the idle connection, sent unrequested bytes, or will soon end the SASL session."""
        if self._sock is None or self._expected:
            return False
        # Nothing to read is the normal state of an idle connection. Anything else is its end, or, with TLS, possibly
        # a session ticket, which `idle_ended` reads.
        if not wait_readable([self], Deadline(0))[0]:
            return time.monotonic() >= self.session_ends
        return not self.config.security.tls or cast("TlsSocket", self._sock).idle_ended()

    @property
    def has_bytes(self) -> bool:
        """Whether TLS has decrypted bytes in memory, for which the descriptor does not become readable."""
        return self.config.security.tls and self._sock is not None and cast("TlsSocket", self._sock).pending() > 0

    def close_connection(self) -> None:
        """Drop the connection; answers not yet received are lost. Idempotent."""
        sock, self._sock = self._sock, None
        self._expected.clear()
        self._early.clear()
        self._abandoned.clear()
        if sock is not None:
            sock.close()

    def _new_call(self, message: Message, version: int, response: type[R]) -> Call[R]:
        api = API_TABLE[_KEY_OF_REQUEST[type(message)]]
        assert api.response is response, f"{api.name} is answered with {api.response}"
        self._next_id = (self._next_id + 1) & 0x7FFF_FFFF
        return Call(self._next_id, api.key, version, response, Deadline.after_ms(self.config.request_timeout_ms))

    def _write_call(self, call: Call[R], message: Message) -> None:
        frame = self._encode_frame(call, message)
        sock = self._open_socket()
        try:
            _send_all(sock, frame, call.sent)
        except BaseException as error:
            self.close_connection()
            if isinstance(error, OSError):
                raise self._lost_error(error, call.sent) from error
            raise

    def _encode_frame(self, call: Call[R], message: Message) -> list[memoryview]:
        header = encode_request_header(call.api_key, call.version, call.correlation_id, self.config.client_id)
        parts: list[memoryview] = []
        try:
            for part in encode(message, call.version):
                assert isinstance(part, bytes | bytearray | memoryview)  # clients send memory, never file regions
                parts.append(memoryview(part))
        except (struct.error, UnicodeEncodeError) as error:
            name = API_TABLE[call.api_key].name
            raise UsageError(f"a value of the {name} request does not fit the protocol: {error}") from error
        size = len(header) + sum(part.nbytes for part in parts)
        return [memoryview(size.to_bytes(4, "big") + header), *parts]

    def _await_frame(self, correlation_id: int, deadline: Deadline) -> memoryview:
        """The frame that answers `correlation_id`. Keeps the frames of earlier requests for their callers."""
        if (early := self._early.pop(correlation_id, None)) is not None:
            return early
        if correlation_id not in self._expected:
            raise ConnectionLostError(
                f"the connection to {self.address} broke before this request was answered", LOST_NEXT_STEP
            )
        while True:
            answered, frame = self._read_next(deadline)
            if answered == correlation_id:
                return frame
            # Answers to other requests may come first: drop those of abandoned calls, keep the others for
            # `wait_for_response`.
            if answered in self._abandoned:
                self._abandoned.discard(answered)
            else:
                self._early[answered] = frame

    def _read_next(self, deadline: Deadline) -> tuple[int, memoryview]:
        """The next frame. Any error, also an interrupt, closes the connection: it may have read half a frame."""
        try:
            frame = self._read_frame(self._open_socket(), deadline)
        except BaseException as error:
            self.close_connection()
            if isinstance(error, OSError):
                raise self._lost_error(error, deadline) from error
            raise
        expected = self._expected.popleft()
        got = int.from_bytes(frame[:4], "big", signed=True)
        if got != expected:
            self.close_connection()
            raise MalformedReplyError(f"{self.address} answered request {got} instead of {expected}")
        return expected, frame

    def _read_frame(self, sock: socket.socket, deadline: Deadline) -> memoryview:
        prefix = bytearray(4)
        _receive_into(sock, memoryview(prefix), deadline)
        size = int.from_bytes(prefix, "big", signed=True)
        if not 4 <= size <= self.config.receive_message_max_bytes:
            raise _not_a_frame(self.address, bytes(prefix), size, self.config.receive_message_max_bytes)
        frame = self._frame_buffer(size)
        _receive_into(sock, frame, deadline)
        return frame

    def _frame_buffer(self, size: int) -> memoryview:
        """A buffer for a frame: that of an earlier frame if no view of it is left, else a new one.

        The system maps and clears new memory page by page, which takes longer than receiving the bytes.
        """
        if not _SPARE_MIN <= size <= _SPARE_MAX:
            # Zeroed memory becomes real only when bytes arrive, so a frame that announces a false size costs nothing.
            return memoryview(bytearray(size))
        room = next((spare for spare in self._spares if len(spare) >= size and _is_free(spare)), None)
        if room is None:
            # An eighth larger: full answers differ by some bytes, and the buffer should also fit the next one.
            room = bytearray(size + (size >> 3))
            self._spares = [*self._spares[1 - _SPARES :], room]
        return memoryview(room)[:size]

    def _lost_error(self, error: OSError, deadline: Deadline) -> ClientError:
        # After the deadline any error counts as a timeout: there is no time left for another attempt.
        if isinstance(error, TimeoutError) or deadline.expired:
            return RequestTimeoutError(
                f"{self.address} did not answer in time",
                "The broker is overloaded, stopped or cut off; request.timeout.ms sets the limit",
            )
        return why_lost(self.address, self.config, error)

    def _open_socket(self) -> socket.socket:
        if self._sock is None:
            raise UsageError(f"the connection to {self.address} is closed", "Open a new one")
        return self._sock


def why_lost(address: Address, config: ClientConfig, error: OSError) -> ClientError:
    """The client error for an error of a socket: the connection broke, or (TLS) the broker refuses this client."""
    if config.security.tls:
        from ottla.client.security.tls import tls_refusal  # noqa: PLC0415  as above

        if (refused := tls_refusal(address, error)) is not None:
            return refused
    return ConnectionLostError(f"the connection to {address} broke: {error.strerror or error}", LOST_NEXT_STEP)


def wait_readable(
    connections: Sequence[Connection], deadline: Deadline, wake: int = -1
) -> tuple[list[Connection], bool]:
    """(connections with bytes or an end to read; whether the descriptor `wake` is readable).

    Waits until `deadline` for the first event.
    """
    if early := [connection for connection in connections if connection.has_bytes]:
        return early, False
    # `select.select` fails for descriptors above 1,023; `poll` takes milliseconds as a C int.
    poller = select.poll()
    if wake >= 0:
        poller.register(wake, select.POLLIN)
    by_descriptor = {connection.fileno(): connection for connection in connections}
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLIN)
    ready = [descriptor for descriptor, _ in poller.poll(min(deadline.remaining_ms(), 2**31 - 1))]
    return [by_descriptor[each] for each in ready if each != wake], wake in ready


def _offered_version(reply: memoryview, at: int) -> int:
    """The version of ApiVersions that a broker which refused ours (error 35) serves; 0 if it does not report one.

    KIP-511: that answer is in version 0 for any request. Some brokers use another version; requesting 0 always works.
    """
    try:
        offered = decode(ApiVersionsResponse, 0, reply, at)[0].api_keys
    except MalformedMessage:
        return 0
    return max(0, *(api.max_version for api in offered if api.api_key == ApiKey.API_VERSIONS), 0)


def _connect_to_host(address: Address, config: ClientConfig, deadline: Deadline) -> socket.socket:
    """A socket to the first address of the host that accepts. The system's resolver takes its own time."""
    try:
        # UnicodeError: the name is not a valid host name (a label longer than 63 characters, for instance).
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UnreachableError(*address.does_not_resolve()) from error
    causes: list[str] = []
    for family, kind, protocol, _, target in found:
        limit = deadline.within_ms(config.socket_connection_setup_timeout_ms)
        sock = socket.socket(family, kind, protocol)
        try:
            _set_options(sock, config)
            sock.settimeout(limit.remaining_s() or 1e-6)
            sock.connect(target)
        except OSError as error:
            sock.close()
            causes.append(f"{target[0]}: {'no answer' if isinstance(error, TimeoutError) else error.strerror or error}")
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise UnreachableError(*address.does_not_connect(causes))


def _set_options(sock: socket.socket, config: ClientConfig) -> None:
    # With Nagle's algorithm a small request would wait until the broker has acknowledged the one before.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if config.send_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.send_buffer_bytes)
    if config.receive_buffer_bytes >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.receive_buffer_bytes)


def _send_all(sock: socket.socket, parts: list[memoryview], deadline: Deadline) -> None:
    at = 0
    while at < len(parts):
        sock.settimeout(deadline.remaining_s() or 1e-6)
        # One system call takes a limited number of buffers (IOV_MAX), and may write only part of them.
        sent = sock.sendmsg(parts[at : at + 64])
        while at < len(parts) and sent >= parts[at].nbytes:
            sent -= parts[at].nbytes
            at += 1
        if sent:
            parts[at] = parts[at][sent:]


def _is_free(buffer: bytearray) -> bool:
    """Whether no view of the buffer is left: only then can it change its size."""
    try:
        buffer.append(0)
    except BufferError:
        return False
    buffer.pop()
    return True


def _receive_into(sock: socket.socket, target: memoryview, deadline: Deadline) -> None:
    at = 0
    while at < len(target):
        sock.settimeout(deadline.remaining_s() or 1e-6)
        got = sock.recv_into(target[at:])
        if got == 0:
            raise ConnectionResetError(104, "the broker closed it")
        at += got


def _not_a_frame(address: Address, prefix: bytes, size: int, limit: int) -> MalformedReplyError:
    # 1. The start of an HTTP status line. 2. A TLS alert record: the broker expected a TLS handshake. 3. Anything
    # else, or a response that is really too large.
    if prefix == b"HTTP":
        return MalformedReplyError(f"{address} is a web server, not a Kafka broker", "Check the port")
    if prefix[:2] == b"\x15\x03":
        return MalformedReplyError(
            f"{address} speaks TLS", "Set security.protocol=SSL or SASL_SSL, or use another port"
        )
    return MalformedReplyError(
        f"{address} announced a response of {size} bytes; the limits are 4 and {limit}",
        "If the port belongs to a Kafka broker, raise receive.message.max.bytes",
    )


_KEY_OF_REQUEST = {api.request: api.key for api in API_TABLE.values()}
