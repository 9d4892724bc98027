"""Connections as the broker sees them: the real `ottla.seams.Network`.

Zone: real. Passes on to the peer that a slot belongs to; calls to other brokers are `ottla.server.calls`'.
"""

from __future__ import annotations

from collections.abc import Sequence

from ottla.seams import Done, Part, Peer, Slot
from ottla.server.calls import Calls


class RealNetwork:
    """Answers to peers, calls to brokers.

    Slots and peers are handed out by the shell alone, so their own methods are used without a check: a check would
    cost a call per request.
    """

    __slots__ = ("_calls",)

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def reply(self, slot: Slot, parts: Sequence[Part]) -> None:
        """Answer; leaves in request order."""
        slot.peer.answer(slot, parts)  # type: ignore[attr-defined]  # see the class

    def release(self, slot: Slot) -> None:
        """Open the gate of this slot."""
        slot.peer.release(slot)  # type: ignore[attr-defined]  # see the class

    def hold(self, slot: Slot, frame: memoryview) -> memoryview:
        """Keep a frame beyond its turn."""
        held: memoryview = slot.peer.hold(slot, frame)  # type: ignore[attr-defined]  # see the class
        return held

    def mute(self, peer: Peer, until_ns: int) -> None:
        """Read nothing from this peer before that time."""
        peer.mute(until_ns)  # type: ignore[attr-defined]  # see the class

    def close(self, peer: Peer, why: str) -> None:
        """Drop the connection."""
        peer.drop(why)  # type: ignore[attr-defined]  # see the class

    def call(self, node: int, frame: bytes, deadline_ns: int, done: Done[memoryview], lane: str = "") -> None:
        """Send a request to a broker."""
        self._calls.call(node, frame, deadline_ns, done, lane)

    def locate(self, node: int, host: str, port: int) -> None:
        """Where a broker is reached."""
        self._calls.locate(node, host, port)
