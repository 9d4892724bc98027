"""Memory that requests hold: its bound, the connections that wait for it, and those that keep it without using it.

Zone: deterministic. Connections report what they take and give back; this module decides which may take more. It does
not read a clock: `ottla.server.connections.connection_manager` calls `close_hostages` every LOOK_S seconds while a
connection waits.

The bound depends on the size of a frame: large frames cannot use up the memory for ordinary ones, and neither can use
up the memory for small ones.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

KIB: Final = 1024
MIB: Final = 1024 * KIB

SMALL: Final = 64 * KIB
"""Frames up to this size have a reserve above the limit."""
ORDINARY: Final = 2 * MIB
"""Frames up to this size may use the whole limit, larger ones half of it."""
LOOK_S: Final = 1.0
"""Seconds between two checks of the connections that hold memory, while others wait for it."""
PATIENCE: Final = 5
"""Checks after which a connection with the same incomplete frame is closed."""
PATIENCE_WAITING: Final = 15
"""The same for a connection that itself waits for memory."""
PER_LOOK: Final = 8 * MIB
"""A frame gets one more check per PER_LOOK bytes received."""


class Holder(Protocol):
    """A connection that keeps an incomplete frame, or requests that may not start yet."""

    charged: int
    """Bytes charged for its buffer."""

    @property
    def is_collecting(self) -> bool:
        """Whether it keeps such a frame or requests."""
        ...

    def memory_granted(self) -> None:
        """Continue with a frame that waited for memory."""
        ...

    def grow_stale(self) -> bool:
        """Count a check that found the same frame incomplete; returns whether it was one too many."""
        ...

    def drop_connection(self, why: str) -> None:
        """Close, with one log line."""
        ...


class RequestMemory:
    """Bytes held for unanswered requests, over all connections."""

    __slots__ = ("_bounds", "_on_waiting", "_senior", "_waiting", "limit", "used")

    def __init__(self, limit: int, on_waiting: Callable[[], None]) -> None:
        """limit: bytes; see `TrafficLimits.request_memory_bytes`. on_waiting: called when a connection has to wait."""
        self.limit = limit
        self._on_waiting = on_waiting
        self.used = 0
        self._bounds = (limit + limit // 4, limit, limit // 2)
        self._waiting: tuple[OrderedDict[Holder, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._senior: Holder | None = None
        """The one connection that may exceed the bounds, so that it can finish its frame."""

    @property
    def waiting_connections(self) -> int:
        """How many connections wait for memory."""
        return sum(len(queue) for queue in self._waiting)

    def is_roomy(self, size: int) -> bool:
        """Whether a connection may take that many bytes for a frame of which nothing has come yet."""
        return size <= ORDINARY and self.used + size <= self.limit // 2

    def charge_bytes(self, size: int) -> None:
        """Count bytes that were taken."""
        self.used += size

    def may_take(self, holder: Holder, size: int, frame_size: int) -> bool:
        """Whether a connection may take `size` bytes more for a frame; if not, it waits for `memory_granted`."""
        kind = _kind_of(frame_size)
        # 1. Within the bound of its size, or the senior.
        if self._senior is holder or self.used + size <= self._bounds[kind]:
            return True
        # 2. Beyond the bound, one connection at a time may still take memory. If all held part of a frame and none
        #    could finish, no memory would ever be given back.
        if self._senior is None:
            self._senior = holder
            return True
        # 3. All others wait.
        self._waiting[kind][holder] = None
        self._on_waiting()
        return False

    def give_back(self, holder: Holder, size: int) -> None:
        """Count bytes that are free again; connections that waited for memory continue."""
        self.used -= size
        assert self.used >= 0, "more memory given back than taken"
        if self._senior is holder and not holder.is_collecting:
            self._senior = None
        self._grant_memory()

    def forget_connection(self, holder: Holder) -> None:
        """Remove a connection that is closed and has given all memory back."""
        for queue in self._waiting:
            queue.pop(holder, None)
        if self._senior is holder:
            self._senior = None
            self._grant_memory()

    def _grant_memory(self) -> None:
        """Grant memory to waiting connections: small frames first, of one size the one that waited longest."""
        for bound, queue in zip(self._bounds, self._waiting, strict=True):
            while queue and (self._senior is None or self.used <= bound):
                holder, _ = queue.popitem(last=False)
                if self._senior is None:
                    self._senior = holder
                holder.memory_granted()

    def close_hostages(self, holders: Iterable[Holder]) -> None:
        """Close connections that hold memory without finishing a frame, the largest first, while others wait."""
        stale = [holder for holder in holders if holder.is_collecting and holder.grow_stale()]
        for holder in sorted(stale, key=_size_of, reverse=True):
            waiting = self.waiting_connections
            if not waiting:
                return
            holder.drop_connection(
                f"it held {holder.charged} bytes of request memory without finishing a request, while {waiting} "
                "connections waited for memory (queued.max.request.bytes)"
            )


def _kind_of(frame_size: int) -> int:
    return 0 if frame_size <= SMALL else 1 if frame_size <= ORDINARY else 2


def _size_of(holder: Holder) -> int:
    return holder.charged
