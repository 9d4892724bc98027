"""What the parts of a connection share: why it starts no request, and the connection as its parts use it.

Zone: real. `ottla.server.connections.connection` has a `RequestReader` and a `ResponseQueue`; both know it only by
`ConnectionState`, so that each can be read alone.
"""

from __future__ import annotations

from typing import Final, Protocol

from ottla.seams import Peer

# Bits of `ConnectionState.blocked`: reasons not to start another request.
GATE: Final = 1  # the broker returned Gate.WAIT for the last request
OUTPUT: Final = 2  # the peer reads slowly, or more than MAX_OWED waits for it
MUTED: Final = 4  # the broker throttles the peer
MEMORY: Final = 8  # the request memory of the broker is used up
DEPTH: Final = 16  # MAX_SLOTS requests are unanswered
CLOSED: Final = 32
DRAINING: Final = 64  # the broker stops
SPENT: Final = 128  # the budget for unread answers of all connections is used up


class ConnectionState(Peer, Protocol):
    """A connection, as its request reader and its response queue use it."""

    blocked: int
    """The reasons not to start another request. Either part sets bits; only `clear_reasons` clears them."""
    frame_min: int
    frame_max: int
    """The sizes of the frames that the peer may send; the broker changes them during a login."""
    active: bool
    """Whether the peer has sent or read anything since the last check."""

    def clear_reasons(self, reasons: int) -> None:
        """These reasons do not hold any more: continue with the requests if no other one does."""
        ...

    def give_memory_back(self, size: int) -> None:
        """Bytes of request memory that were charged to this connection are free."""
        ...

    def drop_connection(self, why: str) -> None:
        """Close, with one log line."""
        ...

    def close_connection(self) -> None:
        """Close the socket and release everything."""
        ...

    def on_socket_error(self, error: OSError) -> None:
        """Close after an error of the socket, or of a file that is sent; an interruption is none."""
        ...
