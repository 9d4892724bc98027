"""A clock that a test moves.

Zone: pure. It begins at the time that its maker gives, and only `advance` changes it.
"""

from __future__ import annotations

from ottla.retry.policy import Duration, duration_ms


class FakeClock:
    """The time of day in milliseconds since 1970."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms

    @property
    def now_ms(self) -> int:
        """The present time. May be read from any thread."""
        return self._now_ms

    def advance(self, duration: Duration) -> None:
        """Move the time on, by seconds or text such as `5m`. Raises PolicyError for other text and negative numbers."""
        self._now_ms += duration_ms(duration)
