"""Deadlines and backoff of calls.

Zone: real. Reads the clock, sleeps and draws random numbers for the blocking calls.
"""

from __future__ import annotations

import random
import time

from ottla.client.backoff import backoff_ms
from ottla.client.errors import ClientError, DeadlineError

FOREVER_S = 1e9
"""The longest timeout, also used for infinite ones: some 30 years, which clocks and locks can add without overflow."""


def bounded_s(timeout_s: float) -> float:
    """A timeout of a caller in seconds, never longer than FOREVER_S."""
    return min(FOREVER_S, timeout_s)


class Deadline:
    """A time of the monotonic clock."""

    __slots__ = ("at",)

    def __init__(self, at: float) -> None:
        self.at = at

    @classmethod
    def after_ms(cls, ms: float) -> Deadline:
        """`ms` milliseconds from now."""
        return cls(time.monotonic() + bounded_s(ms / 1000))

    def within_ms(self, ms: float) -> Deadline:
        """The earlier one of this and `ms` milliseconds from now."""
        return Deadline(min(self.at, time.monotonic() + bounded_s(ms / 1000)))

    def remaining_s(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def remaining_ms(self) -> int:
        """Milliseconds left, rounded up, so that a fraction of a millisecond does not become 0."""
        return -int(-self.remaining_s() * 1000 // 1)

    @property
    def expired(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() >= self.at


class Retries:
    """The attempts of one call: each wait is longer, until the deadline."""

    __slots__ = ("attempt", "deadline", "first_ms", "max_ms", "what")

    def __init__(self, what: str, deadline: Deadline, first_ms: float, max_ms: float) -> None:
        self.what = what
        self.deadline = deadline
        self.first_ms = first_ms
        self.max_ms = max_ms
        self.attempt = 0

    def wait_backoff(self, cause: ClientError) -> None:
        """Sleep before the next attempt. Raises DeadlineError from `cause` if that would be after the deadline."""
        pause = backoff_ms(self.first_ms, self.max_ms, self.attempt, random.random()) / 1000
        self.attempt += 1
        # Give up now instead of sleeping until the deadline: the attempt after it would not be made.
        if pause >= self.deadline.remaining_s():
            raise DeadlineError(
                f"gave up: {self.what}, after {self.attempt} attempts; the last error: {cause.cause}",
                cause.next_step,
                cause,
            ) from cause
        time.sleep(pause)


def wall_ms() -> int:
    """The time for a record's timestamp, in ms since 1970."""
    return time.time_ns() // 1_000_000


def timeout_ms(deadline: Deadline) -> int:
    """The milliseconds until a deadline, for an int32 field of a request."""
    return min(deadline.remaining_ms(), 2**31 - 1)
