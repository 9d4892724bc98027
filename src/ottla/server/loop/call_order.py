"""The order in which ready connections are called while some of them take long.

Zone: deterministic. The caller, `ottla.server.loop.poller`, passes the times. Connections that are quick on average
are called first, the quickest before the others. Slow ones are called one per poll, the one that became ready first:
so a quick one waits for at most one of them, however many there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

ReadyEvent = tuple[int, int]
"""Descriptor and epoll's event mask."""

QUICK_NS: Final = 250_000
"""A turn shorter than this is quick; with few connections ready, one shorter than a fair share of `LONG_NS`."""
LONG_NS: Final = 5_000_000
"""When connections that were ready together took longer than this, and longer than as many quick ones would, each call
is timed from then on …"""
CALM_NS: Final = 1_000_000_000
"""… until no call has taken long for this time."""
WEIGHT: Final = 8
"""The moving average of a connection's turns: the last turn counts 1/WEIGHT …"""
MOST_NS: Final = 6 * QUICK_NS
"""… and is counted with at most this much, so that a single long turn does not make a connection slow."""


class Precedence:
    """Ready connections: those known to be quick, and a queue of the others."""

    __slots__ = ("_average_ns", "_limit_ns", "_line", "_until_ns")

    def __init__(self, now_ns: int, quick: Iterable[int]) -> None:
        """quick: descriptors that were not ready in the round that took long."""
        self._average_ns: dict[int, int] = dict.fromkeys(quick, QUICK_NS // 2)
        self._line: OrderedDict[int, None] = OrderedDict()
        self._limit_ns = QUICK_NS
        self._until_ns = now_ns + CALM_NS

    def arrange_calls(self, events: list[ReadyEvent], are_all: bool) -> list[ReadyEvent]:
        """Sort the ready connections by the order in which to call them. are_all: no other connection is ready."""
        # With few connections ready, each may take a larger share of LONG_NS and still count as quick.
        self._limit_ns = limit_ns = max(QUICK_NS, LONG_NS // (len(events) or 1))
        quick, others = [], {}
        for event in events:
            # A connection without an average counts as slow: it has to wait once until it was timed.
            average_ns = self._average_ns.get(event[0], limit_ns)
            if average_ns < limit_ns:
                quick.append((average_ns, event))
            else:
                others[event[0]] = event
                self._line.setdefault(event[0])
        # Only when epoll has returned all ready descriptors, a missing one is known not to be ready any more.
        if are_all and len(self._line) > len(others):
            self._line = OrderedDict((fd, None) for fd in self._line if fd in others)
        return [event for _, event in sorted(quick)] + [others[fd] for fd in self._line if fd in others]

    def record_call(self, fd: int, took_ns: int, now_ns: int) -> bool:
        """Record one call; returns whether the next connection may be called before the sockets are polled again."""
        self._line.pop(fd, None)
        before_ns = self._average_ns.get(fd, self._limit_ns)
        self._average_ns[fd] = ((WEIGHT - 1) * before_ns + min(took_ns, MOST_NS)) // WEIGHT
        if took_ns < self._limit_ns:
            return True
        self._until_ns = now_ns + CALM_NS
        return False

    def forget_connection(self, fd: int) -> None:
        """A connection is closed."""
        self._average_ns.pop(fd, None)
        self._line.pop(fd, None)

    def is_over(self, now_ns: int) -> bool:
        """Whether no call has taken long for CALM_NS."""
        return now_ns >= self._until_ns
