"""Expires producer ids: tracks which logs may have some that sent nothing for a long time.

Zone: deterministic. One calendar for all logs, over the calendar that each producer state keeps of its ids: a check
visits only the ids that have become due, some per turn. An id that sent something meanwhile is scheduled again then, so
each is visited about once per `producer.id.expiration.ms`.
"""

from __future__ import annotations

import heapq
from typing import Final, Protocol
from weakref import ref

AT_ONCE: Final = 1_000
"""Ids that are visited in one turn: a millisecond."""
GONE_KEPT: Final = 1_000
"""Entries of states that are gone, which are kept at least."""
_NO_LIMIT: Final = 2**62


class ExpiringProducers(Protocol):
    """The producers of one log, by the time when each of them may be due."""

    def expire_some(self, now_ms: int, after_ms: int, most: int) -> tuple[int, int]:
        """Visit at most `most` producers that may have been silent for `after_ms`: (how many were visited, how many
        were dropped)."""

    def schedule_expiry(self) -> None:
        """Add the time when the first producer may be due to the calendar, which has no entry of this state."""


class ProducerExpiry:
    """The states with producers, by the time when the first of them may be due."""

    __slots__ = ("_count", "_gone", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ref[ExpiringProducers]]] = []
        self._count = 0
        self._gone = 0
        """Entries of states that are gone, at least."""

    def __len__(self) -> int:
        """Number of entries, with those of states that are gone."""
        return len(self._heap)

    def add_state(self, state: ExpiringProducers, wall_ms: int) -> None:
        """Schedule a state that has no entry yet by `wall_ms`, when its oldest producer sent something.

        The reference is weak: the states of deleted logs need not be removed. Their entries are, once they are the
        larger part: else those of a day would be kept.
        """
        if self._gone > GONE_KEPT and 2 * self._gone > len(self._heap):
            self._remove_gone()
        self._count += 1
        heapq.heappush(self._heap, (wall_ms, self._count, ref(state, self._on_gone)))

    def _on_gone(self, _: object) -> None:
        self._gone += 1

    def _remove_gone(self) -> None:
        # Half of the entries or more go, so that an entry is looked at a constant number of times.
        self._heap = [entry for entry in self._heap if entry[2]() is not None]
        heapq.heapify(self._heap)
        self._gone = 0

    def expire_producers(self, now_ms: int, after_ms: int, most: int = AT_ONCE) -> bool:
        """Visit up to `most` producers that may have been silent for `after_ms`; True when more are due."""
        while self._heap and self._heap[0][0] <= now_ms - after_ms:
            if most <= 0:
                return True
            _, _, found = heapq.heappop(self._heap)
            state = found()
            if state is None:
                self._gone -= 1
                continue
            looked, _ = state.expire_some(now_ms, after_ms, most)
            # The state itself counts as one, so that a heap full of empty states is also walked in several turns.
            most -= looked + 1
            state.schedule_expiry()
        return False
