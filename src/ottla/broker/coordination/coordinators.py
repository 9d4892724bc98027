"""This broker's coordinators: the leader of a partition of an internal topic coordinates its names.

Zone: deterministic. Passes events of partitions to the coordinators of groups and of transactions.
"""

from __future__ import annotations

from ottla.broker.coordination.transaction_cluster_view import TransactionClusterView
from ottla.cluster.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from ottla.coordinator.shard import TransactionEnd
from ottla.groups.groups import Groups
from ottla.groups.heartbeats import Heartbeats
from ottla.replication.partition.partition import Partition
from ottla.transactions.service import Transactions


class BrokerCoordinators:
    """The coordinators of groups and of transactions, each with its own internal topic."""

    def __init__(
        self, groups: Groups, heartbeats: Heartbeats, transactions: Transactions, view: TransactionClusterView
    ) -> None:
        self.groups = groups
        self.heartbeats = heartbeats
        self.transactions = transactions
        self._view = view

    def on_role(self, partition: Partition) -> None:
        """Handle that a partition has another leader or leader epoch, or is out of service."""
        self.groups.coordinator.on_role(partition)
        if partition.tp.topic == TRANSACTION_STATE and partition.is_leader:
            # Before the coordinator loads: it may look up the leaders of partitions at once, and an image that still
            # lacks some of them must not make it drop their markers.
            self._view.took_over()
        self.transactions.on_role(partition)

    def on_marker(self, partition: Partition, producer_id: int, epoch: int, commit: bool, offset: int) -> None:
        """Forward a marker that was appended at `offset` to a partition of `__consumer_offsets` that is led here."""
        if partition.tp.topic == CONSUMER_OFFSETS:
            end = TransactionEnd(producer_id, epoch, commit)
            self.groups.coordinator.end_transaction(partition, end, offset)

    def topics_deleted(self, names: tuple[str, ...]) -> None:
        """Forget topics that were deleted."""
        self.groups.topics_deleted(frozenset(names))

    def stop_coordinators(self) -> None:
        """Refuse all requests because the logs are about to be closed."""
        self.groups.coordinator.stop_shards()
        self.transactions.stop_coordinator()
