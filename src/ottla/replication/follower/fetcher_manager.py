"""All fetchers of a broker (Kafka's ReplicaFetcherManager), and which of them follows which partition.

Zone: deterministic. Per leader broker there are up to `num.replica.fetchers` fetchers, created when they are first
needed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from zlib import crc32

from ottla.broker_client import BrokerClient
from ottla.config.broker import BrokerConfig
from ottla.purgatory.purgatory import Purgatory
from ottla.replication.control import ControlFence
from ottla.replication.follower.fetcher import ReplicaFetcher
from ottla.replication.follower.fetcher_context import FetcherContext, FetchSettings
from ottla.replication.follower.leader_requests import LeaderRequests
from ottla.replication.partition.partition import Partition
from ottla.replication.throttle import Throttle
from ottla.seams import Clock
from ottla.types import TopicPartition

_FETCH_VERSIONS: Final = ((3, 5, 17), (3, 1, 13), (2, 7, 12), (2, 3, 11))
"""(major, minor, version of Fetch): inter.broker.protocol.version from which on followers use that version."""
_OLDEST_FETCH: Final = 10


def fetch_version(protocol: str) -> int:
    """The version of Fetch between brokers for a given `inter.broker.protocol.version`."""
    found = re.match(r"(\d+)\.(\d+)", protocol)
    given = (int(found[1]), int(found[2])) if found else (0, 0)
    return next((version for major, minor, version in _FETCH_VERSIONS if given >= (major, minor)), _OLDEST_FETCH)


def fetch_settings(config: BrokerConfig) -> FetchSettings:
    """The fetch settings of a broker's configuration."""
    return FetchSettings(
        max_bytes=config.replica_fetch_max_bytes,
        response_max_bytes=config.replica_fetch_response_max_bytes,
        wait_max_ms=config.replica_fetch_wait_max_ms,
        min_bytes=config.replica_fetch_min_bytes,
        backoff_ms=config.replica_fetch_backoff_ms,
        socket_timeout_ms=config.replica_socket_timeout_ms,
        version=fetch_version(config.inter_broker_protocol_version),
    )


class ReplicaFetcherManager:
    """Assigns partitions to fetchers, and counts lags and failures."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        peers: BrokerClient,
        purgatory: Purgatory,
        fence: ControlFence,
        throttle: Throttle,
        later: Callable[[Callable[[], None]], None],
        on_responding: Callable[[int, bool], None],
    ) -> None:
        """`throttle` is the followers' one; `later` queues an effect of this turn. `on_responding` is called with a
        leader that stops answering (False) or answers again (True)."""
        self.number = config.num_replica_fetchers
        """num.replica.fetchers; a change applies to partitions that are followed from then on."""
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._at: dict[TopicPartition, ReplicaFetcher] = {}
        self._failed: dict[TopicPartition, None] = {}
        questions = LeaderRequests(peers, fence.node_id, config.replica_socket_timeout_ms)
        settings = fetch_settings(config)
        shared = (settings, clock, peers, purgatory, fence, questions, throttle, later)
        self._world = FetcherContext(*shared, self._on_failed, on_responding)

    @property
    def max_lag(self) -> int:
        """The largest lag of a followed partition, in records; 0 when nothing is followed."""
        return max((fetcher.max_lag for fetcher in self._fetchers.values()), default=0)

    @property
    def failed_partitions(self) -> int:
        """Number of partitions that are not fetched any more because of an error."""
        return len(self._failed)

    def follow_partition(self, partition: Partition) -> None:
        """Fetch a partition from its leader, in its present leader epoch. One without a leader is not fetched."""
        # Also one that failed: in another leader epoch it is tried again.
        self.unfollow_partition(partition)
        if partition.leader < 0 or partition.is_leader:
            return
        # A hash that is the same in every process, so that runs of the simulator are reproducible.
        which = crc32(str(partition.tp).encode()) % max(1, self.number)
        fetcher = self._fetchers.get((partition.leader, which))
        if fetcher is None:
            lane = f"fetch-{which}" if which else "fetch"
            fetcher = self._fetchers[partition.leader, which] = ReplicaFetcher(self._world, partition.leader, lane)
        self._at[partition.tp] = fetcher
        fetcher.add_partition(partition)

    def unfollow_partition(self, partition: Partition) -> None:
        """Stop fetching a partition; does nothing if it is not fetched."""
        self._failed.pop(partition.tp, None)
        fetcher = self._at.pop(partition.tp, None)
        if fetcher is not None:
            fetcher.remove_partition(partition)

    def is_following(self, partition: Partition) -> bool:
        """Whether a partition is fetched, or was until it failed."""
        return partition.tp in self._at or partition.tp in self._failed

    def on_synced(self, partition: Partition) -> None:
        """Forward an event of a partition to its fetcher: perhaps the end of a flush that the fetcher waits for."""
        fetcher = self._at.get(partition.tp)
        if fetcher is not None:
            fetcher.on_synced(partition)

    def _on_failed(self, partition: Partition) -> None:
        self._at.pop(partition.tp, None)
        self._failed[partition.tp] = None
