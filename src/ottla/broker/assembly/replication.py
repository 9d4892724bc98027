"""The replicas of a broker: partitions, fetchers, moves, and changes of ISRs.

Zone: deterministic. Construction only; `ottla.replication` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from ottla.broker.assembly.foundation import Foundation
from ottla.config.topic import TopicConfig
from ottla.replication.alter_partition import AlterPartitionChannel
from ottla.replication.control import ControlFence
from ottla.replication.follower.fetcher_manager import ReplicaFetcherManager
from ottla.replication.moves import ReplicaMoves
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext, PartitionEvents
from ottla.replication.replica_helpers import PartitionWaiters, ReplicaHelpers
from ottla.replication.replica_manager import ReplicaManager
from ottla.replication.throttle import Throttles
from ottla.replication.tombstone_retention import TombstoneRetention
from ottla.storage.cleaning.cleaner import BACKOFF_MIN_MS


class RoleListener(Protocol):
    """Handles roles and markers of partitions: the coordinators."""

    def on_role(self, partition: Partition) -> None:
        """Handle that a partition has another leader or leader epoch, or is out of service."""
        ...

    def on_marker(self, partition: Partition, producer_id: int, epoch: int, commit: bool, offset: int) -> None:
        """Handle a marker that was appended here."""
        ...


def build_replicas(
    base: Foundation,
    fence: ControlFence,
    topic_config: Callable[[str], TopicConfig],
    coordinators: RoleListener,
    on_dir_failure: Callable[[], None],
) -> ReplicaManager:
    """Create the objects."""
    config, clock, purgatory = base.config, base.world.clock, base.purgatory
    later = base.effects.queue_effect
    samples = config.replication_quota_window_num, config.replication_quota_window_size_seconds
    throttles = Throttles(base.node_id, *samples)
    fetchers = ReplicaFetcherManager(
        config,
        clock,
        base.peers,
        purgatory,
        fence,
        throttles.follower,
        later,
        base.cluster.on_broker_heard,
    )
    moves = ReplicaMoves(config, clock, base.logs, base.hosted, purgatory)
    waiters = PartitionWaiters(purgatory, fetchers)
    events = PartitionEvents(waiters.on_change, moves.truncate_copy, coordinators.on_role, coordinators.on_marker)
    waits_ms = max(BACKOFF_MIN_MS, config.log_cleaner_backoff_ms), config.request_timeout_ms
    helpers = ReplicaHelpers(
        PartitionContext(events, config.replica_lag_time_max_ms),
        throttles,
        AlterPartitionChannel(fence, base.peers, purgatory, later, config.controller_socket_timeout_ms),
        fetchers,
        TombstoneRetention(base.hosted, fence, base.peers, purgatory, base.logs.bounds_due, *waits_ms),
        moves,
    )
    managed = (config, clock, base.logs, base.hosted, purgatory, fence, helpers, later, topic_config)
    return ReplicaManager(*managed, on_dir_failure)
