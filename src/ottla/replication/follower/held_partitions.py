"""The partitions of a fetcher that the replication throttle holds back, and when they continue.

Zone: deterministic. `throttle` measures the rate; `fetcher` asks before it requests a partition.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from ottla.purgatory.timing_wheel import Timer
from ottla.replication.follower.fetcher_context import FetcherContext
from ottla.replication.follower.follower_session import Key
from ottla.replication.follower.partition_fetch_state import PartitionFetchState

THROTTLE_LOOK_MS: Final = 100
"""Interval of the checks whether throttled partitions may continue."""


class HeldPartitions:
    """Those of one fetcher."""

    __slots__ = ("_request_partition", "_schedule_fetch", "_timer", "_world", "partitions")

    def __init__(
        self,
        world: FetcherContext,
        request_partition: Callable[[PartitionFetchState], None],
        schedule_fetch: Callable[[], None],
    ) -> None:
        """`request_partition` is called for each partition that may be asked again, then `schedule_fetch`."""
        self._world = world
        self._request_partition = request_partition
        self._schedule_fetch = schedule_fetch
        self._timer: Timer | None = None
        self.partitions: dict[Key, PartitionFetchState] = {}

    def must_hold(self, following: PartitionFetchState) -> bool:
        """Whether the throttle holds a partition back; one that has caught up is never throttled."""
        throttle = self._world.throttle
        if throttle.is_idle or following.lag == 0 or not throttle.applies_to(following.partition.tp):
            return False
        return throttle.is_exceeded(self._world.clock.now().mono_ns)

    def hold_partition(self, following: PartitionFetchState) -> None:
        """Hold a partition back until the next check."""
        self.partitions[following.key] = following
        if self._timer is None:
            self._timer = self._world.purgatory.continue_after(THROTTLE_LOOK_MS, self._look_at_throttle)

    def _look_at_throttle(self) -> None:
        self._timer = None
        held = list(self.partitions.values())
        # Before the loop, because `_request_partition` holds a partition back again if the rate is still too high.
        self.partitions.clear()
        for each in held:
            self._request_partition(each)
        self._schedule_fetch()
