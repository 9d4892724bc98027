"""Memory of answers that peers have not read: one budget for all connections of a broker.

Zone: deterministic. What one connection owes is counted by `ResponseQueue._owe` alone, which calls `count` here. Time
and timers are given by the caller.

Beyond `limit` a connection that owes something starts no more requests until it owes nothing or the budget has room;
one that owes nothing is served as before. Beyond `limit` plus a reserve no connection starts requests. Connections
that owe much and have not read for long are closed, the longest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

RESERVE: Final = 4
"""One part in so many of the limit, on top of it: for connections that owe nothing yet."""
UNREAD_S: Final = 10.0
"""Seconds without reading after which a connection is closed while the budget is spent."""
UNREAD_EXHAUSTED_S: Final = 1.0
"""The same while the reserve is spent, too."""
LOOK_S: Final = 1.0
"""Seconds between two looks at the connections while the budget is spent."""


class Debtor(Protocol):
    """A connection that owes answers to its peer."""

    @property
    def owed(self) -> int:
        """Bytes of answers that the peer has not read."""
        ...

    def wait_for_readers(self) -> None:
        """Start no more requests before `readers_took`."""
        ...

    def readers_took(self) -> None:
        """The budget has room again."""
        ...

    def drop(self, why: str) -> None:
        """Close, with one log line."""
        ...


class ResponseMemory:
    """Bytes owed to peers, over all connections."""

    __slots__ = ("_all", "_debtors", "_exhausted", "_looking", "_now", "_plan", "_reserve", "_waiting", "limit", "used")

    def __init__(
        self,
        limit: int,
        everyone: Iterable[Debtor],
        now: Callable[[], float],
        plan: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """limit: bytes. everyone: all connections, at any time. now: seconds. plan: (delay in seconds, call)."""
        self.limit = limit
        self.used = 0
        self._all = everyone
        self._now = now
        self._plan = plan
        self._reserve = limit // RESERVE
        self._debtors: OrderedDict[Debtor, float] = OrderedDict()
        """Those that owe something → since when they have not read, the earliest first."""
        self._waiting: dict[Debtor, None] = {}
        self._exhausted = self._looking = False

    @property
    def exhausted(self) -> bool:
        """Whether even connections that owe nothing have to wait."""
        return self._exhausted

    def count(self, debtor: Debtor, size: int, owed: int) -> None:
        """A connection owes `size` bytes more (less, when negative), `owed` in all."""
        self.used += size
        if owed == size:
            self._debtors[debtor] = self._now()
        elif not owed:
            del self._debtors[debtor]
        if size > 0:
            if self.used > self.limit:
                self._spent(debtor)
        elif self._waiting or self._exhausted:
            self._wake(None if owed else debtor)

    def note_reading(self, debtor: Debtor) -> None:
        """The peer has read a good part of what it is owed."""
        if debtor in self._debtors:
            self._debtors[debtor] = self._now()
            self._debtors.move_to_end(debtor)

    def hold_back(self, debtor: Debtor) -> None:
        """Let a connection wait until there is room."""
        self._waiting[debtor] = None
        debtor.wait_for_readers()

    def forget_connection(self, debtor: Debtor) -> None:
        """A connection is closed and owes nothing."""
        self._waiting.pop(debtor, None)

    def _spent(self, debtor: Debtor) -> None:
        self.hold_back(debtor)
        self._look_later(LOOK_S)
        if not self._exhausted and self.used > self.limit + self._reserve:
            self._exhausted = True
            for other in self._all:
                self.hold_back(other)
            self._plan(0, self._close_unread)  # not now: a turn of the broker may run

    def _wake(self, paid: Debtor | None) -> None:
        if self.used <= self.limit:
            self._exhausted = False
            woken, self._waiting = self._waiting, {}
        elif self._exhausted and self.used <= self.limit + self._reserve // 2:
            self._exhausted = False
            woken = {other: None for other in self._waiting if other not in self._debtors}
        else:
            woken = {paid: None} if paid in self._waiting and not self._exhausted else {}
        for other in woken:
            self._waiting.pop(other, None)
            other.readers_took()

    def _look_later(self, delay_s: float) -> None:
        if not self._looking:
            self._looking = True
            self._plan(delay_s, self._check_debtors)

    def _check_debtors(self) -> None:
        self._looking = False
        self._close_unread()
        if self.used > self.limit:
            self._look_later(LOOK_S)

    def _close_unread(self) -> None:
        """Close those that have not read for too long, unless what they owe is little beside the others."""
        now = self._now()
        for debtor, since in list(self._debtors.items()):
            waited = now - since
            if self.used <= self.limit or waited < (UNREAD_EXHAUSTED_S if self._exhausted else UNREAD_S):
                return
            if 2 * debtor.owed * len(self._debtors) >= self.used:
                debtor.drop(
                    f"it has not read {debtor.owed} bytes of answers for {waited:.0f} s, and the unread answers of all "
                    f"connections are {self.used} bytes ({self.limit} is the limit)"
                )
