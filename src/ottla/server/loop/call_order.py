"""In which order ready connections are called while some of them take long.

Zone: deterministic. Times are given by the caller, `ottla.server.loop.poller`. Connections that are quick on average
come first, the quickest before the others. Those that are not come one per poll, the one that became ready first: so a
quick one waits for one of them at most, however many there are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

ReadyEvent = tuple[int, int]
"""Descriptor and what it is ready for, as epoll names it."""

QUICK_NS: Final = 250_000
"""A turn shorter than this is quick; with few connections ready, one shorter than a fair share of `LONG_NS`."""
LONG_NS: Final = 5_000_000
"""Connections that were ready together and took longer than this, and longer than quick ones would have taken, are
timed one by one from then on …"""
CALM_NS: Final = 1_000_000_000
"""… until none has taken long for this time."""
WEIGHT: Final = 8
"""The last turn counts for one part in so many of the average …"""
MOST_NS: Final = 6 * QUICK_NS
"""… and for this much at most: one hiccup makes no connection slow."""


class Precedence:
    """Ready connections: those that are known to be quick, and a line of the others."""

    __slots__ = ("_average_ns", "_limit_ns", "_line", "_until_ns")

    def __init__(self, now_ns: int, quick: Iterable[int]) -> None:
        """quick: descriptors that had no part in what took long."""
        self._average_ns: dict[int, int] = dict.fromkeys(quick, QUICK_NS // 2)
        self._line: OrderedDict[int, None] = OrderedDict()
        self._limit_ns = QUICK_NS
        self._until_ns = now_ns + CALM_NS

    def arrange(self, events: list[ReadyEvent], are_all: bool) -> list[ReadyEvent]:
        """The order in which to call. are_all: no other connection is ready."""
        self._limit_ns = limit_ns = max(QUICK_NS, LONG_NS // (len(events) or 1))
        quick, others = [], {}
        for event in events:
            average_ns = self._average_ns.get(event[0], limit_ns)
            if average_ns < limit_ns:
                quick.append((average_ns, event))
            else:
                others[event[0]] = event
                self._line.setdefault(event[0])
        if are_all and len(self._line) > len(others):
            self._line = OrderedDict((fd, None) for fd in self._line if fd in others)
        return [event for _, event in sorted(quick)] + [others[fd] for fd in self._line if fd in others]

    def record_call(self, fd: int, took_ns: int, now_ns: int) -> bool:
        """A connection was called; returns whether the next one may be, before the sockets are polled again."""
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
        """Whether none has taken long for a while."""
        return now_ns >= self._until_ns
