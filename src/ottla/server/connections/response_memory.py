"""Memory of answers that peers have not read: one budget for all connections of a broker.

Zone: deterministic. A connection "owes" the bytes of the answers that its peer has not read.
`ResponseQueue.count_owed` alone counts them for one connection, and calls `count_owed` here. The caller provides time
and timers.

Above `limit`, a connection that owes something starts no more requests until it owes nothing or the budget has room;
connections that owe nothing are served as before. Above `limit` plus a reserve no connection starts requests.
Connections that owe much and have not read for long are closed, the longest first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol

RESERVE: Final = 4
"""1/RESERVE of the limit is added for connections that owe nothing yet."""
UNREAD_S: Final = 10.0
"""Seconds without reading after which a connection is closed while the budget is used up."""
UNREAD_EXHAUSTED_S: Final = 1.0
"""The same while the reserve is also used up."""
LOOK_S: Final = 1.0
"""Seconds between two checks of the connections while the budget is used up."""


class Debtor(Protocol):
    """A connection that owes answers to its peer."""

    @property
    def owed_bytes(self) -> int:
        """Bytes of answers that the peer has not read."""
        ...

    def wait_for_readers(self) -> None:
        """Start no more requests before `on_budget_freed`."""
        ...

    def on_budget_freed(self) -> None:
        """Continue: the budget has room again."""
        ...

    def drop_connection(self, why: str) -> None:
        """Close, with one log line."""
        ...


class ResponseMemory:
    """Bytes owed to peers, over all connections."""

    __slots__ = ("_all", "_debtors", "_exhausted", "_looking", "_now", "_plan", "_reserve", "_waiting", "limit", "used")

    def __init__(
        self,
        limit: int,
        everyone: Callable[[], Iterable[Debtor]],
        now: Callable[[], float],
        plan: Callable[[float, Callable[[], None]], object],
    ) -> None:
        """limit: bytes. everyone: all open connections. now: seconds. plan: (delay in seconds, call)."""
        self.limit = limit
        self.used = 0
        self._all = everyone
        self._now = now
        self._plan = plan
        self._reserve = limit // RESERVE
        self._debtors: OrderedDict[Debtor, float] = OrderedDict()
        """Connections that owe something → the time since which they have not read, the earliest first."""
        self._waiting: dict[Debtor, None] = {}
        self._exhausted = self._looking = False

    @property
    def is_exhausted(self) -> bool:
        """Whether even connections that owe nothing have to wait."""
        return self._exhausted

    def count_owed(self, debtor: Debtor, size: int, owed: int) -> None:
        """Count `size` bytes that a connection owes more (negative: less); `owed`: all that it owes now."""
        self.used += size
        # Its time without reading begins when it begins to owe something.
        if owed == size:
            self._debtors[debtor] = self._now()
        elif not owed:
            del self._debtors[debtor]
        if size > 0:
            if self.used > self.limit:
                self._on_limit_exceeded(debtor)
        elif self._waiting or self._exhausted:
            self._wake_waiting(None if owed else debtor)

    def note_reading(self, debtor: Debtor) -> None:
        """Restart a connection's time without reading: its peer has read a large part."""
        if debtor in self._debtors:
            self._debtors[debtor] = self._now()
            self._debtors.move_to_end(debtor)

    def hold_back(self, debtor: Debtor) -> None:
        """Make a connection wait until the budget has room."""
        self._waiting[debtor] = None
        debtor.wait_for_readers()

    def forget_connection(self, debtor: Debtor) -> None:
        """Remove a connection that is closed and owes nothing."""
        self._waiting.pop(debtor, None)

    def _on_limit_exceeded(self, debtor: Debtor) -> None:
        # 1. Above the limit: this connection waits until it owes nothing or the budget has room.
        self.hold_back(debtor)
        self._look_later(LOOK_S)
        # 2. The reserve is also used up: all connections wait, and non-readers are closed soon.
        if not self._exhausted and self.used > self.limit + self._reserve:
            self._exhausted = True
            for other in self._all():
                self.hold_back(other)
            self._plan(0, self._close_unread)  # not now: the turn that runs may use the connection to close

    def _wake_waiting(self, paid: Debtor | None) -> None:
        # 1. The budget has room: all continue.
        if self.used <= self.limit:
            self._exhausted = False
            woken, self._waiting = self._waiting, {}
        # 2. Half of the reserve is free: connections that owe nothing continue. Half, so that they do not pause and
        #    resume at every answer.
        elif self._exhausted and self.used <= self.limit + self._reserve // 2:
            self._exhausted = False
            woken = {other: None for other in self._waiting if other not in self._debtors}
        # 3. Above the limit: only the connection continues that has just paid all it owed.
        else:
            woken = {paid: None} if paid in self._waiting and not self._exhausted else {}
        for other in woken:
            self._waiting.pop(other, None)
            other.on_budget_freed()

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
        """Close connections that have not read for too long, unless they owe little compared with the others."""
        now = self._now()
        for debtor, since in list(self._debtors.items()):
            # The earliest come first: none after this one has waited longer.
            waited = now - since
            if self.used <= self.limit or waited < (UNREAD_EXHAUSTED_S if self._exhausted else UNREAD_S):
                return
            # At least half of the average: closing one that owes less would free hardly any memory.
            if 2 * debtor.owed_bytes * len(self._debtors) >= self.used:
                debtor.drop_connection(
                    f"it has not read {debtor.owed_bytes} bytes of answers for {waited:.0f} s, and the unread "
                    "answers of all "
                    f"connections are {self.used} bytes ({self.limit} is the limit)"
                )
