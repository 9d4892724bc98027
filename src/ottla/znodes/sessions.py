"""Sessions of the metadata store: what each was granted, when it is over, and what it watches.

Zone: pure. Values and tables; time comes in as nanoseconds. How a session ends in the journal stands in `store`.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from struct import Struct
from typing import Final, NamedTuple

from ottla.znodes.tree import Event

_GRANT: Final = Struct(">i")
MAX_PASSWORD: Final = 16
"""Bytes; ZooKeeper's own length."""


class Grant(NamedTuple):
    """What a session was given when it began.

    `timeout_ms`: silence after which it is over; 0: it lives as long as the process that opened it. `password`: shown
    by a client that comes back to it (at most MAX_PASSWORD bytes).
    """

    timeout_ms: int = 0
    password: bytes = b""

    def pack(self) -> bytes:
        """As it is journaled."""
        assert len(self.password) <= MAX_PASSWORD, f"a password of {len(self.password)} bytes"
        return _GRANT.pack(self.timeout_ms) + self.password

    @classmethod
    def unpack(cls, data: bytes) -> Grant:
        """From the journal; nothing at all is the grant of a process's own session."""
        return cls(_GRANT.unpack_from(data)[0], data[_GRANT.size :]) if data else cls()


def negotiated(asked_ms: int, least_ms: int, most_ms: int) -> int:
    """The time-out that a client gets who asks for `asked_ms`."""
    return max(least_ms, min(asked_ms, most_ms))


class Deadlines:
    """When sessions are over unless they show a sign of life."""

    def __init__(self) -> None:
        self._timeout_ns: dict[int, int] = {}
        self._over_ns: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """Never later than `_over_ns`; a session that was touched meanwhile goes back in when its turn comes."""

    def begin_session(self, session: int, timeout_ms: int, now_ns: int) -> None:
        """Count from now on; a session without time-out is never due."""
        if timeout_ms > 0:
            self._timeout_ns[session] = timeout_ms * 1_000_000
            self.touch_session(session, now_ns)
            heappush(self._heap, (self._over_ns[session], session))

    def touch_session(self, session: int, now_ns: int) -> None:
        """A sign of life; fine for a session that is not counted."""
        timeout = self._timeout_ns.get(session)
        if timeout is not None:
            self._over_ns[session] = now_ns + timeout

    def end_session(self, session: int) -> None:
        """It is over, or not counted any more; fine twice."""
        self._timeout_ns.pop(session, None)
        self._over_ns.pop(session, None)

    @property
    def next_ns(self) -> int | None:
        """When to ask `due` again: a time at or before the next end; None: there is nothing to wait for."""
        while self._heap and self._heap[0][1] not in self._over_ns:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_ns: int) -> list[int]:
        """Sessions whose time is over, in the order of their ends. They stay due until `end_session` or
        `touch_session`."""
        over: list[tuple[int, int]] = []
        seen: dict[int, None] = {}
        while self._heap and self._heap[0][0] <= now_ns:
            _, session = heappop(self._heap)
            end = self._over_ns.get(session)
            if end is None or session in seen:
                continue
            seen[session] = None
            if end <= now_ns:
                over.append((end, session))
            else:
                heappush(self._heap, (end, session))
        for entry in over:
            heappush(self._heap, entry)
        return [session for _, session in sorted(over)]


class Watches:
    """What one client watches; each watch is told once."""

    def __init__(self) -> None:
        self.data: dict[str, None] = {}
        """Paths whose creation, change or deletion is to be told."""
        self.children: dict[str, None] = {}
        """Paths whose deletion or change of children is to be told."""

    def fire(self, events: Sequence[Event]) -> list[Event]:
        """The events that somebody waits for, in order, a path's deletion once; their watches are gone."""
        fired: dict[tuple[str, int], Event] = {}
        for event in events:
            paths = self.children if event.children else self.data
            if event.path in paths:
                del paths[event.path]
                fired.setdefault((event.path, event.kind), event)
        return list(fired.values())

    def clear(self) -> None:
        """The connection is another one: nothing is watched."""
        self.data.clear()
        self.children.clear()
