"""One partition that a fetcher fetches: where it is, and what keeps it from being asked for.

Zone: deterministic. Values that belong together; what is done with them is the fetcher's.
"""

from __future__ import annotations

from typing import Final

from ottla.purgatory.timing_wheel import Timer
from ottla.replication.follower.follower_session import Key
from ottla.replication.partition.partition import Partition
from ottla.wire.hot_fetch import Wanted

BACKOFF_FIRST_MS: Final = 50
"""The first wait after an error; it doubles up to replica.fetch.backoff.ms. In the moments after an election leader and
follower hear of it one after the other: a second of waiting for that would be a second without acknowledgements."""


class Backoff:
    """Growing waits."""

    __slots__ = ("_most_ms", "_next_ms")

    def __init__(self, most_ms: int) -> None:
        self._most_ms = most_ms
        self._next_ms = BACKOFF_FIRST_MS

    def next_ms(self) -> int:
        """How long to wait this time."""
        wait = min(self._next_ms, self._most_ms)
        self._next_ms *= 2
        return wait

    @property
    def is_young(self) -> bool:
        """Whether it has not yet come to its longest wait: what it waits for may have just begun."""
        return self._next_ms < self._most_ms

    def reset(self) -> None:
        """All is well."""
        self._next_ms = BACKOFF_FIRST_MS


class PartitionFetchState:
    """A partition followed in one leader epoch. In another epoch it is another object."""

    __slots__ = ("backoff", "key", "lag", "leader_epoch", "partition", "timer")

    def __init__(self, partition: Partition, key: Key, backoff: Backoff) -> None:
        self.partition = partition
        self.key = key
        self.leader_epoch = partition.leader_epoch
        self.lag = -1
        """The leader's high watermark less the own log end, in records; -1 before the first answer."""
        self.backoff = backoff
        self.timer: Timer | None = None

    def row(self, max_bytes: int) -> Wanted:
        """What a fetch of it says now."""
        log = self.partition.log
        return (*self.key, self.leader_epoch, log.end_offset, log.epochs.latest, log.start_offset, max_bytes)

    @property
    def must_sync(self) -> bool:
        """Whether the next fetch offset would acknowledge what is not durable."""
        log = self.partition.log
        return self.partition.syncs and log.recovery_point < log.sync_awaited

    def stop_waiting(self) -> None:
        """No timer is to bring it back any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
