"""A connection of Ottla's clients: ApiVersions first, then requests, answered in order.

Zone: deterministic. It plays the part of `ottla.client.connections.connection` and
`ottla.client.producer.network.nonblocking_connection`, which use sockets: an answer that is late or malformed closes
the connection, and all unanswered requests on it fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from ottla.client.errors import ClientError, ConnectionLostError, MalformedReplyError, RequestTimeoutError
from ottla.sim.networks.network import Connection, Network
from ottla.sim.world import MS
from ottla.wire.apis import API_TABLE, ApiKey
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.messages import ApiVersionsRequest, ApiVersionsResponse
from ottla.wire.schema import Message

API_VERSIONS_VERSION: Final = 3
CallOutcome = Callable[["Message | ClientError"], None]
"""Called with the answer, or with the error that took its place."""


class PendingResponse(NamedTuple):
    """A request that waits for its answer."""

    correlation_id: int
    api_key: int
    version: int
    then: CallOutcome


class SimulatedConnection:
    """One connection. Any error closes it for good."""

    def __init__(
        self,
        network: Network,
        host: str,
        node: int,
        timeout_ms: int,
        opened: Callable[[], None],
        closed: Callable[[ClientError], None],
    ) -> None:
        """Calls `opened` when requests can be sent, and `closed` once, before requests without an answer fail."""
        self.ready = False
        self.awaited: deque[PendingResponse] = deque()
        self._network = network
        self.node = node
        self._host = host
        self._timeout_ns = timeout_ms * MS
        self._opened = opened
        self._on_closed = closed
        self._over = False
        self._next_id = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self._connection = network.open_connection(host, node, self._send_api_versions, self._on_frame, self._on_lost)

    def highest_version(self, api_key: int, at_most: int = 32_767) -> int:
        """The highest version that both sides support, at most `at_most`."""
        low, high = self._versions[api_key]
        best = min(high, API_TABLE[api_key].max_version, at_most)
        assert best >= max(low, API_TABLE[api_key].min_version)
        return best

    def send_request(self, api_key: int, message: Message, version: int, then: CallOutcome | None) -> None:
        """Send a request. `then` is None for a request without an answer (acks=0)."""
        self._next_id += 1
        header = encode_request_header(api_key, version, self._next_id, self._host)
        if then is not None:
            asked = PendingResponse(self._next_id, api_key, version, then)
            self.awaited.append(asked)
            self._network.timeline.schedule_after(self._timeout_ns, "request timeout", self._on_timeout, asked)
        self._network.send_frame(self._connection, header + encode_bytes(message, version))

    def close_connection(self, error: ClientError) -> None:
        """Close; every request that waits for an answer fails with `error`."""
        if self._over:
            return
        self._over = True
        self.ready = False
        self._network.close_connection(self._connection)
        self._on_closed(error)
        waiting, self.awaited = self.awaited, deque()
        for asked in waiting:
            asked.then(error)

    # ---- callbacks of the network ----

    def _send_api_versions(self, _connection: Connection) -> None:
        request = ApiVersionsRequest(client_software_name="ottla", client_software_version="1.0")
        self.send_request(ApiKey.API_VERSIONS, request, API_VERSIONS_VERSION, self._on_api_versions)

    def _on_api_versions(self, answer: Message | ClientError) -> None:
        if isinstance(answer, ApiVersionsResponse) and not answer.error_code:
            self._versions = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
            self.ready = True
            self._opened()

    def _on_frame(self, frame: bytes) -> None:
        try:
            asked, answer = self._decode_response(memoryview(frame))
        except MalformedReplyError as error:
            self.close_connection(error)
            return
        asked.then(answer)

    def _decode_response(self, frame: memoryview) -> tuple[PendingResponse, Message]:
        """The oldest open request and the decoded answer to it. Raises MalformedReplyError."""
        got = int.from_bytes(frame[:4], "big", signed=True)
        if not self.awaited or self.awaited[0].correlation_id != got:
            raise MalformedReplyError(f"{self._host}: broker {self.node} answered request {got}, which was not due")
        asked = self.awaited[0]
        api = API_TABLE[asked.api_key]
        try:
            at = response_body_pos(asked.api_key, asked.version, frame)
            answer, end = decode(api.response, asked.version, frame, at)
        except MalformedMessage as error:
            raise MalformedReplyError(f"{self._host}: a broken {api.name} v{asked.version} answer: {error}") from error
        if end != len(frame):
            raise MalformedReplyError(f"{self._host}: {len(frame) - end} bytes after a {api.name} answer")
        self.awaited.popleft()
        return asked, answer

    def _on_lost(self) -> None:
        self.close_connection(ConnectionLostError(f"the connection to broker {self.node} broke"))

    def _on_timeout(self, asked: PendingResponse) -> None:
        if not self._over and asked in self.awaited:
            self.close_connection(RequestTimeoutError(f"broker {self.node} did not answer in time"))
