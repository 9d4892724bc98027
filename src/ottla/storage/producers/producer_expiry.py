"""When producer ids are forgotten: which logs may have some that sent nothing for long.

Zone: deterministic. One calendar for all logs, over the calendar that each producer state keeps of its ids: a check
looks only at what has become due, some ids in a turn. Whoever sent something meanwhile is noted for later then, so an
id is looked at about once per `producer.id.expiration.ms`.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final
from weakref import ref

if TYPE_CHECKING:
    from ottla.storage.producers.producer_state import ProducerState

AT_ONCE: Final = 1_000
"""Ids that are looked at in a turn: a millisecond."""
_NO_LIMIT: Final = 2**62


class ProducerExpiry:
    """The states with producers, by the time when the first of them may be due."""

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, ref[ProducerState]]] = []
        self._count = 0

    def add_state(self, state: ProducerState, wall_ms: int) -> None:
        """A state that is not noted yet has a producer that sent something at `wall_ms`. Deleted logs need no word."""
        self._count += 1
        heapq.heappush(self._heap, (wall_ms, self._count, ref(state)))

    def expire(self, now_ms: int, after_ms: int, most: int = AT_ONCE) -> bool:
        """Look at up to `most` producers that were silent for `after_ms`, perhaps; True when more wait."""
        while self._heap and self._heap[0][0] <= now_ms - after_ms:
            if most <= 0:
                return True
            _, _, found = heapq.heappop(self._heap)
            state = found()
            if state is None:
                continue
            looked, _ = state.expire_some(now_ms, after_ms, most)
            most -= looked + 1
            state.schedule()
        return False
