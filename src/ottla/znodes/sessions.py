"""Sessions of the metadata store: their grants, their deadlines, and their watches.

Zone: pure. Values and tables; times are arguments in nanoseconds. `store` writes the ends of sessions to the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from struct import Struct
from typing import Final, NamedTuple

from ottla.znodes.tree import Event

_GRANT: Final = Struct(">i")
MAX_PASSWORD: Final = 16
"""In bytes; the length of ZooKeeper's passwords."""


class Grant(NamedTuple):
    """The properties of a session from its start.

    `timeout_ms`: the silence after which it expires; 0: it ends with the process that opened it. `password`: required
    from a client that resumes it (at most MAX_PASSWORD bytes).
    """

    timeout_ms: int = 0
    password: bytes = b""

    def pack_grant(self) -> bytes:
        """Encode it for the journal."""
        assert len(self.password) <= MAX_PASSWORD, f"a password of {len(self.password)} bytes"
        return _GRANT.pack(self.timeout_ms) + self.password

    @classmethod
    def unpack_grant(cls, data: bytes) -> Grant:
        """Decode it from the journal. Empty data is the grant of a process's own session."""
        return cls(_GRANT.unpack_from(data)[0], data[_GRANT.size :]) if data else cls()


def negotiate_timeout(asked_ms: int, least_ms: int, most_ms: int) -> int:
    """The time-out of a client that requests `asked_ms`."""
    return max(least_ms, min(asked_ms, most_ms))


class Deadlines:
    """The deadlines of sessions, which every `touch_session` extends."""

    def __init__(self) -> None:
        self._timeout_ns: dict[int, int] = {}
        self._over_ns: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []
        """Entries are never later than `_over_ns`. An entry that is too early is pushed again when it is due."""

    def begin_session(self, session: int, timeout_ms: int, now_ns: int) -> None:
        """Start a session's deadline. A session without time-out has none."""
        if timeout_ms > 0:
            self._timeout_ns[session] = timeout_ms * 1_000_000
            self.touch_session(session, now_ns)
            heappush(self._heap, (self._over_ns[session], session))

    def touch_session(self, session: int, now_ns: int) -> None:
        """Extend a session's deadline; no effect on a session without one."""
        timeout = self._timeout_ns.get(session)
        if timeout is not None:
            self._over_ns[session] = now_ns + timeout

    def end_session(self, session: int) -> None:
        """Remove a session's deadline; no effect if it has none."""
        self._timeout_ns.pop(session, None)
        self._over_ns.pop(session, None)

    @property
    def next_ns(self) -> int | None:
        """When to call `due_sessions` next: a time at or before the next deadline; None: there is no deadline."""
        while self._heap and self._heap[0][1] not in self._over_ns:
            heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due_sessions(self, now_ns: int) -> list[int]:
        """Sessions whose deadline has passed, in that order. They stay due until `end_session` or `touch_session`."""
        # The heap is lazy. An entry that is due is 1. dropped if its session has ended or was seen already, 2. reported
        # and pushed again if the deadline has passed, 3. pushed again with the later deadline.
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
    """The watches of one client; each fires once."""

    def __init__(self) -> None:
        self.data: dict[str, None] = {}
        """Paths that are watched for creation, change and deletion."""
        self.children: dict[str, None] = {}
        """Paths that are watched for deletion and changes of the children."""

    def fire_watches(self, events: Sequence[Event]) -> list[Event]:
        """The watched events in order, a path's deletion once. Removes their watches."""
        fired: dict[tuple[str, int], Event] = {}
        for event in events:
            paths = self.children if event.children else self.data
            if event.path in paths:
                del paths[event.path]
                fired.setdefault((event.path, event.kind), event)
        return list(fired.values())

    def clear_watches(self) -> None:
        """Remove all watches, for a new connection."""
        self.data.clear()
        self.children.clear()
