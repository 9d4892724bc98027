"""A Kafka client on the simulated network: requests pipelined over one connection, reconnecting when it breaks.

Zone: deterministic. Handles the wire protocol (frames, headers, correlation ids) without code of the broker;
`producers.py`, `readers.py` and `admin.py` decide which requests to send.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from ottla.sim.networks.network import Connection, Network
from ottla.sim.world import SECOND, Timeline
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.schema import Message

Answered = Callable[["Message | None", int], None]
"""Called with the response (None: none will come), and the life of the broker, in a cluster its number."""
Route = tuple[str, int]
"""A topic and a partition: the request goes to the leader."""
CONTROLLER: Final[Route] = ("", -1)
"""The request goes to the controller."""


class Client(Protocol):
    """A client for the actors of a workload: for one node, or for the right one of several."""

    @property
    def timeline(self) -> Timeline:
        """The time."""
        ...

    @property
    def name(self) -> str:
        """Its name in the history, and its host name on the network."""
        ...

    def send_request(
        self, message: Message, version: int, response: type[Message], then: Answered, route: Route | None = None
    ) -> None:
        """Send a request to the broker of the route, or to any; calls `then` once, never inside this call."""
        ...

    def mark_metadata_stale(self) -> None:
        """An answer shows that the metadata is stale: request it again."""
        ...


class Pending:
    """A request without its answer."""

    __slots__ = ("api_key", "correlation_id", "frame", "response", "sent", "then", "version")

    def __init__(
        self, api_key: int, version: int, correlation_id: int, frame: bytes, response: type[Message], then: Answered
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.frame = frame
        self.response = response
        self.then = then
        self.sent = False


class WireClient:
    """One client with at most one connection to one node."""

    def __init__(self, network: Network, name: str, node: int = 0, timeout_ns: int = 3 * SECOND) -> None:
        self.network = network
        self.timeline = network.timeline
        self.name = name
        self._node = node
        self._timeout_ns = timeout_ns
        self._connection: Connection | None = None
        self._open = False
        self._queue: deque[Pending] = deque()
        self._correlation_id = 0
        self.complain: Callable[[str], None] = lambda _what: None
        """Called for every answer that breaks the protocol."""

    @property
    def connection_number(self) -> int:
        """Number of the present connection; 0: none."""
        return 0 if self._connection is None else self._connection.number

    def send_request(
        self,
        message: Message,
        version: int,
        response: type[Message],
        then: Answered,
        route: Route | None = None,  # noqa: ARG002  part of `Client`
    ) -> None:
        """Send a request to the only node, whatever the route; calls `then` once, never inside this call."""
        pending = self._make_pending(message, version, response, then)
        # Kept in the order of sending: a broker answers the requests of a connection in this order.
        self._queue.append(pending)
        if self._connection is None:
            self._connection = self.network.open_connection(
                self.name, self._node, self._on_opened, self._deliver_response, self._on_lost
            )
        elif self._open:
            self._send_pending(pending)
        self.timeline.schedule_after(
            self._timeout_ns, "request timeout", self._expire_request, pending, self._connection
        )

    def _make_pending(self, message: Message, version: int, response: type[Message], then: Answered) -> Pending:
        """Encode a request under the next correlation id."""
        self._correlation_id += 1
        api_key = message.API_KEY
        header = encode_request_header(api_key, version, self._correlation_id, self.name)
        frame = header + encode_bytes(message, version)
        return Pending(api_key, version, self._correlation_id, frame, response, then)

    def mark_metadata_stale(self) -> None:
        """Does nothing: with one node there is no metadata to refresh."""

    def _on_opened(self, _connection: Connection) -> None:
        self._open = True
        for pending in self._queue:
            self._send_pending(pending)

    def _send_pending(self, pending: Pending) -> None:
        assert self._connection is not None
        pending.sent = True
        self.network.send_frame(self._connection, pending.frame)

    def _deliver_response(self, frame: bytes) -> None:
        assert self._connection is not None
        response = self._decode_response(memoryview(frame))
        if isinstance(response, str):
            self.complain(f"{self.name}: {response}")
            # After bytes that cannot be read it is unknown where the next answer begins.
            self.network.close_connection(self._connection)
            self._on_lost()
            return
        self._queue.popleft().then(response, self._connection.life)

    def _decode_response(self, view: memoryview) -> Message | str:
        """The response to the oldest request, or a sentence about the defect of the frame."""
        if not self._queue:
            return "an answer without a request"
        pending = self._queue[0]
        if len(view) < 4 or int.from_bytes(view[:4], "big", signed=True) != pending.correlation_id:
            return "an answer out of order"
        try:
            pos = response_body_pos(pending.api_key, pending.version, view)
            response, end = decode(pending.response, pending.version, view, pos)
        except MalformedMessage as error:
            return f"an answer that cannot be read: {error}"
        return response if end == len(view) else f"{len(view) - end} bytes after the answer"

    def _on_lost(self) -> None:
        life = 0 if self._connection is None else self._connection.life
        self._connection, self._open = None, False
        # Emptied first: a callback may send its request again at once, on a new connection.
        queue, self._queue = self._queue, deque()
        for pending in queue:
            pending.then(None, life)

    def _expire_request(self, pending: Pending, connection: Connection) -> None:
        """Close the connection on a request timeout, as clients do."""
        # The request may have been answered, or lost with an earlier connection.
        if self._connection is connection and pending in self._queue:
            self.network.close_connection(connection)
            self._on_lost()
