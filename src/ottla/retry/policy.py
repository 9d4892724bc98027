"""The retry policy: after which delay and how often a failed record is retried, and when it becomes a dead letter.

Zone: pure. Values in, a decision out; the random number for the jitter is an argument. Also the names of retry and
dead-letter topics, and the format of durations.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, NamedTuple

from ottla.retry.options import POLICY_OPTIONS

Duration = str | int | float | timedelta
"""`"30s"`, `"1h30m"`, a timedelta, or a number of seconds."""
ErrorKind = type[BaseException] | str
"""An exception's class, or its name, with its module or without it."""

MAX_DELAY_MS: Final = 366 * 86_400_000
_UNITS_MS: Final = {"ms": 1.0, "s": 1e3, "m": 60e3, "min": 60e3, "h": 3600e3, "d": 86400e3}
_PIECE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|min|s|m|h|d)\s*")


class PolicyError(ValueError):
    """An invalid policy; the text has what to write instead."""


def duration_ms(given: Duration) -> int:
    """Milliseconds of a duration. Raises PolicyError for other text, and outside of 0 to 366 days."""
    if isinstance(given, timedelta):
        ms = given.total_seconds() * 1000
    elif isinstance(given, str):
        ms = _parse_ms(given)
    else:
        ms = float(given) * 1000
    if not (math.isfinite(ms) and 0 <= ms <= MAX_DELAY_MS):
        raise PolicyError(f"{given!r} is not between 0 and 366 days")
    return round(ms)


def _parse_ms(text: str) -> float:
    rest, ms = text.strip(), 0.0
    if re.fullmatch(r"\d{1,15}(\.\d{1,9})?", rest):
        return float(rest) * 1000
    if not rest or len(rest) > 60:
        raise PolicyError(f"{text!r} is not a duration: write 500ms, 30s, 5m, 1h30m or 2d")
    while rest:
        piece = _PIECE.match(rest)
        if piece is None:
            raise PolicyError(f"{text!r} is not a duration: write 500ms, 30s, 5m, 1h30m or 2d")
        ms += float(piece.group(1)) * _UNITS_MS[piece.group(2)]
        rest = rest[piece.end() :]
    return ms


def duration_text(ms: int) -> str:
    """A duration as text that `duration_ms` reads, in its largest whole unit."""
    for unit in ("d", "h", "m", "s"):
        size = int(_UNITS_MS[unit])
        if ms and ms % size == 0:
            return f"{ms // size}{unit}"
    return f"{ms}ms"


# -- names of topics ---------------------------------------------------------------------------------------------------

RETRY_PATTERN: Final = re.compile(r"(?P<topic>.+)\.retry\.(?P<level>[1-9]\d{0,3})")
DEAD_SUFFIX: Final = ".dead"


def retry_topic(topic: str, level: int) -> str:
    """The topic in which records of `topic` wait; `level` from 1."""
    return f"{topic}.retry.{level}"


def dead_topic(topic: str) -> str:
    """The topic in which records of `topic` end."""
    return topic + DEAD_SUFFIX


def origin_of(name: str) -> tuple[str, int] | None:
    """The topic and the level in the name of a retry topic; None for another name."""
    found = RETRY_PATTERN.fullmatch(name)
    return None if found is None else (found["topic"], int(found["level"]))


# -- policies ----------------------------------------------------------------------------------------------------------


class Backoff(NamedTuple):
    """Growing delays: `first_ms`, multiplied by `factor` after each failure, at most `max_ms`."""

    first_ms: int
    max_ms: int
    factor: float = 2.0

    def delay_ms(self, failures: int) -> int:
        """The delay after this many failures, from 1."""
        try:
            # A power of floats raises OverflowError, with a factor of 2 after about 1,000 failures.
            grown = self.first_ms * self.factor ** (failures - 1)
        except OverflowError:
            return self.max_ms
        return round(min(self.max_ms, grown))


class Later(NamedTuple):
    """Decision: the record waits in `topic` for `delay_ms`."""

    topic: str
    delay_ms: int


class Dead(NamedTuple):
    """Decision: the record becomes a dead letter in `topic`."""

    topic: str
    why: str


Decision = Later | Dead


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often, after which delays, and for which errors a record is delivered again.

    Make one with `fixed` or `growing`.
    """

    attempts: int
    """Deliveries in all; the first one counts."""
    delays_ms: tuple[int, ...] = ()
    """After the first failure, the second …; the last one is used for all further ones. Each has a topic of its own."""
    backoff: Backoff | None = None
    """Used instead of `delays_ms`; all records wait in one topic."""
    jitter: float = 0.0
    """Delays are extended by up to this share, so that records that failed together are not retried together."""
    retry_on: tuple[ErrorKind, ...] = ()
    """Only these errors are retried; empty: all."""
    abort_on: tuple[ErrorKind, ...] = ()
    """These are not retried, even if they are in `retry_on`."""
    dead: str | None = None
    """The dead-letter topic; None: the name of the origin's topic with the suffix `.dead`."""

    def __post_init__(self) -> None:
        _check_option("attempts", self.attempts)
        _check_option("jitter", self.jitter)
        if self.attempts > 1 and (self.backoff is None) == (not self.delays_ms):
            raise PolicyError("give either delays or a backoff")
        if len(self.delays_ms) > 100:
            raise PolicyError("each delay has a topic of its own: 100 are enough; let delays grow instead")
        if self.backoff is not None:
            _check_option("factor", self.backoff.factor)
            if not 0 <= self.backoff.first_ms <= self.backoff.max_ms:
                raise PolicyError("a backoff grows from its first delay to its longest one")

    @classmethod
    def fixed(
        cls,
        delays: Sequence[Duration],
        *,
        attempts: int | None = None,
        jitter: float = 0.0,
        retry_on: Iterable[ErrorKind] = (),
        abort_on: Iterable[ErrorKind] = (),
        dead: str | None = None,
    ) -> RetryPolicy:
        """One delay per retry, as `["30s", "5m"]`; by default as many retries as delays.

        Raises PolicyError.
        """
        if isinstance(delays, str):
            raise PolicyError(f"delays are a list: [{delays!r}]")
        found = tuple(duration_ms(each) for each in delays)
        count = len(found) + 1 if attempts is None else attempts
        return cls(count, found, None, jitter, tuple(retry_on), tuple(abort_on), dead)

    @classmethod
    def growing(
        cls,
        attempts: int,
        *,
        first: Duration = POLICY_OPTIONS["first"].default,
        longest: Duration = POLICY_OPTIONS["longest"].default,
        factor: float = POLICY_OPTIONS["factor"].default,
        jitter: float = 0.2,
        retry_on: Iterable[ErrorKind] = (),
        abort_on: Iterable[ErrorKind] = (),
        dead: str | None = None,
    ) -> RetryPolicy:
        """Delays that grow from `first` to `longest`. Raises PolicyError."""
        backoff = Backoff(duration_ms(first), duration_ms(longest), factor)
        return cls(attempts, (), backoff, jitter, tuple(retry_on), tuple(abort_on), dead)

    @property
    def levels(self) -> int:
        """The number of retry topics."""
        if self.attempts == 1:
            return 0
        return 1 if self.backoff is not None else min(len(self.delays_ms), self.attempts - 1)

    def topics(self, topic: str) -> tuple[str, ...]:
        """All retry topics and, last, the dead-letter topic of records of `topic`."""
        return (*(retry_topic(topic, level + 1) for level in range(self.levels)), self.dead_topic(topic))

    def dead_topic(self, topic: str) -> str:
        """Where records of `topic` end."""
        return self.dead or dead_topic(topic)

    def delay_ms(self, failures: int, draw: float = 0.0) -> int:
        """The delay after this many failures, from 1; `draw` in [0, 1) selects the jitter."""
        if self.backoff is not None:
            nominal = self.backoff.delay_ms(failures)
        else:
            nominal = self.delays_ms[min(failures, len(self.delays_ms)) - 1]
        return min(MAX_DELAY_MS, round(nominal * (1 + self.jitter * draw)))

    def decide(
        self, topic: str, failures: int, error: BaseException | str, draw: float = 0.0, delay: Duration | None = None
    ) -> Decision:
        """Decide about a record of `topic` that failed for the `failures`-th time (from 1) with `error`.

        error: an exception, or the name of its class. delay: used instead of the policy's.
        """
        if not self.retries(error):
            return Dead(self.dead_topic(topic), "not an error to retry")
        if failures >= self.attempts:
            return Dead(self.dead_topic(topic), f"failed {failures} times")
        # After the last delay further failures stay at the last level; a backoff has one level for all delays.
        level = min(failures, self.levels)
        ms = self.delay_ms(failures, draw) if delay is None else duration_ms(delay)
        return Later(retry_topic(topic, level), ms)

    def retries(self, error: BaseException | str) -> bool:
        """Whether this kind of error is retried at all."""
        if any(_is_kind(error, kind) for kind in self.abort_on):
            return False
        return not self.retry_on or any(_is_kind(error, kind) for kind in self.retry_on)


def _check_option(name: str, value: float) -> None:
    row = POLICY_OPTIONS[name]
    if not row.is_allowed(value):
        raise PolicyError(f"{name}={value} is not {row.requirement}: {row.doc}")


def _is_kind(error: BaseException | str, kind: ErrorKind) -> bool:
    if isinstance(error, str):
        name = kind if isinstance(kind, str) else kind.__name__
        return name.rpartition(".")[2] == error.rpartition(".")[2] and ("." not in name or name == error)
    if isinstance(kind, str):
        return any(kind in (each.__name__, f"{each.__module__}.{each.__qualname__}") for each in type(error).__mro__)
    return isinstance(error, kind)
