"""Sends requests to other brokers, and decodes their responses.

Zone: deterministic. Headers, versions and decoding only; callers decide when to send and to retry.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ottla.seams import Clock, Failure, Kind, Network
from ottla.wire.apis import API_TABLE
from ottla.wire.codec import decode, encode_bytes
from ottla.wire.errors import MalformedMessage
from ottla.wire.header import encode_request_header, response_body_pos
from ottla.wire.schema import Message

_NS_PER_MS: Final = 1_000_000
_CORRELATION_MASK: Final = 0x7FFFFFFF


class BrokerClient:
    """Sends requests of this broker to others, and to itself, by `Network.call_broker`."""

    def __init__(self, network: Network, clock: Clock, node_id: int) -> None:
        self._network = network
        self._clock = clock
        self._client_id = f"broker-{node_id}"
        self._correlation_id = 0

    def send_request(
        self,
        node: int,
        request: Message,
        version: int,
        timeout_ms: int,
        done: Callable[[Any | Failure], None],
        lane: str = "",
    ) -> None:
        """Send `request`; `done` receives the response message or a Failure, in a later turn, exactly once.

        A malformed response is a Failure UNKNOWN, because the request may have been carried out.
        """
        key = request.API_KEY
        frame = self.request_head(key, version) + encode_bytes(request, version)
        self.send_frame(node, frame, timeout_ms, lambda answer: done(_decode_response(key, version, answer)), lane)

    def request_head(self, key: int, version: int) -> bytes:
        """A request header with the next correlation id."""
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_MASK
        return encode_request_header(key, version, self._correlation_id, self._client_id)

    def send_frame(
        self, node: int, frame: bytes, timeout_ms: int, done: Callable[[memoryview | Failure], None], lane: str = ""
    ) -> None:
        """Send a whole frame (header and body); `done` receives the raw response with its header, or a Failure."""
        deadline_ns = self._clock.now().mono_ns + timeout_ms * _NS_PER_MS
        self._network.call_broker(node, frame, deadline_ns, done, lane)


def _decode_response(key: int, version: int, answer: memoryview | Failure) -> Any:
    if isinstance(answer, Failure):
        return answer
    try:
        response, _ = decode(API_TABLE[key].response, version, answer, response_body_pos(key, version, answer))
    except MalformedMessage as error:
        return Failure(Kind.UNKNOWN, f"the response to {API_TABLE[key].name} cannot be decoded: {error}")
    return response
