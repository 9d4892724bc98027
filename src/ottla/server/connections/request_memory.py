"""Memory that requests hold: its bound, the connections that wait for it, and those that keep it without using it.

Zone: deterministic. Connections say what they take and give back; this file decides who may take more. It reads no
clock: `ottla.server.connections.connection_manager` calls `close_hostages` every LOOK_S seconds while a connection
waits.

A frame may take memory up to a bound that depends on its size, so that large frames cannot use up what ordinary ones
need, and neither can use up what small ones need.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

KIB: Final = 1024
MIB: Final = 1024 * KIB

SMALL: Final = 64 * KIB
"""Frames up to this size have a reserve beyond the limit."""
ORDINARY: Final = 2 * MIB
"""Frames up to this size may use the whole limit, larger ones half of it."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the connections that hold memory while others wait for it."""
PATIENCE: Final = 5
"""Looks after which a connection that has not finished its frame is closed."""
PATIENCE_WAITING: Final = 15
"""The same for a connection that itself waits for memory."""
PER_LOOK: Final = 8 * MIB
"""Bytes that have come of a frame and earn it another look."""


class Holder(Protocol):
    """A connection that keeps an unfinished frame, or requests that may not start yet."""

    charged: int
    """Bytes counted for that."""

    @property
    def collects(self) -> bool:
        """Whether it keeps anything."""
        ...

    def memory_granted(self) -> None:
        """Go on with a frame that waited for memory."""
        ...

    def grow_stale(self) -> bool:
        """Another look found the same frame unfinished; returns whether that was one too many."""
        ...

    def drop(self, why: str) -> None:
        """Close, with one log line."""
        ...


class RequestMemory:
    """Bytes held for requests that are not answered yet, over all connections."""

    __slots__ = ("_bounds", "_on_waiting", "_senior", "_waiting", "limit", "used")

    def __init__(self, limit: int, on_waiting: Callable[[], None]) -> None:
        """limit: bytes; see `Limits.memory`. on_waiting: called when a connection has to wait."""
        self.limit = limit
        self._on_waiting = on_waiting
        self.used = 0
        self._bounds = (limit + limit // 4, limit, limit // 2)
        self._waiting: tuple[OrderedDict[Holder, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())
        self._senior: Holder | None = None

    @property
    def waiting(self) -> int:
        """How many connections wait for memory."""
        return sum(len(queue) for queue in self._waiting)

    def is_roomy(self, size: int) -> bool:
        """Whether so many bytes may be taken before any of them has come."""
        return size <= ORDINARY and self.used + size <= self.limit // 2

    def charge(self, size: int) -> None:
        """Count bytes that were taken."""
        self.used += size

    def may_take(self, holder: Holder, size: int, frame_size: int) -> bool:
        """Whether a connection may take `size` bytes more for a frame; if not, it waits for `memory_granted`.

        Beyond the bound one connection at a time still may: a frame that can be finished is the way back.
        """
        kind = _kind_of(frame_size)
        if self._senior is holder or self.used + size <= self._bounds[kind]:
            return True
        if self._senior is None:
            self._senior = holder
            return True
        self._waiting[kind][holder] = None
        self._on_waiting()
        return False

    def give_back(self, holder: Holder, size: int) -> None:
        """Bytes are free again; connections that waited for them go on."""
        self.used -= size
        assert self.used >= 0, "more memory given back than taken"
        if self._senior is holder and not holder.collects:
            self._senior = None
        self._grant()

    def forget_connection(self, holder: Holder) -> None:
        """A connection is closed, and has given everything back."""
        for queue in self._waiting:
            queue.pop(holder, None)
        if self._senior is holder:
            self._senior = None
            self._grant()

    def _grant(self) -> None:
        """Small frames first; within a size, the one that waited longest."""
        for bound, queue in zip(self._bounds, self._waiting, strict=True):
            while queue and (self._senior is None or self.used <= bound):
                holder, _ = queue.popitem(last=False)
                if self._senior is None:
                    self._senior = holder
                holder.memory_granted()

    def close_hostages(self, holders: Iterable[Holder]) -> None:
        """Close connections that hold memory and do not finish their frame, the largest first, while others wait."""
        stale = [holder for holder in holders if holder.collects and holder.grow_stale()]
        for holder in sorted(stale, key=_size_of, reverse=True):
            waiting = self.waiting
            if not waiting:
                return
            holder.drop(
                f"it held {holder.charged} bytes of request memory without finishing a request, while {waiting} "
                "connections waited for memory (queued.max.request.bytes)"
            )


def _kind_of(frame_size: int) -> int:
    return 0 if frame_size <= SMALL else 1 if frame_size <= ORDINARY else 2


def _size_of(holder: Holder) -> int:
    return holder.charged
