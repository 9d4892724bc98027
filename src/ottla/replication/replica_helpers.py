"""The objects that `ReplicaManager` uses, each for all partitions of one broker.

Zone: deterministic. The broker's assembly creates them.
"""

from __future__ import annotations

from typing import NamedTuple

from ottla.purgatory.purgatory import Purgatory
from ottla.replication.alter_partition import AlterPartitionChannel
from ottla.replication.follower.fetcher_manager import ReplicaFetcherManager
from ottla.replication.moves import ReplicaMoves
from ottla.replication.partition.partition import Partition
from ottla.replication.partition.partition_context import PartitionContext
from ottla.replication.throttle import Throttles
from ottla.replication.tombstone_retention import TombstoneRetention


class ReplicaHelpers(NamedTuple):
    """What the partitions of a broker share."""

    shared: PartitionContext
    throttles: Throttles
    isr_changes: AlterPartitionChannel
    fetchers: ReplicaFetcherManager
    removals: TombstoneRetention
    moves: ReplicaMoves
    """Moves between log directories."""


class PartitionWaiters:
    """The requests and fetchers that wait for a change of a partition."""

    __slots__ = ("_fetchers", "_purgatory")

    def __init__(self, purgatory: Purgatory, fetchers: ReplicaFetcherManager) -> None:
        self._purgatory = purgatory
        self._fetchers = fetchers

    def on_change(self, partition: Partition) -> None:
        """Have the requests that wait for a partition look again."""
        self._purgatory.check_watchers(partition)
        if partition.syncs and not partition.is_leader:
            self._fetchers.on_synced(partition)
