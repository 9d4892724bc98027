"""A network that keeps requests until the schedule delivers them.

Zone: deterministic. Requests of clients and of brokers wait in the outbox; answers go back at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from ottla.seams import Done, Part, Peer, Slot
from ottla.sim.machines.machine import Process
from ottla.wire.apis import ApiKey
from ottla.wire.codec import encode_bytes
from ottla.wire.header import decode_request_header, encode_request_header
from ottla.wire.schema import Message


class Sender:
    """The sender of a request: a client, or a broker (without a listener)."""

    principal = "User:ANONYMOUS"
    host = "127.0.0.1"

    def __init__(self, listener: str) -> None:
        self.listener = listener


_CLIENT: Final = Sender("CLIENTS")
_BROKER: Final = Sender("")


class Sent:
    """A request in flight, and the receiver of its answer."""

    __slots__ = ("frame", "lane", "name", "on_answer", "peer")

    def __init__(self, peer: Sender, frame: bytes, name: str, lane: tuple[int, str], on_answer: Callable[[Any], None]):
        self.peer = peer
        self.frame = frame
        self.name = name
        self.lane = lane
        """Node and lane: requests of brokers in one lane arrive in order."""
        self.on_answer = on_answer
        """Called with the bytes of the answer, or a Failure."""

    @property
    def by_client(self) -> bool:
        """Whether a client sent it."""
        return self.peer is _CLIENT


class HeldNetwork:
    """Implements `Network`. The slot of a request is its `Sent`."""

    def __init__(self, process: Process) -> None:
        self.outbox: list[Sent] = []
        """Requests that were sent and have not arrived, oldest first."""
        self._process = process
        self._correlation = 0

    def send_request(self, request: Message, version: int, name: str, on_answer: Callable[[Any], None]) -> None:
        """A client sends a request."""
        self._correlation += 1
        head = encode_request_header(request.API_KEY, version, self._correlation, "client")
        self.outbox.append(Sent(_CLIENT, head + encode_bytes(request, version), name, (0, ""), on_answer))

    def call_broker(self, node: int, frame: bytes, _deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """A broker sends a request to another one."""
        key = decode_request_header(memoryview(frame)).api_key

        def on_response(answer: Any) -> None:
            self._process.post_turn(0, "answer", self._process.deliver_completion, done, answer)

        self.outbox.append(Sent(_BROKER, frame, ApiKey(key).name, (node, lane), on_response))

    def send_reply(self, slot: Slot, parts: Sequence[Part]) -> None:
        """Pass an answer to the sender of the request."""
        answer = memoryview(b"".join(bytes(cast("Any", part)) for part in parts))
        cast("Sent", slot).on_answer(answer)

    def hold_frame(self, _slot: Slot, frame: memoryview) -> memoryview:
        """Return a copy of the frame, which stays valid."""
        return memoryview(bytearray(frame))

    def open_gate(self, _slot: Slot) -> None:
        """Does nothing: these senders have no gates."""

    def pause_reading(self, _peer: Peer, _until_ns: int) -> None:
        """Does nothing: these senders wait for their answers."""

    def measure_turns(self, _report: Callable[[Peer, int], None] | None) -> None:
        """Does nothing: a turn takes no time."""

    def set_address(self, _node: int, _host: str, _port: int) -> None:
        """Does nothing: all brokers are here."""

    def set_frame_bounds(self, _peer: Peer, _least: int, _most: int | None) -> None:
        """Does nothing: these senders do not log in."""

    def close_connection(self, _peer: Peer, why: str) -> None:
        """Raises AssertionError: all frames here are well-formed, so the broker has no reason to close."""
        raise AssertionError(why)
