"""What a mover has done, in numbers.

Zone: pure.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

_BUCKETS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 150, 200, 250, 500, 1_000, 2_000, 5_000, 10_000, 60_000)


@dataclass(slots=True)
class Stats:
    """Counts since the start."""

    read: int = 0
    """Records read from retry topics; some again after a restart."""
    returned: int = 0
    """Handed back to where they came from."""
    dead: int = 0
    """Written to dead-letter topics."""
    rewritten: int = 0
    """Written to the end of their retry topic again, so that positions stay short."""
    expired: int = 0
    """Deleted by retention while they waited."""
    aborted: int = 0
    """Transactions that were done again."""
    events: Counter[str] = field(default_factory=Counter)
    news: deque[tuple[str, str]] = field(default_factory=lambda: deque(maxlen=100))
    """(kind, text) of what happened lately."""
    _late: Counter[int] = field(default_factory=Counter)

    def event(self, kind: str, text: str) -> None:
        """Something that somebody may want to know."""
        self.events[kind] += 1
        self.news.append((kind, text))

    def late(self, ms: Iterable[int]) -> None:
        """How late records were handed over, in milliseconds."""
        for each in ms:
            self._late[next((bound for bound in _BUCKETS_MS if each <= bound), 2**31)] += 1

    def late_ms(self, part: float) -> int | None:
        """The bound below which this part of all records was late; None: there were none."""
        total = sum(self._late.values())
        seen = 0
        for bound in sorted(self._late):
            seen += self._late[bound]
            if seen >= part * total:
                return bound
        return None

    def counts(self) -> dict[str, int]:
        """By name."""
        names = ("read", "returned", "dead", "rewritten", "expired", "aborted")
        return {name: getattr(self, name) for name in names}
