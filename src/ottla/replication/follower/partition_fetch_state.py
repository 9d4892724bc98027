"""The state of one partition that a fetcher fetches: its position, its lag, and its backoff.

Zone: deterministic. Values only; `fetcher` decides what to do with them.
"""

from __future__ import annotations

from typing import Final

from ottla.purgatory.timing_wheel import Timer
from ottla.replication.follower.follower_session import Key
from ottla.replication.partition.partition import Partition
from ottla.wire.hot_fetch import Wanted

BACKOFF_FIRST_MS: Final = 50
"""The first wait after an error; it doubles up to replica.fetch.backoff.ms. It is short because a follower may learn of
an election before the leader does; each wait for the leader delays acknowledgements."""


class Backoff:
    """Exponentially growing waits."""

    __slots__ = ("_most_ms", "_next_ms")

    def __init__(self, most_ms: int) -> None:
        self._most_ms = most_ms
        self._next_ms = BACKOFF_FIRST_MS

    def next_ms(self) -> int:
        """The wait for this attempt; the next one is twice as long."""
        wait = min(self._next_ms, self._most_ms)
        self._next_ms *= 2
        return wait

    @property
    def is_young(self) -> bool:
        """Whether the longest wait is not reached: the error may be only some moments old."""
        return self._next_ms < self._most_ms

    def reset_wait(self) -> None:
        """Begin with the shortest wait again, after a success."""
        self._next_ms = BACKOFF_FIRST_MS


class PartitionFetchState:
    """A partition that is followed in one leader epoch; each epoch has an object of its own."""

    __slots__ = ("backoff", "key", "lag", "leader_epoch", "partition", "timer")

    def __init__(self, partition: Partition, key: Key, backoff: Backoff) -> None:
        self.partition = partition
        self.key = key
        self.leader_epoch = partition.leader_epoch
        self.lag = -1
        """The leader's high watermark minus the own log end, in records; -1 before the first response."""
        self.backoff = backoff
        self.timer: Timer | None = None

    def request_row(self, max_bytes: int) -> Wanted:
        """The partition's row in a fetch request, for its present position."""
        log = self.partition.log
        return (*self.key, self.leader_epoch, log.end_offset, log.epochs.latest, log.start_offset, max_bytes)

    @property
    def must_sync(self) -> bool:
        """Whether the next fetch would acknowledge records that are not durable."""
        log = self.partition.log
        return self.partition.syncs and log.recovery_point < log.flush_policy.awaited_offset

    def stop_waiting(self) -> None:
        """Cancel the timer of a backoff."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
